"""Range scans, the part that every backend shares: which scores to read, how to merge, where to cut. Pure.

A backend reads each day bucket of each living incarnation and hands over what it found; the rest, from the damage checks to
the cut at an event group, happens here, so that all backends answer alike (MBX-50 to MBX-56, EVT-06, EVT-07).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from schemas.constants import EVENT_GROUP_MAX_ENTRIES, LOG_OFFSET_BITS, MAX_LOG_OFFSET
from schemas.entry import ENTRY_VERSION
from stores.mailbox import ZERO_CURSOR, CursorExpired, MailboxDirty, ScanRequest, ScanResult

__all__ = [
    "Bounds",
    "DayRead",
    "answer",
    "bounds_of",
    "effective_trim",
    "promised_offset",
    "read_limit",
]

_KEY_BYTES: Final = 10  # version, mailbox_seq, ordinal: entries sort by it as plain bytes
_SEQ_END: Final = 9


class Bounds(NamedTuple):
    """Log offsets (low, high] to read of one incarnation; None is an open end."""

    low: int | None
    high: int | None


class DayRead(NamedTuple):
    """What was read of one day, in score order; `cut`: more of that day may follow its last entry."""

    cut: bool
    entries: Sequence[bytes]


def _incarnation(base_epochs: Sequence[int], seq: int) -> int:
    """Index of the incarnation that a position belongs to, -1 when it lies below the first."""
    epoch = seq >> LOG_OFFSET_BITS
    return sum(base <= epoch for base in base_epochs) - 1


def bounds_of(scan: ScanRequest) -> list[Bounds | None]:
    """Bounds for each base epoch of a scan; None where nothing of that incarnation can be part of the answer.

    The zero cursor has no lower bound, so that offset 0 is part of the answer (MBX-53).
    """
    zero = scan.after_seq == ZERO_CURSOR
    first = -1 if zero else _incarnation(scan.base_epochs, scan.after_seq)
    last = _incarnation(scan.base_epochs, scan.up_to_seq)
    after, up_to = scan.after_seq & MAX_LOG_OFFSET, scan.up_to_seq & MAX_LOG_OFFSET
    return [
        (
            Bounds(after if i == first and not zero else None, up_to if i == last else None)
            if first <= i <= last
            else None
        )
        for i in range(len(scan.base_epochs))
    ]


def promised_offset(scan: ScanRequest) -> int | None:
    """The log offset that W of the scan's lane must have reached in the store; None when nothing is asked of it.

    W speaks of the newest incarnation only; older ones do not change any more.
    """
    newest = len(scan.base_epochs) - 1
    if scan.lane is None or _incarnation(scan.base_epochs, scan.up_to_seq) != newest:
        return None
    return scan.up_to_seq & MAX_LOG_OFFSET


def read_limit(scan: ScanRequest) -> int:
    """Entries to read of one day: enough that a cut last group leaves `max_items` whole ones before it."""
    return max(1, scan.max_items) + EVENT_GROUP_MAX_ENTRIES


def effective_trim(user_trim_seq: int, expired_gap: int) -> int:
    """The largest mailbox_seq that may be gone (MBX-41): all below the explicit trim, all up to the expired gap."""
    return max(user_trim_seq - 1, expired_gap, 0)


def _keys(days: Sequence[DayRead]) -> list[list[bytes]]:
    """Sort keys of each day, checked: known version, long enough, in strict order (MBX-56)."""
    keys = [[entry[:_KEY_BYTES] for entry in day.entries] for day in days]
    for day in keys:
        if any(len(key) != _KEY_BYTES or key[0] != ENTRY_VERSION for key in day):
            raise MailboxDirty("entry of unknown version or length")
        if any(low >= high for low, high in pairwise(day)):
            raise MailboxDirty("entries out of order")
    return keys


def _merge(days: Sequence[DayRead], scan: ScanRequest) -> tuple[list[bytes], bool]:
    """All entries known to be complete, in (mailbox_seq, ordinal) order, and whether more may follow."""
    keys = _keys(days)
    # The last group of a day whose read was cut may lack entries: it and all above it wait for the next page.
    horizon = min(
        (k[-1][:_SEQ_END] for k, day in zip(keys, days, strict=True) if day.cut), default=None
    )
    entries = [entry for day in days for entry in day.entries]
    if len(days) > 1:
        entries.sort(key=lambda entry: entry[:_KEY_BYTES])
        if any(a[:_KEY_BYTES] == b[:_KEY_BYTES] for a, b in pairwise(entries)):
            raise MailboxDirty("the same entry on two days")
    if horizon is not None:
        entries = [entry for entry in entries if entry[:_SEQ_END] < horizon]
    if entries:
        low, high = _seq(entries[0]), _seq(entries[-1])
        if low <= scan.after_seq or high > scan.up_to_seq:
            raise MailboxDirty("entry whose position differs from its score")
    return entries, horizon is not None


def _seq(entry: bytes) -> int:
    return int.from_bytes(entry[1:_SEQ_END], "big")


def _cut(entries: Sequence[bytes], scan: ScanRequest, floor: int) -> int:
    """Number of entries to return: the first group boundary at which a limit is reached (EVT-07)."""
    total, at = 0, 0
    previous = entries[0][:_SEQ_END] if entries else b""
    for at, entry in enumerate(entries):
        group = entry[:_SEQ_END]
        if group != previous:
            # A boundary below the trim would become a cursor that is expired at once.
            if (at >= scan.max_items or total >= scan.max_bytes) and _seq(entries[at - 1]) >= floor:
                return at
            previous = group
        total += len(entry)
    return len(entries)


def answer(
    scan: ScanRequest, days: Sequence[DayRead], user_trim_seq: int, expired_gap: int
) -> ScanResult:
    """The result of a scan from what the buckets held; `days` were read within `bounds_of(scan)`.

    Raises CursorExpired for a non-zero cursor below the effective trim (MBX-54: never for the zero cursor) and
    MailboxDirty for damage; a damaged entry is never left out (MBX-56).
    """
    trim = effective_trim(user_trim_seq, expired_gap)
    if scan.after_seq != ZERO_CURSOR and scan.after_seq < trim:
        raise CursorExpired(trim)
    entries, more = _merge(days, scan)
    end = _cut(entries, scan, trim if scan.after_seq == ZERO_CURSOR else 0)
    if end == len(entries) and not more:
        return ScanResult(entries, max(scan.after_seq, scan.up_to_seq), False, trim)
    del entries[end:]
    if not entries:
        raise MailboxDirty("an event group above its entry limit")
    return ScanResult(entries, _seq(entries[-1]), True, trim)
