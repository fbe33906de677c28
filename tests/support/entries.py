"""Mailbox entries for tests that look at one of their fields."""

from schemas.entry import EventType, encode_common, encode_entry_head

__all__ = ["entry_bytes"]


def entry_bytes(
    message: int = 1,
    *,
    seq: int = 5,
    event_type: int = EventType.MESSAGE,
    cmid: bytes | None = None,
    conversation_id: bytes = b"c" * 16,
    conversation_seq: int = 1,
    event_id: bytes = b"event-id",
    body: bytes | None = b"hello",
) -> bytes:
    """One encoded entry; whatever is not named has some legal value."""
    head = encode_entry_head(seq, event_type, event_id, 3, 0, cmid)
    return head + encode_common(
        {
            "conversation_seq": conversation_seq.to_bytes(8, "big"),
            "message_id": message.to_bytes(16, "big"),
            "conversation_id": conversation_id,
            "sender_id": 2**62,
            "created_at_ms": 1_700_000_000_000,
            "message_type": 1,
            "custom_type": "",
            "reply_to": None,
            "visibility_floor_conversation_seq": None,
            "body": body,
        }
    )
