"""MailboxStore (docs/stores.md): the four primitives of a mailbox backend and their value types (MBX-01 to MBX-04).

Positions are `mailbox_seq` (u63: `epoch << 48 | log_offset`) unless a name says `log_offset`. A user's entries live in one
key space per incarnation of the dispatch topic, named by the epoch with which the incarnation began (`base_epoch`);
scans merge all living incarnations in mailbox_seq order (OPEN-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from schemas.errors import ErrorCode, QimError, RequestError, StoreFault

__all__ = [
    "OK",
    "ZERO_CURSOR",
    "AppendOutcome",
    "CursorExpired",
    "EntryWrite",
    "MailboxBehind",
    "MailboxDirty",
    "MailboxHead",
    "MailboxStore",
    "ScanRequest",
    "ScanResult",
    "ShardAppend",
    "StoredWatermark",
]

ZERO_CURSOR: Final = 0  # nothing applied yet: below every mailbox_seq, offset 0 included (MBX-53)


class MailboxDirty(StoreFault):
    """A mailbox whose entries or retention proofs are damaged; the page fails as a whole (MBX-56, CUR-14)."""

    code = ErrorCode.MAILBOX_DIRTY


class CursorExpired(RequestError):
    """A non-zero cursor below what was trimmed or has expired (MBX-41); `effective_trim` is that boundary."""

    code = ErrorCode.CURSOR_EXPIRED

    def __init__(self, effective_trim: int) -> None:
        super().__init__(f"cursor below {effective_trim}")
        self.effective_trim = effective_trim


class MailboxBehind(RequestError):
    """The store has not what the watermark promises: it lost data that is being replayed (TAKE-05, CUR-14)."""

    code = ErrorCode.SHARD_MOVED

    def __init__(self) -> None:
        super().__init__("the mailbox is not caught up")


class EntryWrite(NamedTuple):
    """One encoded entry for one user; `day` is the UTC day number of committed_at (MBX-20)."""

    tenant: int
    user: int
    log_offset: int
    mailbox_seq: int
    day: int
    member: bytes


class ShardAppend(NamedTuple):
    """One shard's part of a page: all of it becomes visible, with `new_w`, or none of it (MBX-02, MBX-34).

    `expected_w` is the packed blob last stored (None: none yet), compared byte by byte (WM-04); `w_epoch` the epoch it
    belongs to. `lease_term` must be that of the shard's live lease.
    """

    shard: int
    lease_term: int
    base_epoch: int
    expected_w: bytes | None
    new_w: bytes
    w_epoch: int
    entries: Sequence[EntryWrite]


class AppendOutcome(NamedTuple):
    """`ok`, or why nothing of the section was written (codes: lua/append_page.lua).

    `stored_w` is the blob that Redis holds after a `w_mismatch` (None: none).
    """

    code: str
    detail: str = ""
    stored_w: bytes | None = None


OK: Final = AppendOutcome("ok")


class ScanRequest(NamedTuple):
    """One pull: entries in (after_seq, up_to_seq], cut at event groups (MBX-03).

    `base_epochs` names the living incarnations in ascending order. `max_items` and `max_bytes` are soft: the group that
    reaches one of them is still returned whole (EVT-06). With a `lane` the scan is refused (MailboxBehind) unless W of that
    lane in the store itself covers `up_to_seq`: a store that came back with less must not look like an empty one.
    """

    tenant: int
    user: int
    shard: int
    base_epochs: Sequence[int]
    after_seq: int
    up_to_seq: int
    max_items: int
    max_bytes: int
    lane: int | None = None


class ScanResult(NamedTuple):
    """Entries in (mailbox_seq, ordinal) order and how far they cover the range (MBX-51)."""

    entries: list[bytes]
    covered_through: int
    has_more: bool
    effective_trim: int


class MailboxHead(NamedTuple):
    """What a login needs to know: the trim boundary and how many entries wait in (after_seq, up_to_seq]."""

    effective_trim: int
    pending_entries: int


class StoredWatermark(NamedTuple):
    """W of a shard as stored (WM-20); decode `blob` with schemas.watermarks."""

    layout: str
    epoch: int
    blob: bytes


class MailboxStore(Protocol):
    """A mailbox backend. All backends pass one shared suite (GATE-31).

    A backend that does not answer shows as StoreFault (nothing happened) or StoreUnknownOutcome (replay): raised, except
    where an answer per item can hold it.
    """

    async def append_page(self, appends: Sequence[ShardAppend]) -> list[AppendOutcome]:
        """Write the sections of a page, each alone and atomically; one outcome a section, in order.

        A replay of the same entries writes nothing and is `ok`. Entries whose day has expired are not written but raise
        the expired-gap boundary; entries below an explicit trim are not brought back.
        """

    async def range_scan(self, scans: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
        """Answer a page of pulls; MailboxDirty, CursorExpired or a store error is the answer of its item only."""

    async def heads(self, scans: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
        """Trim boundary and number of waiting entries for a page of logins (CUR-05); limits are ignored.

        `effective_trim` is the largest mailbox_seq that may be gone: a non-zero cursor below it has expired.
        """

    async def truncate_before(
        self, tenant: int, user: int, shard: int, base_epoch: int, seq: int
    ) -> None:
        """Make entries below `seq` invisible for good (MBX-04, MBX-55); raises MailboxDirty on damage."""

    async def watermark(self, shard: int) -> StoredWatermark | None:
        """W of the shard as stored, None when there is none; raises MailboxDirty when it is damaged."""
