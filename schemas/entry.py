"""Mailbox entry bytes: what the mailbox stores, what a pull and a push carry, what a client decodes.

    entry = head || common
    head   = version byte 1 || mailbox_seq be8 || Avro EntryHead     a recipient's own part
    common = Avro EventCommon, encoded once per message              the same bytes for every recipient

`entry[1:9]` is always the mailbox_seq and `entry[9]` the ordinal, so that the entries of one event group (one
mailbox_seq) sort by ordinal as plain bytes and servers pass entries on without decoding them (EVT-01, EVT-03, EVT-13,
OPEN-06; frozen in tests/vectors/entries.json).
"""

from __future__ import annotations

import io
from enum import IntEnum, IntFlag
from typing import Final, TypedDict, cast

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from schemas.codec import load_schema
from schemas.errors import RecordError
from schemas.records import EventCommon

__all__ = [
    "ENTRY_HEAD_MAX_BYTES",
    "ENTRY_VERSION",
    "EntryFlag",
    "EventType",
    "MailboxEntry",
    "MessageType",
    "decode_entry",
    "encode_common",
    "encode_entry_head",
    "entry_mailbox_seq",
]

ENTRY_VERSION: Final = 1


class EventType(IntEnum):
    """Event types; each value is its fixed ordinal inside an event group (EVT-03)."""

    MESSAGE = 0
    MENTION = 1
    MEMBERSHIP = 2
    CONTROL = 3


class MessageType(IntEnum):
    """Known values of the raw u32; unknown ones are carried unchanged (SEQ-17)."""

    UNKNOWN = 0
    TEXT = 1
    MEDIA = 2
    CUSTOM = 3
    CONTROL = 4


class EntryFlag(IntFlag):
    """Flags of an entry (EVT-09)."""

    COUNTS_UNREAD = 1
    AFFECTS_SESSION_ORDER = 2


class MailboxEntry(TypedDict):
    """A decoded entry (EVT-08)."""

    mailbox_seq: int
    event_ordinal: int
    event_type: int
    event_id: bytes
    flags: int
    mention_type: int
    client_message_id: bytes | None
    event: EventCommon


_HEAD_SCHEMA: Final = parse_schema(load_schema("entry_head", 1), named_schemas={})
_COMMON_SCHEMA: Final = parse_schema(load_schema("event_common", 1), named_schemas={})
_VERSION_BYTE: Final = bytes([ENTRY_VERSION])
_SEQ_END: Final = 9
ENTRY_HEAD_MAX_BYTES: Final = _SEQ_END + 2 + 8 + 2 + 17  # with a client_message_id
# EntryHead is four small zigzag ints, 8 raw bytes and an optional fixed: packed by hand, a hundredth of the entry's
# cost through the Avro writer; a test holds it equal to what fastavro writes.
_ZIGZAG_LIMIT: Final = 64


def _small(value: int) -> int:
    if not 0 <= value < _ZIGZAG_LIMIT:
        raise RecordError(f"entry head value {value} out of range")
    return value << 1


def encode_common(event: EventCommon) -> bytes:
    """Avro bytes of the common part; its first 8 bytes are the conversation_seq."""
    out = io.BytesIO()
    try:
        schemaless_writer(out, _COMMON_SCHEMA, event)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise RecordError(f"event_common: cannot encode: {error}") from error
    return out.getvalue()


def encode_entry_head(
    mailbox_seq: int,
    event_type: int,
    event_id: bytes,
    flags: int,
    mention_type: int,
    client_message_id: bytes | None,
) -> bytes:
    """The recipient's part of an entry; event_ordinal equals event_type (EVT-03)."""
    ordinal = _small(event_type)
    tail = b"\x00" if client_message_id is None else b"\x02" + client_message_id
    return (
        _VERSION_BYTE
        + mailbox_seq.to_bytes(8, "big")
        + bytes((ordinal, ordinal))
        + event_id
        + bytes((_small(flags), _small(mention_type)))
        + tail
    )


def entry_mailbox_seq(entry: bytes) -> int:
    """mailbox_seq of encoded entry bytes; raises RecordError when version, length or bit 63 (SEQ-10) are wrong."""
    if len(entry) <= _SEQ_END or entry[0] != ENTRY_VERSION or entry[1] & 0x80:
        raise RecordError("mailbox entry of unknown version or length")
    return int.from_bytes(entry[1:_SEQ_END], "big")


def decode_entry(entry: bytes) -> MailboxEntry:
    """Decode a whole entry; raises RecordError on damage or trailing bytes, never returns a part (MBX-56)."""
    seq = entry_mailbox_seq(entry)
    source = io.BytesIO(entry)
    source.seek(_SEQ_END)
    try:
        head = cast("dict[str, object]", schemaless_reader(source, _HEAD_SCHEMA, None))
        event = cast("EventCommon", schemaless_reader(source, _COMMON_SCHEMA, None))
    except Exception as error:  # damage may raise almost anything inside the Avro reader
        raise RecordError("mailbox entry: malformed") from error
    if source.tell() != len(entry):
        raise RecordError("mailbox entry: trailing bytes")
    return cast("MailboxEntry", {"mailbox_seq": seq, **head, "event": event})
