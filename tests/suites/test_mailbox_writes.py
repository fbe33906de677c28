"""Shared mailbox suite: replays, fencing, W."""

import pytest

from schemas.watermarks import pack_uniform
from stores.mailbox import ScanResult
from tests.support.mailboxes import (
    USER,
    Mailbox,
    MailboxBase,
    MailboxHarness,
    offsets,
    scan_of,
    seq_of,
)

__all__ = ["MailboxWrites"]


class MailboxWrites(MailboxBase):
    """Writing."""

    @pytest.mark.contract("TAKE-09", "MBX-31", "GATE-31")
    async def test_a_replay_writes_nothing_new(self, mailbox: Mailbox) -> None:
        page = [mailbox.entry(o, day=-(o % 2), ordinal=n) for o in range(4) for n in (0, 1)]
        assert (await mailbox.append(*page)).code == "ok"
        before = await mailbox.harness.snapshot()
        assert (await mailbox.append(*page)).code == "ok"  # the reply of the first was lost
        assert await mailbox.harness.snapshot() == before

    @pytest.mark.contract("MBX-31", "TAKE-09")
    async def test_a_replay_may_reach_further_than_what_was_stored(self, mailbox: Mailbox) -> None:
        await mailbox.fill(0, 1)
        await mailbox.fill(0, 1, 2)
        assert offsets(await mailbox.scan()) == [0, 1, 2]

    @pytest.mark.contract("MBX-20", "MBX-31", "MBX-32", "GATE-17")
    async def test_a_sequence_on_a_second_day_is_refused(self, mailbox: Mailbox) -> None:
        await mailbox.fill(0, 1)
        await self.refused(mailbox, "corrupt", mailbox.entry(1, day=-1))

    async def test_other_bytes_for_the_same_sequence_are_refused(self, mailbox: Mailbox) -> None:
        await mailbox.fill(0, 1)
        entry = mailbox.entry(1)
        await self.refused(mailbox, "conflict", entry._replace(member=entry.member + b"x"))

    @pytest.mark.contract("MBX-20", "MBX-31", "GATE-17")
    async def test_a_sequence_on_two_days_of_one_page_is_refused(self, mailbox: Mailbox) -> None:
        page = [mailbox.entry(1), mailbox.entry(1, day=-1, ordinal=1)]
        await self.refused(mailbox, "corrupt", *page)

    @pytest.mark.contract("MBX-31", "REG-10")
    async def test_a_page_may_mix_the_newest_day_with_others(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1)
        page = [mailbox.entry(o, day=day) for o, day in ((2, 0), (3, -1), (4, 0), (5, -1))]
        for _ in range(2):
            assert (await mailbox.append(*page)).code == "ok"
        assert offsets(await mailbox.scan()) == [1, 2, 3, 4, 5]

    @pytest.mark.contract("MBX-31", "MBX-32", "GATE-17")
    async def test_an_entry_that_lost_its_identity_is_not_written_twice(
        self, mailbox: Mailbox
    ) -> None:
        await mailbox.fill(1, 2)
        await mailbox.harness.forget_identity(USER, seq_of(1))
        await self.refused(mailbox, "corrupt", mailbox.entry(1))

    @pytest.mark.contract("TAKE-03", "GATE-17")
    async def test_a_stale_term_writes_nothing(self, mailbox: Mailbox) -> None:
        await mailbox.fill(0)
        successor = Mailbox(mailbox.harness)
        await successor.lease()  # the same worker started again
        assert successor.term > mailbox.term
        await self.refused(mailbox, "fenced", mailbox.entry(1))
        successor.w = mailbox.w
        await successor.fill(1)

    @pytest.mark.contract("TAKE-03", "TAKE-06")
    async def test_a_lease_that_ran_out_writes_nothing(self, mailbox: Mailbox) -> None:
        await mailbox.fill(0)
        await mailbox.harness.end_lease(0)
        await self.refused(mailbox, "fenced", mailbox.entry(1))

    @pytest.mark.contract("WM-04", "WM-05")
    async def test_w_moves_only_from_the_expected_value(self, mailbox: Mailbox) -> None:
        await mailbox.fill(0, 1)
        stored = mailbox.w
        for wrong in (None, pack_uniform(0)):
            mailbox.w = wrong
            outcome = await self.refused(mailbox, "w_mismatch", mailbox.entry(2))
            assert outcome.stored_w == stored

    @pytest.mark.contract("WM-04")
    async def test_an_expected_w_on_an_empty_store_is_a_mismatch(self, mailbox: Mailbox) -> None:
        await mailbox.lease()
        mailbox.w = pack_uniform(4)
        outcome = await self.refused(mailbox, "w_mismatch", mailbox.entry(5))
        assert outcome.stored_w is None

    async def test_an_older_w_epoch_is_fenced(self, mailbox: Mailbox) -> None:
        await mailbox.append(mailbox.entry(0, epoch=2), epoch=2)
        await self.refused(mailbox, "fenced", mailbox.entry(1))

    async def test_w_is_stored_with_the_page(self, mailbox: Mailbox) -> None:
        assert await mailbox.harness.store.watermark(0) is None
        await mailbox.fill(0, 1)
        stored = await mailbox.harness.store.watermark(0)
        assert stored is not None
        assert (stored.layout, stored.epoch, stored.blob) == ("packed-v2", 1, pack_uniform(1))

    async def test_w_advances_past_records_without_recipients(self, mailbox: Mailbox) -> None:
        await mailbox.lease()
        assert (await mailbox.append(w=17)).code == "ok"
        stored = await mailbox.harness.store.watermark(0)
        assert stored is not None
        assert stored.blob == pack_uniform(17)

    @pytest.mark.contract("MBX-02", "MBX-30")
    async def test_sections_of_a_page_are_independent(self, harness: MailboxHarness) -> None:
        shards = [Mailbox(harness, shard) for shard in range(4)]
        for mailbox in shards:
            await mailbox.lease()
        await shards[1].lease("worker")
        sections = [m.section([m.entry(3, user=10 + m.shard)]) for m in shards]
        sections[1] = sections[1]._replace(lease_term=1)
        sections[2] = sections[2]._replace(expected_w=pack_uniform(2))
        codes = [outcome.code for outcome in await harness.store.append_page(sections)]
        assert codes == ["ok", "fenced", "w_mismatch", "ok"]
        scans = [scan_of(user=10 + m.shard, shard=m.shard) for m in shards]
        found = await harness.store.range_scan(scans)
        assert [len(f.entries) for f in found if isinstance(f, ScanResult)] == [1, 0, 0, 1]
