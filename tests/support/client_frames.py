"""Every call a client may make and every frame a server may answer with, and protocols brought into each state by them."""

from clients.protocol import ClientProtocol
from clients.states import ClientState
from schemas.frames import Opcode, Stream, encode_frame
from schemas.wire import (
    AUTH_OK,
    CURSOR_REBASED,
    ERROR,
    KICKED,
    MAILBOX_BATCH,
    ONLINE_READY,
    PONG,
    PUSH_EVENTS,
    SEND_ACK,
)

__all__ = ["CALL_OPCODES", "PAYLOADS", "call", "error_payload", "frame", "protocol_in"]

DEVICE = b"d" * 16
CALL_OPCODES = (
    Opcode.AUTH,
    Opcode.PULL_MAILBOX,
    Opcode.SYNC_COMPLETE,
    Opcode.PING,
    Opcode.SEND_MESSAGE,
)


def call(protocol: ClientProtocol, opcode: Opcode) -> int:
    """One legal-looking call of the kind; the state decides whether it is allowed."""
    if opcode is Opcode.AUTH:
        return protocol.send_auth(
            {
                "access_token": "token",
                "device_id": DEVICE,
                "cursor_kind": 0,
                "cursor": b"",
                "foreground": True,
            }
        )
    if opcode is Opcode.PULL_MAILBOX:
        return protocol.send_pull({"after_seq": 0, "up_to_seq": 9, "max_items": 5, "max_bytes": 99})
    if opcode is Opcode.SYNC_COMPLETE:
        return protocol.send_sync_complete({"sync_to_seq": 9})
    if opcode is Opcode.PING:
        return protocol.send_ping({"client_time_ms": 1, "foreground": True})
    return protocol.send_message(
        {
            "client_message_id": b"m" * 16,
            "conversation_id": b"c" * 16,
            "recipient_user_id": 7,
            "message_type": 1,
            "custom_type": "",
            "body": b"hello",
            "mentions": [],
            "reply_to": None,
        }
    )


PAYLOADS: dict[Opcode, bytes] = {
    Opcode.AUTH_OK: AUTH_OK.encode(
        {
            "session_epoch": 1,
            "user_id": 5,
            "lane_id": 3,
            "lane_watermark": 9,
            "trim_watermark": 0,
            "sync_to_seq": 9,
            "cursor_seq": 0,
            "has_offline": True,
            "pending_entry_count_hint": None,
            "pending_bytes_hint": None,
            "total_unread": None,
            "total_mention": None,
            "muted_unread": None,
            "projection_complete": None,
            "preferred_endpoint": None,
            "sync_delay_hint_ms": 0,
            "next_ping_interval_ms": 60_000,
        }
    ),
    Opcode.CURSOR_REBASED: CURSOR_REBASED.encode({"new_cursor": b"c", "replay_from_seq": 4}),
    Opcode.SEND_ACK: SEND_ACK.encode(
        {
            "client_message_id": b"m" * 16,
            "message_id": b"M" * 16,
            "conversation_seq": 1,
            "last_activity_id": b"L" * 16,
            "committed_at_ms": 5,
            "trace_id": b"t" * 16,
            "duplicate": False,
        }
    ),
    Opcode.MAILBOX_BATCH: MAILBOX_BATCH.encode(
        {
            "entries": [b"e"],
            "after_seq": 0,
            "covered_through_seq": 9,
            "lane_watermark": 9,
            "has_more": False,
            "cursor": b"k",
        }
    ),
    Opcode.ONLINE_READY: ONLINE_READY.encode({"sync_to_seq": 9, "cursor": b"k"}),
    Opcode.PUSH_EVENTS: PUSH_EVENTS.encode({"entries": [b"e"]}),
    Opcode.PONG: PONG.encode(
        {
            "client_time_ms": 1,
            "next_ping_interval_ms": 60_000,
            "timeout_ms": 90_000,
            "lane_watermark": 9,
        }
    ),
    Opcode.KICKED: KICKED.encode({"reason": "REPLACED"}),
}


def error_payload(code: int) -> bytes:
    """The payload of an ERROR."""
    return ERROR.encode(
        {
            "code": code,
            "retryable": False,
            "rebuild_required": False,
            "detail": "",
            "client_message_id": None,
        }
    )


def frame(opcode: int, request_id: int, payload: bytes) -> bytes:
    """One frame on the control stream."""
    return encode_frame(opcode, Stream.CONTROL, request_id, payload)


def protocol_in(state: ClientState) -> ClientProtocol:
    """A protocol that got to `state` the honest way."""
    protocol = ClientProtocol()
    if state is ClientState.CLOSED:
        protocol.close()
    if state in {ClientState.CONNECTED, ClientState.CLOSED}:
        return protocol
    auth = call(protocol, Opcode.AUTH)
    if state is ClientState.AUTHENTICATING:
        return protocol
    protocol.receive_data(frame(Opcode.AUTH_OK, auth, PAYLOADS[Opcode.AUTH_OK]))
    if state is ClientState.SYNCING:
        return protocol
    done = call(protocol, Opcode.SYNC_COMPLETE)
    if state is ClientState.COMPLETING:
        return protocol
    protocol.receive_data(frame(Opcode.ONLINE_READY, done, PAYLOADS[Opcode.ONLINE_READY]))
    return protocol
