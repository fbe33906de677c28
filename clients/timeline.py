"""What one device has seen: entries read lazily, each shown once, and the cursor that says how far it has applied.

An entry is decoded only as far as it is looked at: the fixed places of schemas/entry.py are sliced, the Avro reader runs
for a body alone. Only `apply_batch` moves the cursor (CUR-02); a push is shown and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from schemas.entry import ENTRY_VERSION, MailboxEntry, decode_entry
from schemas.errors import RecordError
from schemas.wire import CursorKind

__all__ = ["Entry", "Timeline"]

_TYPE_AT: Final = 10
_EVENT_ID: Final = slice(11, 19)
_FLAGS_AT: Final = 19
_CMID_MARK_AT: Final = 21
_CMID: Final = slice(22, 38)
_COMMON_AT: Final = {
    0: 22,
    2: 38,
}  # after the mark of the optional client_message_id: null, or 16 bytes
_COMMON_MIN_BYTES: Final = 40
_REMEMBERED_EVENTS: Final = 50_000
"""Events of one generation of the dedup memory. Pushes repeat what the next pull brings, so a second's worth would do;
this covers a flood of them, and costs 4 MB a device when full."""


class Entry:
    """One mailbox entry; raises RecordError for bytes that are none. Equality is that of the bytes."""

    __slots__ = ("_common_at", "raw")

    def __init__(self, raw: bytes) -> None:
        common_at = _COMMON_AT.get(raw[_CMID_MARK_AT]) if len(raw) > _CMID_MARK_AT else None
        if common_at is None or raw[0] != ENTRY_VERSION or len(raw) < common_at + _COMMON_MIN_BYTES:
            raise RecordError("mailbox entry of unknown version or length")
        self.raw = raw
        self._common_at = common_at

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    @property
    def mailbox_seq(self) -> int:
        """Position in this user's mailbox."""
        return int.from_bytes(self.raw[1:9], "big")

    @property
    def event_type(self) -> int:
        """Raw event type (EVT-03)."""
        return self.raw[_TYPE_AT] >> 1

    @property
    def event_id(self) -> bytes:
        """8 bytes (EVT-04)."""
        return self.raw[_EVENT_ID]

    @property
    def flags(self) -> int:
        """Bits of schemas.entry.EntryFlag (EVT-09)."""
        return self.raw[_FLAGS_AT] >> 1

    @property
    def client_message_id(self) -> bytes | None:
        """16 bytes on the sender's own entry, None on everybody else's (EVT-10)."""
        return self.raw[_CMID] if self.raw[_CMID_MARK_AT] else None

    @property
    def conversation_seq(self) -> int:
        """Position in the conversation."""
        at = self._common_at
        return int.from_bytes(self.raw[at : at + 8], "big")

    @property
    def message_id(self) -> bytes:
        """16 bytes big-endian."""
        at = self._common_at + 8
        return self.raw[at : at + 16]

    @property
    def conversation_id(self) -> bytes:
        """16 bytes."""
        at = self._common_at + 24
        return self.raw[at : at + 16]

    @property
    def identity(self) -> bytes:
        """What makes two entries the same event of the same message, also when a shard split moved it (SDK-02)."""
        at = self._common_at + 8
        return self.raw[_TYPE_AT : _TYPE_AT + 1] + self.raw[at : at + 16]

    def decode(self) -> MailboxEntry:
        """Return every field; raises RecordError on damage."""
        return decode_entry(self.raw)


class Timeline:
    """Dedup memory and cursor of one device; entries themselves are kept only if `keep` says so."""

    __slots__ = ("_older", "_seen", "cursor", "cursor_kind", "cursor_seq", "entries", "keep")

    def __init__(self, *, keep: bool, start: CursorKind = CursorKind.ZERO) -> None:
        self.keep = keep
        self.entries: list[Entry] = []
        self.cursor_kind = start
        self.cursor = b""
        self.cursor_seq = 0
        self._seen: set[bytes] = set()
        self._older: set[bytes] = set()

    def show(self, raw_entries: Iterable[bytes]) -> list[Entry]:
        """Return the entries not shown before, in order; raises RecordError on damage, before anything is shown."""
        entries = [Entry(raw) for raw in raw_entries]
        fresh: list[Entry] = []
        for entry in entries:
            identity = entry.identity
            if identity in self._seen or identity in self._older:
                continue
            self._seen.add(identity)
            fresh.append(entry)
        if len(self._seen) > _REMEMBERED_EVENTS:
            self._older, self._seen = self._seen, set()
        if self.keep:
            self.entries += fresh
        return fresh

    def apply_batch(
        self, raw_entries: Sequence[bytes], covered_through_seq: int, cursor: bytes
    ) -> list[Entry]:
        """Show a stretch that joins the cursor and move the cursor to its end; the only place that moves it."""
        fresh = self.show(raw_entries)
        self.adopt_cursor(covered_through_seq, cursor)
        return fresh

    def adopt_cursor(self, seq: int, cursor: bytes) -> None:
        """Take the server's signed cursor for `seq`: of a batch, of ONLINE_READY, or of CURSOR_REBASED."""
        self.cursor_seq = seq
        self.cursor = cursor
        self.cursor_kind = CursorKind.TOKEN

    def conversation(self, conversation_id: bytes) -> list[Entry]:
        """Return the kept entries of one conversation in its order."""
        mine = [entry for entry in self.entries if entry.conversation_id == conversation_id]
        return sorted(mine, key=lambda entry: entry.conversation_seq)
