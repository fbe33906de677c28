"""Every bound of the gateway, with what breaks when it is larger or smaller. Contract constants live in `schemas/constants.py`."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.constants import MAX_BODY_BYTES, PULL_MAILBOX_WINDOW

__all__ = ["GatewayLimits"]


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds of one gateway process; the defaults are for production, tests make them small."""

    max_connections: int = 100_000
    """Sockets of one process; above it new ones are closed at once and counted, so that those inside stay served."""

    max_inbound_message_bytes: int = MAX_BODY_BYTES + 64 * 1024
    """A body and its ids. Larger: one peer can make us hold that much on each of four streams. Smaller: legal bodies fail."""

    max_unauthenticated_bytes: int = 32 * 1024
    """All bytes before AUTH_OK. An access token and a cursor need about 1 KiB; more only helps someone fill our memory."""

    auth_timeout_ms: int = 10_000
    """A socket without AUTH. Longer: idle sockets of strangers pile up. Shorter: slow mobile handshakes fail."""

    max_auth_attempts: int = 4
    """One login may see CURSOR_INVALID or CURSOR_EXPIRED, CURSOR_REBASED and a last try; more is a loop."""

    max_sends_in_flight: int = 256
    """Unanswered SEND_MESSAGE of one connection; at the limit its socket is not read (COM-17 in small), nothing is dropped.
    Larger: one client can fill the whole backend queue. Smaller: a resend burst after reconnect waits for round trips."""

    pull_window: int = PULL_MAILBOX_WINDOW
    """PULL_MAILBOX in flight (CUR-08); one more is a protocol error, since the client knows the number."""

    max_sync_pieces: int = 64
    """Disjoint served intervals of one login. A pipelining client has at most the window's worth; more is a memory attack."""

    pull_default_items: int = 500
    """Entries of a batch when the client names no number: about 100 KiB, some ms of Redis time."""

    pull_max_items: int = 2_000
    """Above it one scan holds Redis for everybody else."""

    pull_max_bytes: int = 1024 * 1024
    """Soft bound of a batch (EVT-06); the hard one is the frame limit, which a group of 8 KiB on top cannot reach."""

    pull_batch_scans: int = 64
    """Scans in one store call. More: the first waits for the last. Fewer: a login storm pays a round trip each."""

    slice_budget_bytes: int = 128 * 1024
    """What one loop pass hands to a socket: two slices. Larger delays a PONG behind a batch, smaller costs system calls."""

    socket_buffer_high_bytes: int = 256 * 1024
    """Bytes the transport may hold before it asks us to pause; they are beyond overtaking (GW-05)."""

    push_queue_bytes: int = 256 * 1024
    """Unwritten bytes above which pushes to a slow client are dropped and counted: its mailbox has them (GW-13)."""

    push_frame_bytes: int = 256 * 1024
    """Entries in one PUSH_EVENTS; what piled up beyond it goes in further frames, far below the frame limit."""

    max_queue_bytes: int = 8 * 1024 * 1024
    """Unwritten bytes above which the connection is closed: window x frame limit would be 16 MiB, honest clients stay below."""

    write_stall_ms: int = 30_000
    """A peer that takes no byte for so long is gone or hostile; shorter hurts phones in tunnels."""

    linger_ms: int = 5_000
    """How long a closed connection may take to read its last bytes before the socket is torn down."""

    drain_timeout_ms: int = 5_000
    """How long SIGTERM waits for answers in flight. A commit takes milliseconds; the client retries the rest elsewhere."""

    max_held_pushes: int = 100_000
    """Pushes waiting for their watermark. A stalled lane must not eat the memory; the mailbox has what is dropped."""

    max_session_epochs: int = 100_000
    """Remembered session_epoch of devices that are gone; forgetting one only lets an unexpired older token in again."""
