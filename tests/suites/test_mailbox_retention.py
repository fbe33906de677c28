"""Shared mailbox suite: expiry, truncation, damage."""

import pytest

from schemas.constants import MAILBOX_RETENTION_DAYS
from stores.mailbox import ZERO_CURSOR, CursorExpired, MailboxDirty, MailboxHead, ScanResult
from tests.support.mailboxes import (
    OTHER,
    TENANT,
    USER,
    Damage,
    Mailbox,
    MailboxBase,
    member,
    offsets,
    scan_of,
    seq_of,
)

__all__ = ["MailboxRetention"]


class MailboxRetention(MailboxBase):
    """Forgetting, and refusing to guess."""

    @pytest.mark.contract("MBX-40", "MBX-41", "MBX-44", "CUR-10", "GATE-31")
    async def test_an_expired_day_ends_the_cursors_below_it(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1, 2, day=-1)
        await mailbox.fill(3, 4, day=0)
        await mailbox.harness.age(MAILBOX_RETENTION_DAYS)
        expired = await mailbox.scan_any(seq_of(1))
        assert isinstance(expired, CursorExpired)
        assert expired.effective_trim == seq_of(2)
        assert offsets(await mailbox.scan(seq_of(2))) == [3, 4]

    @pytest.mark.contract("MBX-54", "MBX-44")
    async def test_the_zero_cursor_is_never_expired(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1, day=-1)
        await mailbox.fill(2, day=0)
        await mailbox.harness.age(MAILBOX_RETENTION_DAYS)
        found = await mailbox.scan(ZERO_CURSOR)
        assert (offsets(found), found.effective_trim) == ([2], seq_of(1))

    @pytest.mark.contract("MBX-44", "MBX-33", "CUR-10")
    async def test_a_mailbox_that_expired_whole_still_ends_old_cursors(
        self, mailbox: Mailbox
    ) -> None:
        await mailbox.fill(1, 2)
        await mailbox.harness.age(MAILBOX_RETENTION_DAYS + 30)
        assert isinstance(await mailbox.scan_any(seq_of(1)), CursorExpired)
        assert offsets(await mailbox.scan(ZERO_CURSOR)) == []
        assert offsets(await mailbox.scan(seq_of(2))) == []

    @pytest.mark.contract("MBX-31", "MBX-40", "MBX-42")
    async def test_an_append_promotes_expired_days(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1, 2, day=-1)
        await mailbox.fill(3, day=0)
        await mailbox.harness.age(MAILBOX_RETENTION_DAYS)
        await mailbox.fill(9, day=MAILBOX_RETENTION_DAYS)
        assert isinstance(await mailbox.scan_any(seq_of(1)), CursorExpired)
        found = await mailbox.scan(seq_of(2))
        assert (offsets(found), found.effective_trim) == ([3, 9], seq_of(2))

    @pytest.mark.contract("MBX-21", "MBX-44")
    async def test_an_entry_keeps_for_the_full_retention(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1)
        await mailbox.harness.age(MAILBOX_RETENTION_DAYS)
        assert offsets(await mailbox.scan(ZERO_CURSOR)) == [1]
        await mailbox.harness.age(1)
        assert offsets(await mailbox.scan(ZERO_CURSOR)) == []

    @pytest.mark.contract("MBX-31", "MBX-40")
    async def test_an_entry_of_an_expired_day_only_raises_the_gap(self, mailbox: Mailbox) -> None:
        assert (
            await mailbox.append(mailbox.entry(5, day=-8), mailbox.entry(6, day=0))
        ).code == "ok"
        found = await mailbox.scan(ZERO_CURSOR)
        assert (offsets(found), found.effective_trim) == ([6], seq_of(5))
        assert isinstance(await mailbox.scan_any(seq_of(4)), CursorExpired)

    @pytest.mark.contract("MBX-23")
    async def test_entries_of_all_living_days_are_kept(self, mailbox: Mailbox) -> None:
        days = range(-MAILBOX_RETENTION_DAYS, 1)
        for at, day in enumerate(days):
            await mailbox.fill(at, day=day)
        assert offsets(await mailbox.scan()) == list(range(len(days)))
        await mailbox.fill(20, 21)  # the newest of many days
        assert offsets(await mailbox.scan())[-2:] == [20, 21]

    async def test_a_clock_one_day_ahead_is_borne_and_no_more(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1, day=1)
        await self.refused(mailbox, "future_day", mailbox.entry(2, day=2))

    @pytest.mark.contract("MBX-04", "MBX-40", "MBX-41", "MBX-55", "GATE-31")
    async def test_truncation_hides_what_is_below_for_good(self, mailbox: Mailbox) -> None:
        page = [mailbox.entry(o, day=-(o // 3)) for o in range(6)]
        await mailbox.append(*page)
        await mailbox.harness.store.truncate_before(TENANT, USER, 0, 1, seq_of(4))
        found = await mailbox.scan(ZERO_CURSOR)
        assert (offsets(found), found.effective_trim) == ([4, 5], seq_of(3))
        assert isinstance(await mailbox.scan_any(seq_of(2)), CursorExpired)
        assert offsets(await mailbox.scan(seq_of(3))) == [4, 5]
        assert (await mailbox.append(*page)).code == "ok"  # a replay brings nothing back
        assert offsets(await mailbox.scan(ZERO_CURSOR)) == [4, 5]

    @pytest.mark.contract("MBX-55")
    async def test_truncation_of_everything_leaves_a_usable_mailbox(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1, 2)
        await mailbox.harness.store.truncate_before(TENANT, USER, 0, 1, seq_of(3))
        assert offsets(await mailbox.scan(seq_of(2))) == []
        await mailbox.fill(3)
        assert offsets(await mailbox.scan(seq_of(2))) == [3]
        await mailbox.harness.store.truncate_before(
            TENANT, USER, 0, 1, seq_of(2)
        )  # never goes back
        assert (await mailbox.scan(seq_of(2))).effective_trim == seq_of(2)

    @pytest.mark.contract("MBX-32", "MBX-33", "MBX-42", "MBX-43", "MBX-52", "GATE-17", "GATE-31")
    @pytest.mark.parametrize("kind", list(Damage))
    async def test_damaged_proofs_refuse_writes_and_fail_reads(
        self, mailbox: Mailbox, kind: Damage
    ) -> None:
        await mailbox.fill(1, 2)
        await mailbox.harness.damage(kind, USER, mailbox.harness.day(0))
        await self.refused(mailbox, "corrupt", mailbox.entry(3))
        await self.refused(mailbox, "corrupt", mailbox.entry(3), mailbox.entry(4))
        before = await mailbox.harness.snapshot()
        with pytest.raises(MailboxDirty):
            await mailbox.harness.store.truncate_before(TENANT, USER, 0, 1, seq_of(2))
        scans = [scan_of(), scan_of(user=OTHER)]
        damaged, healthy = await mailbox.harness.store.range_scan(scans)
        assert isinstance(damaged, MailboxDirty)
        assert isinstance(healthy, ScanResult)
        head, other = await mailbox.harness.store.heads(scans)
        assert isinstance(head, MailboxDirty)
        assert other == MailboxHead(0, 0)
        assert await mailbox.harness.snapshot() == before

    @pytest.mark.contract("MBX-32", "MBX-33", "GATE-17")
    async def test_a_bucket_without_a_proof_is_not_written_to(self, mailbox: Mailbox) -> None:
        await mailbox.fill(1)
        await mailbox.harness.plant(USER, mailbox.harness.day(-1), 2, member(seq_of(2)))
        await self.refused(mailbox, "corrupt", mailbox.entry(3, day=-1))

    @pytest.mark.contract("MBX-42", "GATE-17")
    @pytest.mark.parametrize("kind", [Damage.DAY_INDEX_LOST, Damage.META_LOST, Damage.FORMAT_3])
    async def test_damage_stops_a_promotion_before_its_first_write(
        self, mailbox: Mailbox, kind: Damage
    ) -> None:
        await mailbox.fill(1, day=-1)
        await mailbox.fill(2, day=0)
        await mailbox.harness.age(MAILBOX_RETENTION_DAYS)
        await mailbox.harness.damage(kind, USER, mailbox.harness.day(0))
        await self.refused(mailbox, "corrupt", mailbox.entry(9, day=MAILBOX_RETENTION_DAYS))

    @pytest.mark.contract("MBX-56", "REG-10")
    @pytest.mark.parametrize(
        "foreign",
        [
            b"\x01\x00",
            b"\x02" + member(seq_of(2))[1:],
            member(seq_of(900)),
            member(seq_of(1), size=50),
        ],
        ids=["short", "unknown version", "sequence above the range", "sequence out of order"],
    )
    async def test_reg_10_a_damaged_entry_fails_the_page(
        self, mailbox: Mailbox, foreign: bytes
    ) -> None:
        await mailbox.fill(1, 3)
        await mailbox.harness.plant(USER, mailbox.harness.day(0), 2, foreign)
        assert isinstance(await mailbox.scan_any(up_to=3), MailboxDirty)
