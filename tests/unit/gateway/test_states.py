"""The transition table against itself, and every state against every input through the core."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.events import Batch
from gateway.protocol import ServerProtocol
from gateway.states import CLIENT_FRAMES, TRANSITIONS, Action, Input, State, violation
from gateway.tokens import Identity
from schemas.errors import Bug, ErrorCode, RequestError
from schemas.frames import Opcode
from tests.support.gateway import (
    ALICE,
    DEVICE,
    SEQ,
    Peer,
    client_frame,
    committed,
    entry,
    message_to,
)

FRAMES: dict[Input, tuple[int, Any]] = {
    Input.AUTH: (
        Opcode.AUTH,
        {
            "access_token": "t",
            "device_id": DEVICE,
            "cursor_kind": 0,
            "cursor": b"",
            "foreground": True,
        },
    ),
    Input.SEND: (Opcode.SEND_MESSAGE, message_to()),
    Input.PULL: (
        Opcode.PULL_MAILBOX,
        {"after_seq": 0, "up_to_seq": SEQ, "max_items": 0, "max_bytes": 0},
    ),
    Input.SYNC_FULL: (Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 10}),
    Input.SYNC_GAP: (Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 9}),
    Input.PING: (Opcode.PING, {"client_time_ms": 1, "foreground": True}),
    Input.UNKNOWN_FRAME: (0x0406, b"x"),
    Input.SERVER_FRAME: (Opcode.SEND_ACK, b"x"),
    Input.BROKEN: (Opcode.PING, b"\xff"),
}


def peer_in(state: State) -> Peer:
    """A core brought to `state` by legal moves only."""
    peer = Peer()
    if state is State.AUTHENTICATING:
        peer.auth()
    elif state is State.SYNCING:
        peer.log_in(start_seq=SEQ + 10, sync_to_seq=SEQ + 10)
    elif state in {State.ONLINE, State.DRAINING}:
        peer.go_online()
        if state is State.DRAINING:
            peer.core.drain()
    elif state is State.CLOSED:
        peer.core.receive_eof()
    assert peer.core.state is state
    return peer


def call(core: ServerProtocol, peer: Peer, given_input: Input) -> None:
    """What the shell does for an input that is not a frame."""
    error = RequestError("x", ErrorCode.CURSOR_INVALID)
    calls: dict[Input, Callable[[], object]] = {
        Input.EOF: core.receive_eof,
        Input.AUTH_ACCEPTED: lambda: core.auth_accepted(1, peer.login_of()),
        Input.AUTH_REBASED: lambda: core.auth_rebased(1, Identity(0, ALICE, DEVICE, 1), b"c", 1),
        Input.AUTH_REFUSED: lambda: core.auth_refused(1, error),
        Input.AUTH_REJECTED: lambda: core.auth_refused(1, RequestError("x", ErrorCode.AUTH_FAILED)),
        Input.COMMIT_DONE: lambda: core.commit_done(1, b"c" * 16, committed()),
        Input.PULL_DONE: lambda: core.pull_done(1, Batch([], 0, SEQ, SEQ, False, b"")),
        Input.PUSH: lambda: core.push([entry(1)]),
        Input.KICK: core.kick,
        Input.DRAIN: core.drain,
        Input.DRAINED: lambda: core.check(0),
        Input.TIMEOUT: lambda: core.check(10_000_000),
        Input.SLOW: lambda: core.check(30_000, blocked_since_ms=0),
    }
    calls[given_input]()


def test_closed_is_the_end() -> None:
    assert {TRANSITIONS[State.CLOSED, given] for given in Input} == {(State.CLOSED, Action.IGNORE)}


def test_every_state_can_be_reached_and_left() -> None:
    reached = {State.CONNECTED}
    for _ in State:
        reached |= {s.state for (state, _), s in TRANSITIONS.items() if state in reached}
    assert reached == set(State)
    for state in set(State) - {State.CLOSED}:
        for ending in (Input.BROKEN, Input.EOF, Input.TIMEOUT, Input.SLOW):
            assert TRANSITIONS[state, ending].state is State.CLOSED


def test_only_authenticated_states_touch_stores() -> None:
    working = {Action.REQUEST_COMMIT, Action.REQUEST_PULL}
    states = {state for (state, _), step in TRANSITIONS.items() if step.action in working}
    assert states == {State.SYNCING, State.ONLINE}


def test_every_action_of_a_frame_has_its_method() -> None:
    frames = {*CLIENT_FRAMES.values(), Input.UNKNOWN_FRAME, Input.SYNC_GAP}
    needed = {step.action for (_, given), step in TRANSITIONS.items() if given in frames}
    assert needed == set(ServerProtocol._FRAME_ACTIONS)


@pytest.mark.parametrize("state", State, ids=lambda s: s.name)
@pytest.mark.parametrize("given_input", FRAMES, ids=lambda i: i.name)
def test_every_state_times_every_frame(state: State, given_input: Input) -> None:
    peer = peer_in(state)
    # While not syncing, both kinds of SYNC_COMPLETE are one input; an unjudged one is legal or not as a whole.
    looked_up = given_input
    peer.send(*FRAMES[given_input])
    frames = peer.frames()
    step = TRANSITIONS.get((state, looked_up))
    if given_input is Input.BROKEN and (state, Input.PING) not in TRANSITIONS:
        step = None  # an illegal frame is refused before its payload is looked at
    if step is None:
        assert peer.core.state is State.CLOSED
        assert frames[-1].record["code"] == violation(state)
    else:
        assert peer.core.state is step.state
        codes = [f.record["code"] for f in frames if f.opcode is Opcode.ERROR]
        assert peer.core.is_closed() == any(ErrorCode(code).closes for code in codes) or (
            state is State.CLOSED
        )


@pytest.mark.parametrize("state", State, ids=lambda s: s.name)
@pytest.mark.parametrize("given_input", set(Input) - set(FRAMES), ids=lambda i: i.name)
def test_every_state_times_every_call(state: State, given_input: Input) -> None:
    peer = peer_in(state)
    step = TRANSITIONS.get((state, given_input))
    if step is None and given_input is not Input.DRAINED:
        with pytest.raises(Bug):
            call(peer.core, peer, given_input)
    else:
        call(peer.core, peer, given_input)
        assert peer.core.state is (step.state if step else state)


ANY_INPUT = st.sampled_from(list(itertools.chain(FRAMES, sorted(set(Input) - set(FRAMES)))))


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY_INPUT, max_size=30), st.binary(max_size=40))
def test_any_walk_ends_in_a_listed_state_or_our_error(walk: list[Input], noise: bytes) -> None:
    peer = Peer()
    for given_input in walk:
        try:
            if given_input in FRAMES:
                peer.send(*FRAMES[given_input])
            else:
                call(peer.core, peer, given_input)
        except Bug:
            assert (peer.core.state, given_input) not in TRANSITIONS
        assert peer.core.state in State
    peer.feed(noise)
    peer.feed(client_frame(Opcode.PING, noise))
    peer.frames()
