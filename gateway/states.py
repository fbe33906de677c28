"""The life of one client connection as data: (state, input) leads to (state, action); whatever is absent is a protocol error.

    CONNECTED ──AUTH──▶ AUTHENTICATING ──accepted──▶ SYNCING ──complete──▶ ONLINE
        ▲                     │                         │                     │
        └──refused, rebased───┘                         └──────drain──────────┴──▶ DRAINING ──finished──▶ CLOSED

Inputs are frames of the peer, damage in its bytes, and decisions or results of the shell. Two frames are judged before they
become an input (SYNC_COMPLETE into full or gapped, a failed AUTH into refused or rejected), so the table needs no guards.
CLOSED swallows everything: answers of work that outlives its connection are normal, not an error. No state changes elsewhere.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final, NamedTuple

from schemas.errors import ErrorCode
from schemas.frames import Opcode

__all__ = ["CLIENT_FRAMES", "TRANSITIONS", "Action", "Input", "State", "Step", "violation"]


# IntEnum, because its hash is an int's: the table is asked once a frame.
@unique
class State(IntEnum):
    """Where a connection stands."""

    CONNECTED = 0  # bytes flow, nobody is authenticated
    AUTHENTICATING = 1  # AUTH is being judged, nothing else may arrive
    SYNCING = 2  # AUTH_OK was sent, the client pulls up to sync_to_seq
    ONLINE = 3  # the login barrier was passed
    DRAINING = 4  # this gateway goes down: answers in flight still leave, nothing new enters
    CLOSED = 5  # nothing more is read; what is queued is flushed by the shell


@unique
class Input(IntEnum):
    """What can happen to a connection."""

    # frames of the peer
    AUTH = 0
    SEND = 1
    PULL = 2
    SYNC_FULL = 3  # SYNC_COMPLETE with the right value and without a gap
    SYNC_GAP = 4  # SYNC_COMPLETE otherwise
    PING = 5
    UNKNOWN_FRAME = 6  # an opcode that this version does not have
    SERVER_FRAME = 7  # an opcode that only servers send
    BROKEN = 8  # damaged bytes, a malformed payload, a limit: the code comes with it
    EOF = 9
    # decisions and results of the shell
    AUTH_ACCEPTED = 10
    AUTH_REBASED = 11
    AUTH_REFUSED = 12  # the peer may try again on this connection
    AUTH_REJECTED = 13  # it may not
    COMMIT_DONE = 14
    PULL_DONE = 15
    PUSH = 16
    KICK = 17
    DRAIN = 18
    DRAINED = 19
    TIMEOUT = 20
    SLOW = 21


@unique
class Action(IntEnum):
    """What the protocol does on the way; each is one method of `ServerProtocol`."""

    REQUEST_LOGIN = 0
    REQUEST_COMMIT = 1
    REQUEST_PULL = 2
    SEND_PONG = 3
    SEND_AUTH_OK = 4
    SEND_REBASED = 5
    SEND_ERROR = 6
    SEND_ONLINE_READY = 7
    SEND_ACK = 8
    SEND_BATCH = 9
    SEND_PUSH = 10
    SEND_KICKED = 11
    REFUSE_OPCODE = 12
    REFUSE_SYNC = 13
    IGNORE = 14


class Step(NamedTuple):
    """One legal move."""

    state: State
    action: Action


CLIENT_FRAMES: Final[dict[int, Input]] = {
    Opcode.AUTH: Input.AUTH,
    Opcode.SEND_MESSAGE: Input.SEND,
    Opcode.PULL_MAILBOX: Input.PULL,
    Opcode.SYNC_COMPLETE: Input.SYNC_FULL,  # judged by the protocol before it is looked up
    Opcode.PING: Input.PING,
}
"""The frames a client may send at all; every other known opcode is a SERVER_FRAME."""

# What ends a connection in every living state.
_ENDINGS: Final = {
    Input.BROKEN: Step(State.CLOSED, Action.SEND_ERROR),
    Input.EOF: Step(State.CLOSED, Action.IGNORE),
    Input.TIMEOUT: Step(State.CLOSED, Action.SEND_ERROR),
    Input.SLOW: Step(State.CLOSED, Action.SEND_ERROR),
}


def _working(state: State) -> dict[Input, Step]:
    """The moves that SYNCING and ONLINE share."""
    return {
        Input.SEND: Step(state, Action.REQUEST_COMMIT),
        Input.PULL: Step(state, Action.REQUEST_PULL),
        Input.PING: Step(state, Action.SEND_PONG),
        Input.UNKNOWN_FRAME: Step(state, Action.REFUSE_OPCODE),
        Input.COMMIT_DONE: Step(state, Action.SEND_ACK),
        Input.PULL_DONE: Step(state, Action.SEND_BATCH),
        Input.PUSH: Step(state, Action.SEND_PUSH),
        Input.KICK: Step(State.CLOSED, Action.SEND_KICKED),
        Input.DRAIN: Step(State.DRAINING, Action.IGNORE),
        **_ENDINGS,
    }


_BY_STATE: Final[dict[State, dict[Input, Step]]] = {
    State.CONNECTED: {
        Input.AUTH: Step(State.AUTHENTICATING, Action.REQUEST_LOGIN),
        Input.DRAIN: Step(State.CLOSED, Action.SEND_ERROR),
        **_ENDINGS,
    },
    State.AUTHENTICATING: {
        Input.AUTH_ACCEPTED: Step(State.SYNCING, Action.SEND_AUTH_OK),
        Input.AUTH_REBASED: Step(State.CONNECTED, Action.SEND_REBASED),
        Input.AUTH_REFUSED: Step(State.CONNECTED, Action.SEND_ERROR),
        Input.AUTH_REJECTED: Step(State.CLOSED, Action.SEND_ERROR),
        Input.DRAIN: Step(State.CLOSED, Action.SEND_ERROR),
        **_ENDINGS,
    },
    State.SYNCING: {
        **_working(State.SYNCING),
        Input.SYNC_FULL: Step(State.ONLINE, Action.SEND_ONLINE_READY),
        Input.SYNC_GAP: Step(State.SYNCING, Action.REFUSE_SYNC),
    },
    State.ONLINE: _working(State.ONLINE),
    State.DRAINING: {
        # Requests that were already on their way are not accepted and not answered: the closing ERROR says so, and the
        # client sends them again elsewhere under the same client_message_id.
        Input.SEND: Step(State.DRAINING, Action.IGNORE),
        Input.PULL: Step(State.DRAINING, Action.IGNORE),
        Input.SYNC_FULL: Step(State.DRAINING, Action.IGNORE),
        Input.SYNC_GAP: Step(State.DRAINING, Action.IGNORE),
        Input.UNKNOWN_FRAME: Step(State.DRAINING, Action.IGNORE),
        Input.PING: Step(State.DRAINING, Action.SEND_PONG),
        Input.COMMIT_DONE: Step(State.DRAINING, Action.SEND_ACK),
        Input.PULL_DONE: Step(State.DRAINING, Action.SEND_BATCH),
        Input.PUSH: Step(State.DRAINING, Action.IGNORE),
        Input.DRAIN: Step(State.DRAINING, Action.IGNORE),
        Input.KICK: Step(State.CLOSED, Action.SEND_KICKED),
        Input.DRAINED: Step(State.CLOSED, Action.SEND_ERROR),
        **_ENDINGS,
    },
    State.CLOSED: {anything: Step(State.CLOSED, Action.IGNORE) for anything in Input},
}

TRANSITIONS: Final[dict[tuple[State, Input], Step]] = {
    (state, given): step for state, steps in _BY_STATE.items() for given, step in steps.items()
}

_UNAUTHENTICATED: Final = frozenset({State.CONNECTED, State.AUTHENTICATING})


def violation(state: State) -> ErrorCode:
    """The code for a frame that the table does not allow in `state`; the connection is closed with it."""
    return ErrorCode.NOT_AUTHENTICATED if state in _UNAUTHENTICATED else ErrorCode.UNEXPECTED_FRAME
