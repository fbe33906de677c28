"""Every payload of the client protocol: its type for mypy and its codec, one for each opcode of schemas/frames.py.

Up and down messages are separate types (GW-06). The log records are in schemas/records.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypedDict

from schemas.codec import Codec

__all__ = [
    "AUTH",
    "AUTH_OK",
    "CURSOR_REBASED",
    "ERROR",
    "KICKED",
    "MAILBOX_BATCH",
    "ONLINE_READY",
    "PING",
    "PONG",
    "PULL_MAILBOX",
    "PUSH_EVENTS",
    "SEND_ACK",
    "SEND_MESSAGE",
    "SYNC_COMPLETE",
    "Auth",
    "AuthOk",
    "CursorKind",
    "CursorRebased",
    "ErrorPayload",
    "Kicked",
    "MailboxBatch",
    "OnlineReady",
    "Ping",
    "Pong",
    "PullMailbox",
    "PushEvents",
    "SendAck",
    "SendMessage",
    "SyncComplete",
]


class CursorKind(IntEnum):
    """How AUTH names where a device starts; three kinds, not three values (CON-07)."""

    ZERO = 0  # a first login: everything that is left in the mailbox
    EMPTY = 1  # a rebuild: nothing old, start at sync_to_seq
    TOKEN = 2  # the server's signed cursor


class Auth(TypedDict):
    """AUTH (CUR-04). cursor_kind: 0 zero cursor, 1 empty cursor (rebuild), 2 signed token (CON-07, OPEN-13)."""

    access_token: str
    device_id: bytes
    cursor_kind: int
    cursor: bytes
    foreground: bool


class AuthOk(TypedDict):
    """AUTH_OK (CUR-05); what belongs to later systems is null."""

    session_epoch: int
    user_id: int
    lane_id: int
    lane_watermark: int
    trim_watermark: int
    sync_to_seq: int
    cursor_seq: int  # where this device's cursor stands: the lower bound of its first pull
    has_offline: bool
    pending_entry_count_hint: int | None
    pending_bytes_hint: int | None
    total_unread: int | None
    total_mention: int | None
    muted_unread: int | None
    projection_complete: bool | None
    preferred_endpoint: str | None
    sync_delay_hint_ms: int
    next_ping_interval_ms: int


class CursorRebased(TypedDict):
    """CURSOR_REBASED (CUR-04 step 3)."""

    new_cursor: bytes
    replay_from_seq: int


class SendMessage(TypedDict):
    """SEND_MESSAGE; bodies are opaque bytes that no server parses (GW-06)."""

    client_message_id: bytes
    conversation_id: bytes
    recipient_user_id: int
    message_type: int
    custom_type: str
    body: bytes
    mentions: list[int]
    reply_to: bytes | None


class SendAck(TypedDict):
    """SEND_ACK means COMMITTED (GW-17)."""

    client_message_id: bytes
    message_id: bytes
    conversation_seq: int
    last_activity_id: bytes
    committed_at_ms: int
    trace_id: bytes
    duplicate: bool


class PullMailbox(TypedDict):
    """PULL_MAILBOX: (after_seq, up_to_seq]; after_seq 0 is the zero cursor, bound -inf (MBX-53)."""

    after_seq: int
    up_to_seq: int
    max_items: int
    max_bytes: int


class MailboxBatch(TypedDict):
    """MAILBOX_BATCH, the only frame that moves a cursor (CUR-02)."""

    entries: list[bytes]
    after_seq: int
    covered_through_seq: int
    lane_watermark: int
    has_more: bool
    cursor: bytes  # signed, for covered_through_seq


class SyncComplete(TypedDict):
    """SYNC_COMPLETE (CUR-09)."""

    sync_to_seq: int


class OnlineReady(TypedDict):
    """ONLINE_READY; carries the cursor at sync_to_seq (REB-06)."""

    sync_to_seq: int
    cursor: bytes


class PushEvents(TypedDict):
    """PUSH_EVENTS: entries as in MAILBOX_BATCH; never moves a cursor (CUR-02)."""

    entries: list[bytes]


class Ping(TypedDict):
    """PING."""

    client_time_ms: int
    foreground: bool


class Pong(TypedDict):
    """PONG carries the next interval and timeout (GW-08) and the lane watermark as a hint to pull."""

    client_time_ms: int
    next_ping_interval_ms: int
    timeout_ms: int
    lane_watermark: int


class Kicked(TypedDict):
    """KICKED (GW-10)."""

    reason: str


class ErrorPayload(TypedDict):
    """ERROR: a code and named data, prose only for people (GW-15)."""

    code: int
    retryable: bool
    rebuild_required: bool
    detail: str
    client_message_id: bytes | None


AUTH: Final[Codec[Auth]] = Codec("auth")
AUTH_OK: Final[Codec[AuthOk]] = Codec("auth_ok")
CURSOR_REBASED: Final[Codec[CursorRebased]] = Codec("cursor_rebased")
SEND_MESSAGE: Final[Codec[SendMessage]] = Codec("send_message")
SEND_ACK: Final[Codec[SendAck]] = Codec("send_ack")
PULL_MAILBOX: Final[Codec[PullMailbox]] = Codec("pull_mailbox")
MAILBOX_BATCH: Final[Codec[MailboxBatch]] = Codec("mailbox_batch")
SYNC_COMPLETE: Final[Codec[SyncComplete]] = Codec("sync_complete")
ONLINE_READY: Final[Codec[OnlineReady]] = Codec("online_ready")
PUSH_EVENTS: Final[Codec[PushEvents]] = Codec("push_events")
PING: Final[Codec[Ping]] = Codec("ping")
PONG: Final[Codec[Pong]] = Codec("pong")
KICKED: Final[Codec[Kicked]] = Codec("kicked")
ERROR: Final[Codec[ErrorPayload]] = Codec("error")
