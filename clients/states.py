"""The one transition table of a client's connection; it mirrors the gateway's table in gateway/states.py.

    CONNECTED ──AUTH──▶ AUTHENTICATING ──AUTH_OK──▶ SYNCING ──SYNC_COMPLETE──▶ COMPLETING ──ONLINE_READY──▶ ONLINE
        ▲                    │                         ▲                           │
        └─refused, rebased───┘                         └──────SYNC_INCOMPLETE──────┘         any ──▶ CLOSED

Nothing else changes a state. A call that is absent here is a mistake of the local caller, a frame that is absent here
one of the server; both end as errors of ours and never as anything else.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from schemas.frames import Opcode

__all__ = ["CALLS", "FRAMES", "ClientState", "Ending"]


class ClientState(IntEnum):
    """What one connection may do now."""

    CONNECTED = 0  # the socket is open, nothing was said
    AUTHENTICATING = 1
    SYNCING = 2  # between AUTH_OK and SYNC_COMPLETE: the login barrier (CUR-06)
    COMPLETING = 3
    ONLINE = 4
    CLOSED = 5


class Ending(IntEnum):
    """Inputs that carry no frame of their own."""

    EOF = 0  # the peer closed, or the socket broke
    CLOSE = 1  # the local side gives the connection up
    DAMAGE = 2  # bytes or an order of frames that the protocol does not allow
    CLOSING_ERROR = 3  # an ERROR whose code ends the connection
    AUTH_REFUSED = (
        4  # an ERROR in answer to AUTH that leaves the connection open (CUR-04 steps 1 and 2)
    )
    SYNC_REFUSED = 5  # an ERROR in answer to SYNC_COMPLETE (CUR-09)


_S = ClientState

CALLS: Final[dict[tuple[ClientState, Opcode], ClientState]] = {
    (_S.CONNECTED, Opcode.AUTH): _S.AUTHENTICATING,
    (_S.SYNCING, Opcode.PULL_MAILBOX): _S.SYNCING,
    (_S.SYNCING, Opcode.PING): _S.SYNCING,
    (_S.SYNCING, Opcode.SYNC_COMPLETE): _S.COMPLETING,
    (_S.COMPLETING, Opcode.PING): _S.COMPLETING,
    (_S.ONLINE, Opcode.PULL_MAILBOX): _S.ONLINE,
    (_S.ONLINE, Opcode.PING): _S.ONLINE,
    # Only online: what a sync would find in the mailbox must not be sent again (SDK-06).
    (_S.ONLINE, Opcode.SEND_MESSAGE): _S.ONLINE,
}
"""(state, frame the caller wants to send) -> next state."""

_AUTHENTICATED = (_S.SYNCING, _S.COMPLETING, _S.ONLINE)

FRAMES: Final[dict[tuple[ClientState, Opcode | Ending], ClientState]] = {
    (_S.AUTHENTICATING, Opcode.AUTH_OK): _S.SYNCING,
    (_S.AUTHENTICATING, Opcode.CURSOR_REBASED): _S.CONNECTED,
    (_S.AUTHENTICATING, Ending.AUTH_REFUSED): _S.CONNECTED,
    (_S.COMPLETING, Opcode.ONLINE_READY): _S.ONLINE,
    (_S.COMPLETING, Ending.SYNC_REFUSED): _S.SYNCING,
    (_S.ONLINE, Opcode.SEND_ACK): _S.ONLINE,
    (_S.SYNCING, Opcode.MAILBOX_BATCH): _S.SYNCING,
    (_S.ONLINE, Opcode.MAILBOX_BATCH): _S.ONLINE,
    # What lies above sync_to_seq is pushed from AUTH_OK on (CUR-06).
    **{(state, Opcode.PUSH_EVENTS): state for state in _AUTHENTICATED},
    **{(state, Opcode.PONG): state for state in _AUTHENTICATED},
    **{(state, Opcode.KICKED): _S.CLOSED for state in _AUTHENTICATED},
    # An ERROR may answer anything, or come unasked before a drain.
    **{(state, Opcode.ERROR): state for state in _S if state is not _S.CLOSED},
    **{
        (state, ending): _S.CLOSED
        for state in _S
        for ending in (Ending.EOF, Ending.CLOSE, Ending.DAMAGE, Ending.CLOSING_ERROR)
    },
}
"""(state, what came in) -> next state."""
