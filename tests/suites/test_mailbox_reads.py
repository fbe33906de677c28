"""Shared mailbox suite: what was written is read, in order, in pages that end at event groups."""

from typing import Any

import pytest

from schemas.watermarks import ABSENT, NOTHING, LaneMark, pack_w
from stores.mailbox import ZERO_CURSOR, MailboxBehind, MailboxHead, ScanResult
from tests.support.mailboxes import (
    OTHER,
    TENANT,
    USER,
    Mailbox,
    MailboxBase,
    offsets,
    scan_of,
    seq_of,
)

__all__ = ["MailboxReads"]


class MailboxReads(MailboxBase):
    """Reading."""

    @pytest.mark.contract("MBX-01", "MBX-03", "MBX-51", "EVT-06")
    async def test_entries_come_back_in_order_and_cover_the_range(self, mailbox: Mailbox) -> None:
        await mailbox.append(*(mailbox.entry(o, ordinal=n) for o in (3, 5) for n in (1, 0)))
        found = await mailbox.scan(up_to=9)
        assert [(e[8], e[9] >> 1) for e in found.entries] == [(3, 0), (3, 1), (5, 0), (5, 1)]
        assert found == ScanResult(found.entries, seq_of(9), False, 0)

    @pytest.mark.contract("REG-01", "MBX-53", "SEQ-08")
    async def test_reg_01_zero_cursor_sees_offset_0_and_an_applied_one_does_not(
        self, mailbox: Mailbox
    ) -> None:
        await mailbox.fill(0, 1)
        assert offsets(await mailbox.scan(ZERO_CURSOR)) == [0, 1]
        assert offsets(await mailbox.scan(seq_of(0))) == [1]

    @pytest.mark.contract("TAKE-05", "MBX-57", "CUR-14")
    async def test_a_store_whose_w_is_behind_the_question_does_not_look_empty(
        self, mailbox: Mailbox
    ) -> None:
        (unknown,) = await mailbox.harness.store.range_scan([scan_of(up_to=5, lane=7)])
        assert isinstance(unknown, MailboxBehind)  # nothing was ever written, or everything is lost
        await mailbox.fill(3, 5)
        scans = [scan_of(up_to=at, lane=63) for at in (5, 6)]
        scans.append(scan_of(up_to=6))  # who names no lane is answered by what there is
        found, behind, unasked = await mailbox.harness.store.range_scan(scans)
        assert isinstance(found, ScanResult)
        assert offsets(found) == [3, 5]
        assert isinstance(behind, MailboxBehind)
        assert isinstance(unasked, ScanResult)

    @pytest.mark.contract("TAKE-05", "WM-10", "WM-23")
    async def test_w_is_asked_for_the_lane_of_the_question_alone(self, mailbox: Mailbox) -> None:
        marks = [LaneMark(lane, lane, lane) if lane else ABSENT for lane in range(64)]
        marks[9] = LaneMark(9, 9, NOTHING)  # refused, which the gateway judges; W is there
        marks[10] = LaneMark(NOTHING, 10, NOTHING)
        await mailbox.lease()
        section = mailbox.section([mailbox.entry(3)])._replace(new_w=pack_w(marks))
        await mailbox.harness.store.append_page([section])
        asked = ((0, 0), (3, 3), (4, 3), (63, 63), (9, 9), (10, 10))
        answers = await mailbox.harness.store.range_scan(
            [scan_of(up_to=up_to, lane=lane) for up_to, lane in asked]
        )
        behind = [isinstance(answer, MailboxBehind) for answer in answers]
        assert behind == [True, False, True, False, False, True]

    @pytest.mark.contract("MBX-03", "MBX-57")
    async def test_bounds_are_open_below_and_closed_above(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1, 2, 3, 4)
        found = await mailbox.scan(seq_of(1), up_to=3)
        assert offsets(found) == [2, 3]
        assert found.covered_through == seq_of(3)
        assert not found.has_more

    @pytest.mark.contract("MBX-06")
    async def test_mailboxes_of_users_and_tenants_are_apart(self, mailbox: Mailbox) -> None:
        mine, other_user = mailbox.entry(1), mailbox.entry(2, user=OTHER)
        other_tenant = mailbox.entry(3)._replace(tenant=1 << 127)
        assert (await mailbox.append(mine, other_user, other_tenant)).code == "ok"
        assert offsets(await mailbox.scan()) == [1]
        assert offsets(await mailbox.scan(user=OTHER)) == [2]
        assert offsets(await mailbox.scan(tenant=1 << 127)) == [3]

    async def test_an_empty_mailbox_covers_the_whole_range(self, mailbox: Mailbox) -> None:
        assert await mailbox.scan(up_to=5) == ScanResult([], seq_of(5), False, 0)

    @pytest.mark.contract("REG-10", "MBX-50")
    async def test_reg_10_days_are_merged_by_sequence(self, mailbox: Mailbox) -> None:
        # Two gateways whose clocks differ around midnight: offsets alternate between the days.
        await mailbox.append(*(mailbox.entry(o, day=-(o % 2)) for o in range(6)))
        assert offsets(await mailbox.scan()) == [0, 1, 2, 3, 4, 5]
        first = await mailbox.scan(max_items=3)
        assert (offsets(first), first.has_more) == ([0, 1, 2], True)
        assert offsets(await mailbox.scan(first.covered_through)) == [3, 4, 5]

    @pytest.mark.contract("MBX-11", "REG-10", "REDIS-13")
    async def test_reg_10_large_epochs_and_offsets_keep_their_precision(
        self, mailbox: Mailbox
    ) -> None:
        top = (1 << 48) - 1
        entries = [mailbox.entry(o, epoch=0x7FFF) for o in (top - 2, top - 1, top)]
        assert (await mailbox.append(*entries, epoch=0x7FFF)).code == "ok"
        found = await mailbox.scan(
            seq_of(top - 2, 0x7FFF), base_epochs=(0x7FFF,), up_to_seq=seq_of(top, 0x7FFF)
        )
        assert offsets(found) == [top - 1, top]

    @pytest.mark.contract("OPEN-11", "MBX-50")
    async def test_incarnations_are_merged_in_sequence_order(self, mailbox: Mailbox) -> None:
        await mailbox.fill(4, 9)
        again = [mailbox.entry(o, epoch=3) for o in (0, 2)]
        assert (await mailbox.append(*again, epoch=3)).code == "ok"
        both: dict[str, Any] = {"base_epochs": (1, 3), "up_to_seq": seq_of(2, 3)}
        everything = [seq_of(4), seq_of(9), seq_of(0, 3), seq_of(2, 3)]

        def seqs(found: ScanResult) -> list[int]:
            return [int.from_bytes(entry[1:9], "big") for entry in found.entries]

        assert seqs(await mailbox.scan(**both)) == everything
        assert seqs(await mailbox.scan(seq_of(4), **both)) == everything[1:]
        assert seqs(await mailbox.scan(seq_of(0, 3), **both)) == everything[3:]
        assert seqs(await mailbox.scan(**(both | {"up_to_seq": seq_of(9)}))) == everything[:2]

    async def test_an_epoch_raise_inside_an_incarnation_keeps_its_keys(
        self, mailbox: Mailbox
    ) -> None:
        await mailbox.fill(4)
        raised = mailbox.entry(5, epoch=2)
        section = mailbox.section([raised])._replace(base_epoch=1, w_epoch=2)
        assert (await mailbox.harness.store.append_page([section]))[0].code == "ok"
        found = await mailbox.scan(seq_of(4), up_to_seq=seq_of(5, 2))
        assert (found.entries, found.covered_through) == ([raised.member], seq_of(5, 2))

    @pytest.mark.contract("EVT-06", "EVT-07", "MBX-50")
    async def test_a_group_is_returned_whole_above_the_item_limit(self, mailbox: Mailbox) -> None:
        groups = [mailbox.entry(o, ordinal=n) for o in (1, 2) for n in range(4)]
        await mailbox.append(*groups)
        found = await mailbox.scan(max_items=1)
        assert offsets(found) == [1, 1, 1, 1]
        assert (found.covered_through, found.has_more) == (seq_of(1), True)
        rest = await mailbox.scan(found.covered_through, max_items=1, up_to=2)
        assert (offsets(rest), rest.has_more) == ([2, 2, 2, 2], False)

    @pytest.mark.contract("EVT-06", "EVT-07")
    async def test_the_byte_limit_cuts_at_a_group_and_always_moves_on(
        self, mailbox: Mailbox
    ) -> None:
        await mailbox.append(*(mailbox.entry(o, size=3000) for o in range(20)))
        after, seen = ZERO_CURSOR, []
        while True:
            found = await mailbox.scan(after, max_bytes=7000, up_to=19)
            assert 1 <= len(found.entries) <= 3
            seen += offsets(found)
            after = found.covered_through
            if not found.has_more:
                break
        assert seen == list(range(20))

    async def test_many_pages_give_everything_once(self, mailbox: Mailbox) -> None:
        for first in range(0, 300, 50):
            page = [
                mailbox.entry(o, day=-(o % 3), ordinal=n)
                for o in range(first, first + 50)
                for n in (0, 1)
            ]
            assert (await mailbox.append(*page)).code == "ok"
        after, seen = ZERO_CURSOR, []
        while True:
            found = await mailbox.scan(after, max_items=17, up_to=299)
            seen += offsets(found)
            after = found.covered_through
            if not found.has_more:
                break
        assert seen == [o for o in range(300) for _ in (0, 1)]

    @pytest.mark.contract("CUR-05", "MBX-41")
    async def test_heads_count_what_waits(self, mailbox: Mailbox) -> None:
        await mailbox.append(
            *(mailbox.entry(o, day=-(o % 2), ordinal=n) for o in range(5) for n in (0, 1))
        )
        scans = [scan_of(), scan_of(seq_of(1), 3), scan_of(user=OTHER)]
        expected = [MailboxHead(0, 10), MailboxHead(0, 4), MailboxHead(0, 0)]
        assert await mailbox.harness.store.heads(scans) == expected
        await mailbox.harness.store.truncate_before(TENANT, USER, 0, 1, seq_of(2))
        assert await mailbox.harness.store.heads(scans[:1]) == [MailboxHead(seq_of(1), 6)]
