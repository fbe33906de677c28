"""Payloads of everything a gateway says, from our values: pure encoders, one for each frame."""

from __future__ import annotations

from typing import Final

from gateway.events import Batch, Login
from gateway.heartbeat import Heartbeat
from gateway.ports import CommittedMessage
from schemas.errors import ClientError, ErrorCode, QimError
from schemas.packing import avro_long
from schemas.wire import (
    AUTH_OK,
    CURSOR_REBASED,
    ERROR,
    KICKED,
    MAILBOX_BATCH,
    ONLINE_READY,
    PONG,
)

__all__ = [
    "auth_ok",
    "cursor_rebased",
    "error_of",
    "kicked",
    "mailbox_batch",
    "online_ready",
    "pong",
    "push_events",
    "send_ack",
]

_VERSION_1: Final = b"\x01"


def auth_ok(login: Login, next_ping_interval_ms: int) -> bytes:
    """AUTH_OK (CUR-05). What belongs to session lists and presence is null until they answer."""
    return AUTH_OK.encode(
        {
            "session_epoch": login.identity.session_epoch,
            "user_id": login.identity.user,
            "lane_id": login.lane,
            "lane_watermark": login.sync_to_seq,
            "trim_watermark": login.trim_watermark,
            "sync_to_seq": login.sync_to_seq,
            "cursor_seq": login.start_seq,
            "has_offline": login.start_seq < login.sync_to_seq,
            "pending_entry_count_hint": login.pending_entries,
            "pending_bytes_hint": None,
            "total_unread": None,
            "total_mention": None,
            "muted_unread": None,
            "projection_complete": None,
            "preferred_endpoint": None,
            "sync_delay_hint_ms": 0,
            "next_ping_interval_ms": next_ping_interval_ms,
        }
    )


def online_ready(login: Login) -> bytes:
    """ONLINE_READY with the cursor at sync_to_seq (REB-06)."""
    return ONLINE_READY.encode({"sync_to_seq": login.sync_to_seq, "cursor": login.cursor_at_sync})


def cursor_rebased(new_cursor: bytes, replay_from_seq: int) -> bytes:
    """CURSOR_REBASED (CUR-04 step 3)."""
    return CURSOR_REBASED.encode({"new_cursor": new_cursor, "replay_from_seq": replay_from_seq})


# SEND_ACK and PUSH_EVENTS are said once a message and once an event. Packed by hand they cost a third of the Avro writer's
# 3 us; a test holds them equal to what the codec writes.
def send_ack(client_message_id: bytes, committed: CommittedMessage) -> bytes:
    """SEND_ACK; there is no other way to build one than from a CommittedMessage (COM-02)."""
    return b"".join(
        (
            _VERSION_1,
            client_message_id,
            committed.message_id,
            avro_long(committed.conversation_seq),
            committed.last_activity_id,
            avro_long(committed.committed_at_ms),
            committed.trace_id,
            b"\x01" if committed.duplicate else b"\x00",
        )
    )


def mailbox_batch(batch: Batch) -> bytes:
    """MAILBOX_BATCH; the entries go through as the opaque bytes that are stored."""
    return MAILBOX_BATCH.encode(
        {
            "entries": batch.entries,
            "after_seq": batch.after_seq,
            "covered_through_seq": batch.covered_through_seq,
            "lane_watermark": batch.lane_watermark,
            "has_more": batch.has_more,
            "cursor": batch.cursor,
        }
    )


def push_events(entries: list[bytes]) -> bytes:
    """PUSH_EVENTS of at least one entry; never carries a cursor (CUR-02)."""
    parts = [_VERSION_1, avro_long(len(entries))]
    for entry in entries:
        parts.append(avro_long(len(entry)))
        parts.append(entry)
    parts.append(b"\x00")
    return b"".join(parts)


def pong(client_time_ms: int, heartbeat: Heartbeat, lane_watermark: int) -> bytes:
    """PONG with the next interval, the timeout (GW-08) and W as a hint to pull (PUSH-06)."""
    return PONG.encode(
        {
            "client_time_ms": client_time_ms,
            "next_ping_interval_ms": heartbeat.interval_ms,
            "timeout_ms": heartbeat.timeout_ms,
            "lane_watermark": lane_watermark,
        }
    )


def kicked(reason: str) -> bytes:
    """KICKED (GW-10)."""
    return KICKED.encode({"reason": reason})


def error_of(error: QimError, client_message_id: bytes | None) -> bytes:
    """ERROR: code and named data. What failed inside us is for the log, not for the peer (OBS-10)."""
    code = error.code
    return ERROR.encode(
        {
            "code": code,
            "retryable": code.retryable,
            "rebuild_required": code is ErrorCode.CURSOR_EXPIRED,
            "detail": error.detail if isinstance(error, ClientError) else code.name,
            "client_message_id": client_message_id,
        }
    )
