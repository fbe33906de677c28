"""The canonical message as spliced bytes: encoded once at commit, never re-encoded downstream.

    MessageRecord = version byte || conversation_seq be8 || rest of the common part || the sender's own part
    OutboxRecord  = outbox head (audience, shards) || Avro bytes of the MessageRecord

The commit script allocates conversation_seq and stores `record_head || seq || record_tail` itself, so allocation and
the complete record are one atomic step without the script knowing any schema (COM-03, COM-15). Everything written
here is held equal to what the codecs of schemas/records.py write, by test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from schemas.constants import EVENT_GROUP_MAX_BYTES, INLINE_BODY_BUDGET_BYTES
from schemas.entry import ENTRY_HEAD_MAX_BYTES
from schemas.packing import ABSENT, PRESENT, avro_long, pack_longs, pack_optional

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
_LIVE: Final = avro_long(0)  # state


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
    kind = custom_type.encode()
    common_head = b"".join(
        (
            message_id,
            conversation_id,
            avro_long(sender),
            avro_long(committed_at_ms),
            avro_long(message_type),
            avro_long(len(kind)),
            kind,
            pack_optional(reply_to),
            ABSENT,  # visibility_floor_conversation_seq
        )
    )
    body_length = avro_long(len(body))
    common_bytes = _SEQ_BYTES + len(common_head) + 1 + len(body_length) + len(body)
    inlined: tuple[bytes, ...] = (PRESENT, body_length, body)
    stored: tuple[bytes, ...] = (ABSENT,)
    if (
        member_count * len(body) > INLINE_BODY_BUDGET_BYTES
        or event_group_bytes(common_bytes, mentions) > EVENT_GROUP_MAX_BYTES
    ):
        inlined, stored = stored, inlined
        common_bytes = _SEQ_BYTES + len(common_head) + 1
    tail = b"".join(
        (
            common_head,
            *inlined,
            tenant.to_bytes(16, "big"),
            message_id,  # last_activity_id: one HLC, one id space (SEQ-03)
            trace_id,
            client_message_id,
            sender_device_id,
            pack_longs(mentions),
            _LIVE,
            *stored,
        )
    )
    return MessageParts(_VERSION, tail, common_bytes)


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
    return b"".join(
        (
            _VERSION,
            tenant.to_bytes(16, "big"),
            message_id,
            avro_long(sender),
            pack_longs(recipients),
            ABSENT,  # membership_version: the audience is the list
            pack_longs(target_shards),
            avro_long(event_bytes),
        )
    )


def join_outbox(head: bytes, record: bytes) -> bytes:
    """Head and MessageRecord -> OutboxRecord bytes."""
    return head + avro_long(len(record)) + record
