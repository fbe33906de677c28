"""The one suite that every mailbox backend passes (GATE-31), and the harness that a backend brings for it.

Days are counted from a harness's own beginning: `harness.day(0)` is the day on which the test began, `age(n)` lets n days pass.
The harness answers for what no test can wait for (natural expiry) and what no API does (damage).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest

from schemas.constants import MAILBOX_RETENTION_DAYS
from schemas.errors import QimError
from schemas.watermarks import pack_uniform
from stores.leases import LeaseGrant, ShardLeases
from stores.mailbox import (
    ZERO_CURSOR,
    AppendOutcome,
    CursorExpired,
    EntryWrite,
    MailboxDirty,
    MailboxHead,
    MailboxStore,
    ScanRequest,
    ScanResult,
    ShardAppend,
)

__all__ = [
    "TENANT",
    "USER",
    "Damage",
    "Mailbox",
    "MailboxHarness",
    "MailboxSuite",
    "member",
    "offsets",
    "scan_of",
    "seq_of",
]

TENANT, USER, OTHER = 0, 7, 8
_LARGE = 1 << 20


class Damage(Enum):
    """What may be wrong with the proofs of one user's mailbox."""

    META_LOST = "meta lost"
    FORMAT_3 = "older retention format"
    PROOF_WRONG = "proof names another largest sequence"
    BUCKET_LOST = "bucket lost while its proof lives"
    DAY_INDEX_LOST = "day index lost"
    IDENTITY_LOST = "identity index lost"
    EXPIRY_MOVED = "bucket with another expiry"


class MailboxHarness(ABC):
    """One backend, empty at the beginning of a test."""

    store: MailboxStore
    leases: ShardLeases

    @abstractmethod
    def day(self, number: int) -> int:
        """UTC day number of the test's day `number`, as seen now."""

    @abstractmethod
    async def age(self, days: int) -> None:
        """Let days pass for everything stored."""

    @abstractmethod
    async def damage(self, kind: Damage, user: int, day: int) -> None:
        """Damage the mailbox of a user (base epoch 1)."""

    @abstractmethod
    async def plant(self, user: int, day: int, log_offset: int, entry: bytes) -> None:
        """Put a foreign entry below the largest offset of a bucket, proofs untouched."""

    @abstractmethod
    async def forget_identity(self, user: int, seq: int) -> None:
        """Remove one sequence from the identity index."""

    @abstractmethod
    async def snapshot(self) -> object:
        """Everything stored, expiries included; equal snapshots mean that nothing was written."""

    @abstractmethod
    async def end_lease(self, shard: int) -> None:
        """Let the lease of a shard run out."""


def seq_of(log_offset: int, epoch: int = 1) -> int:
    """mailbox_seq of an offset."""
    return epoch << 48 | log_offset


def member(seq: int, ordinal: int = 0, size: int = 100) -> bytes:
    """Entry bytes of a given length; what follows the ordinal is opaque to stores."""
    head = b"\x01" + seq.to_bytes(8, "big") + bytes([ordinal << 1])
    return head + bytes((seq + ordinal + i) % 251 for i in range(size - len(head)))


def scan_of(after: int = ZERO_CURSOR, up_to: int = _LARGE, **fields: Any) -> ScanRequest:
    """A pull of USER on shard 0 up to offset `up_to` of epoch 1."""
    scan = ScanRequest(TENANT, USER, 0, (1,), after, seq_of(up_to), 1000, _LARGE)
    return scan._replace(**fields)


class Mailbox:
    """Writes as a shard's worker does: one lease, W kept from page to page."""

    def __init__(self, harness: MailboxHarness, shard: int = 0) -> None:
        self.harness = harness
        self.shard = shard
        self.term = 0
        self.w: bytes | None = None

    async def lease(self, owner: str = "worker") -> None:
        """Take the shard."""
        grant = await self.harness.leases.acquire(self.shard, owner, 60_000)
        assert isinstance(grant, LeaseGrant)
        self.term = grant.term

    def section(
        self, entries: Sequence[EntryWrite], w: int | None = None, epoch: int = 1
    ) -> ShardAppend:
        """A section that advances W to the last entry (or to `w`)."""
        reached = entries[-1].log_offset if w is None else w
        return ShardAppend(
            self.shard, self.term, epoch, self.w, pack_uniform(reached), epoch, entries
        )

    async def append(
        self, *entries: EntryWrite, w: int | None = None, epoch: int = 1
    ) -> AppendOutcome:
        """Append one page; W follows when it was stored."""
        if not self.term:
            await self.lease()
        section = self.section(entries, w, epoch)
        (outcome,) = await self.harness.store.append_page([section])
        if outcome.code == "ok":
            self.w = section.new_w
        return outcome

    def entry(
        self,
        offset: int,
        day: int = 0,
        user: int = USER,
        ordinal: int = 0,
        size: int = 100,
        epoch: int = 1,
    ) -> EntryWrite:
        """One entry of the test's day `day`."""
        seq = seq_of(offset, epoch)
        bytes_ = member(seq, ordinal, size)
        return EntryWrite(TENANT, user, offset, seq, self.harness.day(day), bytes_)

    async def fill(self, *offsets: int, day: int = 0) -> None:
        """Append one page of single entries; must succeed."""
        assert (await self.append(*(self.entry(o, day) for o in offsets))).code == "ok"

    async def scan(
        self, after: int = ZERO_CURSOR, up_to: int = _LARGE, **fields: Any
    ) -> ScanResult:
        """Pull; must succeed."""
        found = await self.scan_any(after, up_to, **fields)
        assert isinstance(found, ScanResult), found
        return found

    async def scan_any(
        self, after: int = ZERO_CURSOR, up_to: int = _LARGE, **fields: Any
    ) -> ScanResult | QimError:
        """Pull; whatever the answer."""
        (found,) = await self.harness.store.range_scan([scan_of(after, up_to, **fields)])
        return found


def offsets(found: ScanResult) -> list[int]:
    """Log offsets of the entries, one each."""
    return [int.from_bytes(entry[1:9], "big") & ((1 << 48) - 1) for entry in found.entries]


class MailboxSuite:
    """Inherit it in a test module that provides the fixture `harness`."""

    @pytest.fixture
    def mailbox(self, harness: MailboxHarness) -> Mailbox:
        return Mailbox(harness)

    # --- what was written is read ---------------------------------------------------------------------------

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

    # --- cuts ------------------------------------------------------------------------------------------------

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

    # --- replay ----------------------------------------------------------------------------------------------

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

    # --- fencing and W ---------------------------------------------------------------------------------------

    async def refused(self, mailbox: Mailbox, code: str, *entries: EntryWrite) -> AppendOutcome:
        """Append what must be refused without a write; another user of the page suffers with it."""
        if not mailbox.term:
            await mailbox.lease()
        before = await mailbox.harness.snapshot()
        outcome = await mailbox.append(mailbox.entry(50, user=OTHER), *entries)
        assert outcome.code == code, outcome
        assert await mailbox.harness.snapshot() == before
        return outcome

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

    # --- expiry and truncation -------------------------------------------------------------------------------

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

    # --- login -----------------------------------------------------------------------------------------------

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

    # --- damage ----------------------------------------------------------------------------------------------

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
