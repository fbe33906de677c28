"""One full and one minimal example of every record, for codecs, vectors and compatibility alike.

"Full" sets every optional field (EVT-13); "minimal" leaves out whatever may be left out.
"""

from typing import Any, Final

from schemas import records, wire
from schemas.codec import Codec

__all__ = ["CODECS", "SAMPLES", "id16", "sample"]

CODECS: Final[dict[str, Codec[Any]]] = {
    codec.name: codec
    for module in (records, wire)
    for codec in vars(module).values()
    if isinstance(codec, Codec)
}


def id16(number: int) -> bytes:
    """Sixteen bytes that name `number`."""
    return number.to_bytes(16, "big")


_BIG: Final = (1 << 63) - 1
_TENANT: Final = (1 << 128) - 5
_MESSAGE: Final = id16(0x0199_A0B1_C2D3_0007_0001_002A_0000_0000)

_EVENT_FULL: Final = {
    "conversation_seq": (41).to_bytes(8, "big"),
    "message_id": _MESSAGE,
    "conversation_id": id16(0xC0FFEE),
    "sender_id": _BIG,
    "created_at_ms": 1_764_468_000_123,
    "message_type": 0xFFFF_FFFE,
    "custom_type": "qim.poll.v1 \u00fc\U0001f600",
    "reply_to": id16(0xABCDEF),
    "visibility_floor_conversation_seq": 7,
    "body": b"\x00body\xff",
}
_EVENT_MINIMAL: Final = _EVENT_FULL | {
    "sender_id": 1,
    "message_type": 1,
    "custom_type": "",
    "reply_to": None,
    "visibility_floor_conversation_seq": None,
    "body": None,
}
_MESSAGE_FULL: Final = {
    "event": _EVENT_FULL | {"body": None},
    "tenant_id": id16(_TENANT),
    "last_activity_id": _MESSAGE,
    "trace_id": id16(0x7ACE),
    "client_message_id": id16(0xC111D),
    "sender_device_id": id16(0xDE71CE),
    "mentions": [1, _BIG],
    "state": 3,
    "stored_body": b"kept apart",
}
_MESSAGE_MINIMAL: Final = _MESSAGE_FULL | {
    "event": _EVENT_MINIMAL,
    "tenant_id": id16(0),
    "mentions": [],
    "state": 0,
    "stored_body": None,
}
_OUTBOX: Final = {
    "tenant_id": id16(_TENANT),
    "message_id": _MESSAGE,
    "sender_id": 1001,
    "recipients": [1001, 2002],
    "membership_version": 12,
    "target_shards": [0, 65535],
    "event_bytes": 99,
    "record": b"\x01opaque",
}
_DISPATCH: Final = {
    "tenant_id": id16(_TENANT),
    "dispatch_id": id16(0xD15),
    "message_id": _MESSAGE,
    "conversation_id": id16(0xC0FFEE),
    "conversation_seq": 41,
    "last_activity_id": _MESSAGE,
    "sender_id": 1001,
    "client_message_id": id16(0xC111D),
    "origin_device_id": id16(0xDE71CE),
    "fencing_epoch": 9,
    "membership_version": 12,
    "target_mailbox_shard": 65535,
    "committed_at_ms": 1_764_468_000_123,
    "trace_id": id16(0x7ACE),
    "message_type": 0xFFFF_FFFE,
    "custom_type": "qim.poll.v1",
    "recipients": [1001, 2002],
    "mentions": [2002],
    "event_template": b"opaque common part",
}
_PROGRESS: Final = {
    "payload_digest": bytes(range(32)),
    "canonical_log_offset": (1 << 48) - 2,
    "max_observed_offset": (1 << 48) - 1,
    "last_seen_ms": 1_764_468_000_123,
    "completed_at_ms": 1_764_468_000_100,
    "manifest": b"DPM\x02\x05\x01\x00",
    "expected": 1,
    "done": 1,
    "unfinished_lanes": [3, 63],
}
_EPOCHS: Final = {
    "lease_term": 1_764_468_000_123,
    "owner": "worker-0",
    "boundaries": [{"epoch": 1, "first_offset": 0}, {"epoch": 2, "first_offset": (1 << 48) - 1}],
}
_AUTH_OK: Final = {
    "session_epoch": _BIG,
    "user_id": 1001,
    "lane_id": 63,
    "lane_watermark": _BIG,
    "trim_watermark": 1 << 48,
    "sync_to_seq": _BIG,
    "cursor_seq": 1 << 48,
    "has_offline": True,
    "pending_entry_count_hint": 3,
    "pending_bytes_hint": 4096,
    "total_unread": 5,
    "total_mention": 6,
    "muted_unread": 7,
    "projection_complete": True,
    "preferred_endpoint": "gw-2:7800",
    "sync_delay_hint_ms": 250,
    "next_ping_interval_ms": 60_000,
}
_HINTS: Final = (
    "pending_entry_count_hint",
    "pending_bytes_hint",
    "total_unread",
    "total_mention",
    "muted_unread",
    "projection_complete",
    "preferred_endpoint",
)
_SEND: Final = {
    "client_message_id": id16(0xC111D),
    "conversation_id": id16(0xC0FFEE),
    "recipient_user_id": 2002,
    "message_type": 0xFFFF_FFFE,
    "custom_type": "x" * 64,
    "body": bytes(range(256)),
    "mentions": [1001, 2002],
    "reply_to": id16(0xABCDEF),
}
_ERROR: Final = {
    "code": 302,
    "retryable": True,
    "rebuild_required": True,
    "detail": "caf\u00e9",
    "client_message_id": id16(0xC111D),
}

# name -> (full, minimal)
SAMPLES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "event_common": (_EVENT_FULL, _EVENT_MINIMAL),
    "message_record": (_MESSAGE_FULL, _MESSAGE_MINIMAL),
    "outbox_record": (_OUTBOX, _OUTBOX | {"membership_version": None, "record": b""}),
    "group_dispatch": (
        _DISPATCH,
        _DISPATCH
        | {"fencing_epoch": None, "membership_version": None, "mentions": [], "custom_type": ""},
    ),
    "dispatch_progress": (_PROGRESS, _PROGRESS | {"canonical_log_offset": 0, "manifest": b""}),
    "watermark_row": (
        {"lease_term": 5, "epoch": 0x7FFF, "base_epoch": 1, "page_number": 9, "w": bytes(1216)},
        {"lease_term": 1, "epoch": 1, "base_epoch": 1, "page_number": 0, "w": bytes(19)},
    ),
    "shard_epochs": (_EPOCHS, _EPOCHS | {"owner": "", "boundaries": []}),
    "push_batch": (
        {
            "tenant_id": id16(_TENANT),
            "mailbox_shard": 65535,
            "mailbox_seq": _BIG,
            "origin_device_id": id16(0xDE71CE),
            "sender_id": 1001,
            "common_encoded_body": b"opaque common part",
            "recipients": [
                {"user_id": 1001, "entry_heads": [b"head"]},
                {"user_id": 2002, "entry_heads": [b"head", b"mention"]},
            ],
        },
        {
            "tenant_id": id16(0),
            "mailbox_shard": 0,
            "mailbox_seq": 1 << 48,
            "origin_device_id": id16(1),
            "sender_id": 1,
            "common_encoded_body": b"",
            "recipients": [],
        },
    ),
    "auth": (
        {
            "access_token": "a.b.c",
            "device_id": id16(0xDE71CE),
            "cursor_kind": 2,
            "cursor": b"signed",
            "foreground": True,
        },
        {
            "access_token": "",
            "device_id": id16(1),
            "cursor_kind": 0,
            "cursor": b"",
            "foreground": False,
        },
    ),
    "auth_ok": (_AUTH_OK, _AUTH_OK | dict.fromkeys(_HINTS)),
    "cursor_rebased": (
        {"new_cursor": b"signed", "replay_from_seq": _BIG},
        {"new_cursor": b"", "replay_from_seq": 0},
    ),
    "send_message": (
        _SEND,
        _SEND | {"custom_type": "", "body": b"", "mentions": [], "reply_to": None},
    ),
    "send_ack": (
        {
            "client_message_id": id16(0xC111D),
            "message_id": _MESSAGE,
            "conversation_seq": _BIG,
            "last_activity_id": _MESSAGE,
            "committed_at_ms": 1_764_468_000_123,
            "trace_id": id16(0x7ACE),
            "duplicate": True,
        },
        {
            "client_message_id": id16(1),
            "message_id": id16(2),
            "conversation_seq": 1,
            "last_activity_id": id16(2),
            "committed_at_ms": 0,
            "trace_id": id16(3),
            "duplicate": False,
        },
    ),
    "pull_mailbox": (
        {"after_seq": 1 << 48, "up_to_seq": _BIG, "max_items": 500, "max_bytes": 1 << 20},
        {"after_seq": 0, "up_to_seq": 0, "max_items": 0, "max_bytes": 0},
    ),
    "mailbox_batch": (
        {
            "entries": [b"one", b"two"],
            "after_seq": 1 << 48,
            "covered_through_seq": _BIG,
            "lane_watermark": _BIG,
            "has_more": True,
            "cursor": b"signed",
        },
        {
            "entries": [],
            "after_seq": 0,
            "covered_through_seq": 0,
            "lane_watermark": 0,
            "has_more": False,
            "cursor": b"",
        },
    ),
    "sync_complete": ({"sync_to_seq": _BIG}, {"sync_to_seq": 0}),
    "online_ready": (
        {"sync_to_seq": _BIG, "cursor": b"signed"},
        {"sync_to_seq": 0, "cursor": b""},
    ),
    "push_events": ({"entries": [b"one", b"two"]}, {"entries": []}),
    "ping": (
        {"client_time_ms": _BIG, "foreground": True},
        {"client_time_ms": 0, "foreground": False},
    ),
    "pong": (
        {
            "client_time_ms": _BIG,
            "next_ping_interval_ms": 240_000,
            "timeout_ms": 7_000,
            "lane_watermark": _BIG,
        },
        {
            "client_time_ms": 0,
            "next_ping_interval_ms": 0,
            "timeout_ms": 0,
            "lane_watermark": 0,
        },
    ),
    "kicked": ({"reason": "REPLACED"}, {"reason": ""}),
    "error": (_ERROR, _ERROR | {"detail": "", "client_message_id": None}),
}


def sample(name: str) -> dict[str, Any]:
    """The full example of a record, the caller's own."""
    return dict(SAMPLES[name][0])
