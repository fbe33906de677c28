"""Every state times every input: the result is a listed state or our own error, never another exception."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.protocol import (
    Answer,
    ClientProtocol,
    ConnectionEnded,
    Event,
    LocalProtocolError,
    Refusal,
    UnknownFrame,
)
from clients.states import CALLS, FRAMES, ClientState, Ending
from schemas.errors import ErrorCode
from schemas.frames import FrameDecoder, Message, Opcode, Stream, encode_slices
from schemas.wire import (
    PUSH_EVENTS,
)
from tests.support.client_frames import (
    CALL_OPCODES,
    PAYLOADS,
    call,
    error_payload,
    frame,
    protocol_in,
)


@pytest.mark.parametrize("state", list(ClientState))
def test_every_state_is_reached_by_legal_moves(state: ClientState) -> None:
    assert protocol_in(state).state is state


@pytest.mark.parametrize(("state", "opcode"), list(itertools.product(ClientState, CALL_OPCODES)))
def test_call_moves_as_the_table_says_or_changes_nothing(
    state: ClientState, opcode: Opcode
) -> None:
    protocol = protocol_in(state)
    protocol.data_to_send()
    following = CALLS.get((state, opcode))
    if following is None:
        with pytest.raises(LocalProtocolError, match=opcode.name):
            call(protocol, opcode)
        assert (protocol.state, protocol.data_to_send()) == (state, b"")
        return
    request_id = call(protocol, opcode)
    assert protocol.state is following
    assert protocol.is_open(request_id)
    (sent,) = FrameDecoder().feed(protocol.data_to_send())
    assert (sent.opcode, sent.request_id) == (opcode, request_id)


@pytest.mark.parametrize("state", [s for s in ClientState if s is not ClientState.CLOSED])
@pytest.mark.parametrize("opcode", [o for o in Opcode if o is not Opcode.ERROR])
def test_frame_moves_as_the_table_says_or_closes(state: ClientState, opcode: Opcode) -> None:
    protocol = protocol_in(state)
    request_id = _open_request(protocol, opcode)
    before = protocol.state
    events = protocol.receive_data(frame(opcode, request_id, PAYLOADS.get(opcode, b"")))
    following = FRAMES.get((before, opcode))
    if following is None:
        (ended,) = events
        assert isinstance(ended, ConnectionEnded)
        assert ended.error is not None
        assert ended.error.code is ErrorCode.UNEXPECTED_FRAME
        assert protocol.state is ClientState.CLOSED
    else:
        (answer,) = events
        assert isinstance(answer, Answer)
        assert (answer.opcode, answer.request_id) == (opcode, request_id)
        assert protocol.state is following


def _open_request(protocol: ClientProtocol, answer: Opcode) -> int:
    """Open the request that `answer` answers where the state allows it, so that only the order is judged."""
    request = {
        Opcode.SEND_ACK: Opcode.SEND_MESSAGE,
        Opcode.MAILBOX_BATCH: Opcode.PULL_MAILBOX,
        Opcode.PONG: Opcode.PING,
    }.get(answer)
    if request is not None and (protocol.state, request) in CALLS:
        return call(protocol, request)
    opened = {Opcode.AUTH_OK: 1, Opcode.CURSOR_REBASED: 1, Opcode.ONLINE_READY: 2}
    return opened.get(answer, 0)


@pytest.mark.parametrize(
    "opcode", [Opcode.SEND_ACK, Opcode.MAILBOX_BATCH, Opcode.PONG, Opcode.ONLINE_READY]
)
def test_answer_to_no_request_closes_the_connection(opcode: Opcode) -> None:
    state = ClientState.COMPLETING if opcode is Opcode.ONLINE_READY else ClientState.ONLINE
    protocol = protocol_in(state)
    (ended,) = protocol.receive_data(frame(opcode, 4711, PAYLOADS[opcode]))
    assert isinstance(ended, ConnectionEnded)
    assert ended.ending is Ending.DAMAGE


def test_ack_that_names_the_request_of_a_pull_closes_the_connection() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    pull = call(protocol, Opcode.PULL_MAILBOX)
    (ended,) = protocol.receive_data(frame(Opcode.SEND_ACK, pull, PAYLOADS[Opcode.SEND_ACK]))
    assert isinstance(ended, ConnectionEnded)


def test_answers_in_any_order_find_their_requests() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    first, second = call(protocol, Opcode.SEND_MESSAGE), call(protocol, Opcode.SEND_MESSAGE)
    ack = PAYLOADS[Opcode.SEND_ACK]
    events = protocol.receive_data(
        frame(Opcode.SEND_ACK, second, ack) + frame(Opcode.SEND_ACK, first, ack)
    )
    assert [event.request_id for event in events if isinstance(event, Answer)] == [second, first]
    assert not protocol.is_open(first)


def test_error_that_leaves_the_connection_open_refuses_one_request() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    send = call(protocol, Opcode.SEND_MESSAGE)
    (refusal,) = protocol.receive_data(
        frame(Opcode.ERROR, send, error_payload(ErrorCode.PAYLOAD_TOO_LARGE))
    )
    assert isinstance(refusal, Refusal)
    assert (refusal.answers, refusal.request_id) == (Opcode.SEND_MESSAGE, send)
    assert protocol.state is ClientState.ONLINE
    assert not protocol.is_open(send)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_error_code_ends_the_connection_exactly_where_the_protocol_says_so(code: ErrorCode) -> None:
    protocol = protocol_in(ClientState.ONLINE)
    (refusal,) = protocol.receive_data(frame(Opcode.ERROR, 0, error_payload(code)))
    assert isinstance(refusal, Refusal)
    assert (protocol.state is ClientState.CLOSED) is code.closes


def test_error_code_of_a_newer_server_leaves_the_connection_open() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    (refusal,) = protocol.receive_data(frame(Opcode.ERROR, 0, error_payload(999)))
    assert isinstance(refusal, Refusal)
    assert protocol.state is ClientState.ONLINE


@pytest.mark.contract("CUR-09")
def test_refused_sync_complete_goes_back_to_syncing() -> None:
    protocol = protocol_in(ClientState.COMPLETING)
    protocol.receive_data(frame(Opcode.ERROR, 2, error_payload(ErrorCode.SYNC_INCOMPLETE)))
    assert protocol.state is ClientState.SYNCING
    call(protocol, Opcode.PULL_MAILBOX)


def test_refused_cursor_leaves_room_for_another_auth() -> None:
    protocol = protocol_in(ClientState.AUTHENTICATING)
    protocol.receive_data(frame(Opcode.ERROR, 1, error_payload(ErrorCode.CURSOR_INVALID)))
    assert protocol.state is ClientState.CONNECTED
    call(protocol, Opcode.AUTH)


@pytest.mark.contract("SDK-06")
@pytest.mark.parametrize("state", [ClientState.SYNCING, ClientState.COMPLETING])
def test_nothing_is_sent_before_the_sync_is_complete(state: ClientState) -> None:
    with pytest.raises(LocalProtocolError):
        call(protocol_in(state), Opcode.SEND_MESSAGE)


@pytest.mark.contract("SDK-15")
def test_frame_of_a_newer_protocol_is_kept_and_changes_nothing() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    (event,) = protocol.receive_data(frame(0x7777, 5, b"as it came"))
    assert event == UnknownFrame(Message(0x7777, Stream.CONTROL, 5, b"as it came"))
    assert protocol.state is ClientState.ONLINE


@pytest.mark.contract("GW-03")
def test_damaged_header_ends_the_connection_after_the_frames_before_it() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    good = frame(Opcode.PUSH_EVENTS, 0, PAYLOADS[Opcode.PUSH_EVENTS])
    bad = bytearray(good)
    bad[0] ^= 0xFF
    push, ended = protocol.receive_data(good + bytes(bad) + good)
    assert isinstance(push, Answer)
    assert isinstance(ended, ConnectionEnded)
    assert ended.ending is Ending.DAMAGE
    assert protocol.receive_data(good) == []


def test_payload_that_is_not_its_record_ends_the_connection() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    (ended,) = protocol.receive_data(frame(Opcode.PUSH_EVENTS, 0, b"\x01nonsense"))
    assert isinstance(ended, ConnectionEnded)
    assert ended.error is not None
    assert ended.error.code is ErrorCode.MALFORMED_PAYLOAD


def test_eof_is_told_once() -> None:
    protocol = protocol_in(ClientState.SYNCING)
    assert protocol.receive_eof() == [ConnectionEnded(Ending.EOF, None)]
    assert protocol.receive_eof() == []


def test_request_ids_wrap_without_the_reserved_zero() -> None:
    protocol = protocol_in(ClientState.ONLINE)
    protocol._next_id = (1 << 32) - 1
    assert call(protocol, Opcode.PING) == (1 << 32) - 1
    assert call(protocol, Opcode.PING) == 1


def _conversation() -> tuple[ClientProtocol, bytes]:
    """An online protocol with a ping open, and bytes that answer it among pushes, one of them in slices."""
    protocol = protocol_in(ClientState.ONLINE)
    ping = call(protocol, Opcode.PING)
    large = PUSH_EVENTS.encode({"entries": [bytes(150_000)]})
    sliced = encode_slices(Opcode.PUSH_EVENTS, Stream.REALTIME, 0, large)
    assert len(sliced) == 3
    pong = frame(Opcode.PONG, ping, PAYLOADS[Opcode.PONG])
    return protocol, sliced[0] + pong + b"".join(sliced[1:])


def _kinds(events: list[Event]) -> list[Opcode]:
    return [event.opcode for event in events if isinstance(event, Answer)]


def test_bytes_fed_one_by_one_give_the_same_events() -> None:
    whole, data = _conversation()
    expected = whole.receive_data(data)
    single, _ = _conversation()
    seen = [event for at in range(len(data)) for event in single.receive_data(data[at : at + 1])]
    assert seen == expected
    assert _kinds(seen) == [Opcode.PONG, Opcode.PUSH_EVENTS]  # the small frame overtook the slices


@given(st.data())
def test_bytes_cut_anywhere_give_the_same_events(data: st.DataObject) -> None:
    protocol = protocol_in(ClientState.ONLINE)
    ping = call(protocol, Opcode.PING)
    stream = frame(Opcode.PUSH_EVENTS, 0, PAYLOADS[Opcode.PUSH_EVENTS]) + frame(
        Opcode.PONG, ping, PAYLOADS[Opcode.PONG]
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    edges = [0, *cuts, len(stream)]
    events = [e for a, b in itertools.pairwise(edges) for e in protocol.receive_data(stream[a:b])]
    assert _kinds(events) == [Opcode.PUSH_EVENTS, Opcode.PONG]


@given(
    st.sampled_from(list(ClientState)),
    st.lists(
        st.one_of(
            st.sampled_from(CALL_OPCODES),
            st.tuples(
                st.sampled_from([*Opcode, 0x7777]),
                st.integers(0, 6),
                st.one_of(st.binary(max_size=20), st.sampled_from(list(PAYLOADS.values()))),
            ),
            st.binary(max_size=60),
        ),
        max_size=12,
    ),
)
def test_any_sequence_ends_in_listed_states_and_our_own_errors(
    start: ClientState, inputs: list[Opcode | tuple[int, int, bytes] | bytes]
) -> None:
    protocol = protocol_in(start)
    for given_input in inputs:
        if isinstance(given_input, Opcode):
            if (protocol.state, given_input) in CALLS:
                call(protocol, given_input)
            else:
                with pytest.raises(LocalProtocolError):
                    call(protocol, given_input)
        elif isinstance(given_input, bytes):
            protocol.receive_data(given_input)
        else:
            opcode, request_id, payload = given_input
            protocol.receive_data(frame(opcode, request_id, payload))
        assert protocol.state in ClientState
