"""MailboxStore in memory: the same rules as the scripts, for tests of everything above the store (GATE-31).

It keeps what Redis keeps (buckets with fixed expiry, proofs, day index, identity index, W) and checks the same proofs, so that
the shared suite holds both to one behaviour. A section is judged on copies that replace the originals when all of it passed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schemas.constants import (
    MAILBOX_RETENTION_DAYS,
    MAX_LOG_OFFSET,
    RETENTION_FORMAT_VERSION,
    SECONDS_PER_DAY,
    W_UNIFORM_BYTES,
    W_WIDE_BYTES,
)
from schemas.errors import QimError
from schemas.watermarks import PRESENCE_BYTES, W_LAYOUT, w_of
from stores.mailbox import (
    OK,
    AppendOutcome,
    EntryWrite,
    MailboxBehind,
    MailboxDirty,
    MailboxHead,
    ScanRequest,
    ScanResult,
    ShardAppend,
    StoredWatermark,
)
from stores.memory_leases import MemoryShardLeases
from stores.scan import (
    Bounds,
    DayRead,
    answer,
    bounds_of,
    effective_trim,
    promised_offset,
    read_limit,
)

__all__ = ["Bucket", "MemoryMailboxStore", "UserMailbox"]


def _expiry_of(day: int) -> int:
    return (day + MAILBOX_RETENTION_DAYS + 1) * SECONDS_PER_DAY


class _Refused(Exception):
    def __init__(self, code: str, detail: str, stored_w: bytes | None = None) -> None:
        super().__init__(detail)
        self.outcome = AppendOutcome(code, detail, stored_w)


@dataclass(slots=True)
class Bucket:
    """One day: members with their log offsets, gone at `expiry_s`."""

    expiry_s: int
    members: dict[bytes, int] = field(default_factory=dict)

    def between(self, bounds: Bounds) -> list[bytes]:
        """Members inside the bounds, in (log offset, bytes) order."""
        low = -1 if bounds.low is None else bounds.low
        high = MAX_LOG_OFFSET if bounds.high is None else bounds.high
        found = [(o, m) for m, o in self.members.items() if low < o <= high]
        return [member for _, member in sorted(found)]


@dataclass(slots=True)
class UserMailbox:
    """One user's mailbox of one incarnation; `proofs` day -> largest mailbox_seq, `index` and `identity` -> expiry."""

    version: int | None = None
    user_trim_seq: int = 0
    expired_gap: int = 0
    proofs: dict[int, int] = field(default_factory=dict)
    index: dict[int, int] = field(default_factory=dict)
    identity: dict[int, int] = field(default_factory=dict)
    buckets: dict[int, Bucket] = field(default_factory=dict)

    def expire(self, now_s: float) -> None:
        """What a server does by itself: drop what is past its expiry, and no proof."""
        self.buckets = {d: b for d, b in self.buckets.items() if b.expiry_s > now_s}
        if not any(expiry > now_s for expiry in self.identity.values()):
            self.identity = {}

    def gap_after_promotion(self, now_s: float) -> int:
        """The gap boundary once every expired day is promoted (MBX-40)."""
        expired = [seq for day, seq in self.proofs.items() if _expiry_of(day) <= now_s]
        return max([self.expired_gap, *expired])

    def promote(self, now_s: float) -> None:
        """Turn the proofs of expired days into the gap boundary (MBX-42)."""
        self.expired_gap = self.gap_after_promotion(now_s)
        for day in [day for day in self.proofs if _expiry_of(day) <= now_s]:
            del self.proofs[day], self.index[day]
        self.identity = {seq: at for seq, at in self.identity.items() if at > now_s}

    def verify(self) -> None:
        """Raise _Refused unless meta and day index prove each other (MBX-32, MBX-33)."""
        if self.version is None:
            if self.index or self.identity or self.buckets:
                raise _Refused("corrupt", "mailbox without meta")
        elif self.version != RETENTION_FORMAT_VERSION:
            raise _Refused("corrupt", "retention format")
        elif self.index != {day: _expiry_of(day) for day in self.proofs}:
            raise _Refused("corrupt", "day index")

    def verify_day(self, day: int) -> None:
        """Raise _Refused unless the bucket of an active day is what its proof says."""
        bucket, proof = self.buckets.get(day), self.proofs[day]
        if (
            bucket is None
            or bucket.expiry_s != _expiry_of(day)
            or max(bucket.members.values(), default=-1) != proof & MAX_LOG_OFFSET
        ):
            raise _Refused("corrupt", f"bucket {day}")

    def living(self, now_s: float) -> list[int]:
        """Active days that have not expired, ascending, each verified, and the identity index with them."""
        days = sorted(day for day in self.proofs if _expiry_of(day) > now_s)
        for day in days:
            self.verify_day(day)
        if days and max(self.identity.values(), default=0) < _expiry_of(days[-1]):
            raise _Refused("corrupt", "identity index")
        return days

    def add(self, entry: EntryWrite, now_s: float, before: UserMailbox) -> None:
        """Place one entry; `before` is the state that the whole page is judged against."""
        seq, day, offset = entry.mailbox_seq, entry.day, entry.log_offset
        expiry = _expiry_of(day)
        if seq < self.user_trim_seq:
            return  # truncated for good (MBX-04)
        if expiry <= now_s:
            self.expired_gap = max(self.expired_gap, seq)
            return
        if day > now_s // SECONDS_PER_DAY + 1:
            raise _Refused("future_day", f"sequence {seq:x}")
        before.verify_placing(day)
        if self.identity.get(seq, expiry) != expiry:
            raise _Refused("corrupt", f"sequence {seq:x} on a second day")
        if seq in before.identity:
            if before.buckets[day].members.get(entry.member) != offset:
                raise _Refused("conflict", f"sequence {seq:x}")
            return
        if day in before.buckets and offset in before.buckets[day].members.values():
            raise _Refused("corrupt", f"no identity of {seq:x}")
        self.buckets.setdefault(day, Bucket(expiry)).members[entry.member] = offset
        self.identity[seq] = expiry
        self.index[day] = expiry
        self.proofs[day] = max(self.proofs.get(day, 0), seq)

    def verify_placing(self, day: int) -> None:
        """Raise _Refused unless entries of `day` may be added to what is there."""
        if day not in self.proofs:
            if day in self.buckets:
                raise _Refused("corrupt", "bucket without proof")
            return
        self.verify_day(day)
        if self.identity.get(self.proofs[day]) != _expiry_of(day):
            raise _Refused("corrupt", "identity index")


_Key = tuple[int, int, int]


class MemoryMailboxStore:
    """The in-memory backend; `leases` is asked for the live term, `now_s` is the store's clock."""

    def __init__(self, leases: MemoryShardLeases, now_s: Callable[[], float] = time.time) -> None:
        self._leases = leases
        self._now_s = now_s
        self.mailboxes: dict[_Key, UserMailbox] = {}
        self.watermarks: dict[int, StoredWatermark] = {}

    def _mailbox(self, tenant: int, user: int, base_epoch: int) -> UserMailbox:
        mailbox = self.mailboxes.get((tenant, user, base_epoch), UserMailbox())
        mailbox.expire(self._now_s())
        return mailbox

    async def append_page(self, appends: Sequence[ShardAppend]) -> list[AppendOutcome]:
        """See MailboxStore."""
        outcomes = []
        for append in appends:
            try:
                self._append(append)
                outcomes.append(OK)
            except _Refused as refused:
                outcomes.append(refused.outcome)
        return outcomes

    def _append(self, append: ShardAppend) -> None:
        self._judge_header(append)
        now_s = self._now_s()
        users: dict[_Key, list[EntryWrite]] = {}
        for entry in append.entries:
            users.setdefault((entry.tenant, entry.user, append.base_epoch), []).append(entry)
        staged: dict[_Key, UserMailbox] = {}
        for key, entries in users.items():
            before = self._mailbox(*key)
            before.verify()
            after = copy.deepcopy(before)
            after.version = RETENTION_FORMAT_VERSION
            after.promote(now_s)
            for entry in entries:
                after.add(entry, now_s, before)
            staged[key] = after
        self.mailboxes.update(staged)
        self.watermarks[append.shard] = StoredWatermark(W_LAYOUT, append.w_epoch, append.new_w)

    def _judge_header(self, append: ShardAppend) -> None:
        term = self._leases.live_term(append.shard)
        if term != append.lease_term:
            raise _Refused("fenced", f"lease term {term}")
        stored = self.watermarks.get(append.shard)
        blob = None if stored is None else stored.blob
        if stored is not None:
            if (
                len(stored.blob) not in (W_UNIFORM_BYTES, W_WIDE_BYTES)
                or stored.blob[0] not in PRESENCE_BYTES
            ):
                raise _Refused("corrupt", "wm")
            if stored.epoch > append.w_epoch:
                raise _Refused("fenced", f"W epoch {stored.epoch}", blob)
        if blob != append.expected_w:
            raise _Refused("w_mismatch", "compare-and-set", blob)

    async def range_scan(self, scans: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
        """See MailboxStore."""
        results: list[ScanResult | QimError] = []
        for scan in scans:
            try:
                self._judge_w(scan)
                results.append(answer(scan, *self._read(scan)))
            except QimError as error:
                results.append(error)
            except _Refused as refused:
                results.append(MailboxDirty(refused.outcome.detail))
        return results

    def _judge_w(self, scan: ScanRequest) -> None:
        promised, stored = promised_offset(scan), self.watermarks.get(scan.shard)
        if promised is None or scan.lane is None:
            return
        if stored is None or w_of(stored.blob, scan.lane) < promised:
            raise MailboxBehind

    def _read(self, scan: ScanRequest) -> tuple[list[DayRead], int, int]:
        limit, now_s = read_limit(scan), self._now_s()
        days, trim, gap = [], 0, 0
        for base_epoch, bounds in zip(scan.base_epochs, bounds_of(scan), strict=True):
            mailbox = self._mailbox(scan.tenant, scan.user, base_epoch)
            mailbox.verify()
            trim = max(trim, mailbox.user_trim_seq)
            gap = max(gap, mailbox.gap_after_promotion(now_s))
            if bounds is not None:
                reads = [mailbox.buckets[day].between(bounds) for day in mailbox.living(now_s)]
                days += [DayRead(len(read) > limit, read[:limit]) for read in reads if read]
        return days, trim, gap

    async def heads(self, scans: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
        """See MailboxStore."""
        heads: list[MailboxHead | QimError] = []
        for scan in scans:
            try:
                days, trim, gap = self._read(scan._replace(max_items=MAX_LOG_OFFSET))
            except _Refused as refused:
                heads.append(MailboxDirty(refused.outcome.detail))
                continue
            heads.append(MailboxHead(effective_trim(trim, gap), sum(len(d.entries) for d in days)))
        return heads

    async def truncate_before(
        self, tenant: int, user: int, shard: int, base_epoch: int, seq: int
    ) -> None:
        """See MailboxStore."""
        del shard  # one process holds all shards
        mailbox = copy.deepcopy(self._mailbox(tenant, user, base_epoch))
        try:
            mailbox.verify()
            days = mailbox.living(self._now_s())
        except _Refused as refused:
            raise MailboxDirty(refused.outcome.detail) from None
        if mailbox.user_trim_seq >= seq:
            return
        mailbox.version, mailbox.user_trim_seq = RETENTION_FORMAT_VERSION, seq
        below = seq & MAX_LOG_OFFSET
        for day in days:
            members = mailbox.buckets[day].members
            mailbox.buckets[day].members = {m: o for m, o in members.items() if o >= below}
            if not mailbox.buckets[day].members:
                del mailbox.buckets[day], mailbox.proofs[day], mailbox.index[day]
        self.mailboxes[tenant, user, base_epoch] = mailbox

    async def watermark(self, shard: int) -> StoredWatermark | None:
        """See MailboxStore."""
        return self.watermarks.get(shard)
