"""The canonical message as spliced bytes: encoded once at commit, never re-encoded downstream.

    MessageRecord = version byte || conversation_seq be8 || rest of the common part || the sender's own part
    OutboxRecord  = outbox head (audience, shards) || Avro bytes of the MessageRecord

The commit script allocates conversation_seq and stores `record_head || seq || record_tail` itself, so allocation and
the complete record are one atomic step without the script knowing any schema (COM-03, COM-15). Everything written
here is held equal to what the codecs of schemas/records.py write, by test.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fastavro import parse_schema, schemaless_writer

from schemas.codec import load_schema
from schemas.constants import EVENT_GROUP_MAX_BYTES, INLINE_BODY_BUDGET_BYTES
from schemas.entry import ENTRY_HEAD_MAX_BYTES, encode_common
from schemas.records import EventCommon

__all__ = [
    "MessageParts",
    "encode_message",
    "encode_outbox_head",
    "event_group_bytes",
    "join_outbox",
    "join_record",
]

_VERSION: Final = b"\x01"
_SEQ_BYTES: Final = 8


def _without(name: str, keep: slice) -> Any:
    schema = dict(load_schema(name, 1))
    fields: list[dict[str, Any]] = schema["fields"][keep]
    if (
        keep.start == 1
    ):  # the skipped first field defines the 16-byte type that the others only name
        fields = [dict(field) for field in fields]
        fields[0]["type"] = {"type": "fixed", "name": "Bytes16", "size": 16}
    schema["fields"] = fields
    return parse_schema(schema, named_schemas={})


_PRIVATE_SCHEMA: Final = _without("message_record", slice(1, None))
_OUTBOX_HEAD_SCHEMA: Final = _without("outbox_record", slice(None, -1))


class MessageParts(NamedTuple):
    """`record_head || conversation_seq be8 || record_tail` is the MessageRecord; `event_bytes` counts its common part."""

    record_head: bytes
    record_tail: bytes
    event_bytes: int


def event_group_bytes(common_bytes: int, mentions: Sequence[int]) -> int:
    """The largest event group that a common part can make: a second entry for whoever is mentioned (EVT-02)."""
    return (common_bytes + ENTRY_HEAD_MAX_BYTES) * (2 if mentions else 1)


def encode_message(
    *,
    tenant: int,
    message_id: bytes,
    trace_id: bytes,
    conversation_id: bytes,
    sender: int,
    sender_device_id: bytes,
    client_message_id: bytes,
    committed_at_ms: int,
    message_type: int,
    custom_type: str,
    body: bytes,
    mentions: tuple[int, ...],
    reply_to: bytes | None,
    member_count: int,
) -> MessageParts:
    """Encode everything that is known before conversation_seq is allocated.

    The body is inlined when members x bytes stay within the budget (DISP-04) and no recipient's event group grows
    above its limit (EVT-02); else the common part says "not included" and the record keeps it in `stored_body`.
    """
    event: EventCommon = {
        "conversation_seq": bytes(_SEQ_BYTES),
        "message_id": message_id,
        "conversation_id": conversation_id,
        "sender_id": sender,
        "created_at_ms": committed_at_ms,
        "message_type": message_type,
        "custom_type": custom_type,
        "reply_to": reply_to,
        "visibility_floor_conversation_seq": None,
        "body": body,
    }
    common = encode_common(event)
    inline = member_count * len(body) <= INLINE_BODY_BUDGET_BYTES
    if not inline or event_group_bytes(len(common), mentions) > EVENT_GROUP_MAX_BYTES:
        inline, event["body"] = False, None
        common = encode_common(event)
    out = io.BytesIO()
    out.write(common[_SEQ_BYTES:])
    private = {
        "tenant_id": tenant.to_bytes(16, "big"),
        "last_activity_id": message_id,  # one HLC, one id space (SEQ-03)
        "trace_id": trace_id,
        "client_message_id": client_message_id,
        "sender_device_id": sender_device_id,
        "mentions": list(mentions),
        "state": 0,
        "stored_body": None if inline else body,
    }
    schemaless_writer(out, _PRIVATE_SCHEMA, private)
    return MessageParts(_VERSION, out.getvalue(), len(common))


def join_record(parts: MessageParts, conversation_seq: int) -> bytes:
    """The MessageRecord bytes, as the commit script stores them."""
    return parts.record_head + conversation_seq.to_bytes(_SEQ_BYTES, "big") + parts.record_tail


def encode_outbox_head(
    tenant: int,
    message_id: bytes,
    sender: int,
    recipients: list[int],
    target_shards: list[int],
    event_bytes: int,
) -> bytes:
    """An OutboxRecord up to its last field; kept with the intent so that a recoverer can publish it (COM-03)."""
    out = io.BytesIO()
    out.write(_VERSION)
    head = {
        "tenant_id": tenant.to_bytes(16, "big"),
        "message_id": message_id,
        "sender_id": sender,
        "recipients": recipients,
        "membership_version": None,
        "target_shards": target_shards,
        "event_bytes": event_bytes,
    }
    schemaless_writer(out, _OUTBOX_HEAD_SCHEMA, head)
    return out.getvalue()


def join_outbox(head: bytes, record: bytes) -> bytes:
    """Head and MessageRecord -> OutboxRecord bytes."""
    return head + _avro_length(len(record)) + record


def _avro_length(length: int) -> bytes:
    value = length << 1  # zigzag of a non-negative number
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
