"""The server core once a device is authenticated: sending, pushes, heartbeat, the ends of a connection."""

from itertools import pairwise

import pytest

from gateway.events import Batch, CommitRequested
from gateway.limits import GatewayLimits
from schemas.errors import Bug, ErrorCode, ServerFault
from schemas.frames import HEADER_BYTES, Opcode, Stream
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


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def online(peer: Peer) -> Peer:
    peer.go_online()
    return peer


# --- sending -----------------------------------------------------------------------------------------------------
@pytest.mark.contract("COM-01", "COM-04")
def test_send_becomes_a_commit_request_and_its_ack_carries_this_request_id(online: Peer) -> None:
    event = online.post(request_id=77, custom_type="app.poll", message_type=3)
    assert isinstance(event, CommitRequested)
    request = event.request
    assert (request.tenant, request.user, request.device_id) == (0, ALICE, DEVICE)
    assert (request.custom_type, request.message_type, request.body) == ("app.poll", 3, b"hello")
    assert online.frames() == []  # no ack before COMMITTED
    online.core.commit_done(77, request.client_message_id, committed(5, duplicate=True))
    frame = online.frame()
    assert (frame.opcode, frame.request_id) == (Opcode.SEND_ACK, 77)
    assert frame.record == {
        "client_message_id": request.client_message_id,
        "message_id": (5).to_bytes(16, "big"),
        "conversation_seq": 5,
        "last_activity_id": (5).to_bytes(16, "big"),
        "committed_at_ms": 1_700_000_000_000,
        "trace_id": b"t" * 16,
        "duplicate": True,
    }


@pytest.mark.contract("COM-02", "REG-08")
def test_reg_08_a_failed_commit_never_becomes_an_ack(online: Peer) -> None:
    event = online.post(request_id=8)
    cmid = event.request.client_message_id
    online.core.commit_done(8, cmid, ServerFault("password of redis is hunter2"))
    frame = online.frame()
    assert frame.opcode is Opcode.ERROR
    assert frame.record["code"] == ErrorCode.UNAVAILABLE
    assert frame.record["retryable"]
    assert frame.record["client_message_id"] == cmid
    assert "hunter2" not in frame.record["detail"]


@pytest.mark.contract("COM-26")
def test_refused_send_names_its_client_message_id(online: Peer) -> None:
    message = message_to(custom_type="x" * 65)
    assert online.send(Opcode.SEND_MESSAGE, message, request_id=4) == []
    frame = online.frame()
    assert frame.request_id == 4
    assert frame.record["code"] == ErrorCode.PAYLOAD_TOO_LARGE
    assert frame.record["client_message_id"] == message["client_message_id"]
    assert online.core.sends_in_flight == 0
    online.post()


def test_sending_is_allowed_during_the_barrier(peer: Peer) -> None:
    peer.log_in()
    peer.post()


# --- pushes --------------------------------------------------------------------------------------------------------
@pytest.mark.contract("CUR-02")
def test_push_shows_entries_without_a_cursor(online: Peer) -> None:
    assert online.core.push([entry(11), entry(12)]) == 0
    frame = online.frame()
    assert (frame.opcode, frame.request_id) == (Opcode.PUSH_EVENTS, 0)
    assert frame.record == {"entries": [entry(11), entry(12)]}
    assert online.core.push([]) == 0
    assert online.frames() == []


def test_large_push_is_cut_into_frames() -> None:
    peer = Peer(GatewayLimits(push_frame_bytes=100))
    peer.go_online()
    entries = [entry(n, b"x" * 40) for n in range(5)]
    peer.core.push(entries)
    frames = peer.frames()
    assert [len(f.record["entries"]) for f in frames] == [2, 2, 1]
    assert [e for f in frames for e in f.record["entries"]] == entries


@pytest.mark.contract("GW-13", "PUSH-01")
def test_slow_peer_misses_pushes_and_gets_the_last_one_later() -> None:
    peer = Peer(GatewayLimits(push_queue_bytes=1000))
    peer.go_online()
    assert peer.core.push([entry(1, b"x" * 1200)]) == 0
    assert peer.core.push([entry(2), entry(3)]) == 2
    assert peer.core.push([entry(4)]) == 1  # still behind: order is kept
    frames = peer.frames()
    assert [f.record["entries"] for f in frames] == [[entry(1, b"x" * 1200)], [entry(4)]]
    assert peer.core.push([entry(5)]) == 0


def test_missed_push_is_forgotten_when_the_connection_ends() -> None:
    peer = Peer(GatewayLimits(push_queue_bytes=1000))
    peer.go_online()
    peer.core.push([entry(1, b"x" * 1200)])
    peer.core.push([entry(2)])
    peer.core.kick()
    assert [f.opcode for f in peer.frames()] == [Opcode.KICKED, Opcode.PUSH_EVENTS]


# --- heartbeat and urgent frames -----------------------------------------------------------------------------------
@pytest.mark.contract("GW-08")
def test_pong_carries_interval_timeout_and_watermark(online: Peer) -> None:
    online.send(Opcode.PING, {"client_time_ms": 42, "foreground": True}, request_id=3)
    frame = online.frame()
    assert (frame.opcode, frame.request_id) == (Opcode.PONG, 3)
    assert frame.record == {
        "client_time_ms": 42,
        "next_ping_interval_ms": 120_000,
        "timeout_ms": 150_000,
        "lane_watermark": SEQ + 100,
    }


def test_silence_ends_the_connection(online: Peer) -> None:
    online.core.check(89_999)
    assert not online.core.is_closed()
    online.core.check(90_000)
    online.assert_closed(ErrorCode.HEARTBEAT_TIMEOUT)


def test_any_frame_is_a_sign_of_life(online: Peer) -> None:
    online.now_ms = 50_000
    online.post()
    online.core.check(139_999)
    assert not online.core.is_closed()


@pytest.mark.contract("GW-05")
def test_pong_overtakes_a_big_batch(peer: Peer) -> None:
    peer.log_in()
    entries = [entry(n, b"x" * 1000) for n in range(1000)]
    event = peer.pull(0, SEQ + 10)
    peer.core.pull_done(event.request_id, Batch(entries, 0, SEQ + 10, SEQ + 10, False, b"c"))
    first = peer.core.data_to_send(64 * 1024)
    peer.send(Opcode.PING, {"client_time_ms": 1, "foreground": False})
    second = peer.core.data_to_send(64 * 1024)
    assert len(first) <= 2 * 65536 + 2 * HEADER_BYTES
    assert int.from_bytes(second[4:6], "big") == Opcode.PONG
    rest = b""
    while peer.core.queued_bytes:
        rest += peer.core.data_to_send(64 * 1024)
    decoder = peer._decoder
    messages = decoder.feed(first + second + rest)
    assert [m.opcode for m in messages] == [Opcode.PONG, Opcode.MAILBOX_BATCH]


def test_batch_that_nobody_reads_ends_the_connection() -> None:
    peer = Peer(GatewayLimits(max_queue_bytes=10_000))
    peer.log_in()
    event = peer.pull(0, SEQ + 10)
    batch = Batch([entry(1, b"x" * 20_000)], 0, SEQ + 10, SEQ + 10, False, b"c")
    peer.core.pull_done(event.request_id, batch)
    peer.assert_closed(ErrorCode.SLOW_CONSUMER)


def test_socket_that_takes_no_bytes_ends_the_connection(online: Peer) -> None:
    limit_ms = online.limits.write_stall_ms
    online.core.check(limit_ms - 1, blocked_since_ms=0)
    assert not online.core.is_closed()
    online.core.check(limit_ms, blocked_since_ms=0)
    online.assert_closed(ErrorCode.SLOW_CONSUMER)


# --- ends ----------------------------------------------------------------------------------------------------------
@pytest.mark.contract("GW-10")
def test_kick_says_replaced_and_ends(online: Peer) -> None:
    online.core.kick()
    frame = online.frame()
    assert (frame.opcode, frame.record) == (Opcode.KICKED, {"reason": "REPLACED"})
    assert online.core.is_closed()
    online.core.kick()
    assert online.frames() == []


@pytest.mark.contract("COM-18")
def test_eof_swallows_late_answers(online: Peer) -> None:
    event = online.post()
    pull = online.pull(SEQ, SEQ + 1)
    online.core.receive_eof()
    online.core.commit_done(1, event.request.client_message_id, committed())
    online.core.pull_done(pull.request_id, Batch([], SEQ, SEQ + 1, SEQ + 1, False, b""))
    assert online.core.push([entry(1)]) == 0
    online.core.kick()
    online.core.drain()
    online.core.receive_eof()
    assert online.core.is_closed()
    assert online.core.data_to_send(1000) == b""
    assert (online.core.sends_in_flight, online.core.pulls_in_flight) == (0, 0)


def test_drain_before_login_ends_at_once(peer: Peer) -> None:
    peer.core.drain()
    peer.assert_closed(ErrorCode.DRAINING)


def test_drain_lets_answers_leave_and_takes_nothing_new(online: Peer) -> None:
    event = online.post(request_id=5)
    pull = online.pull(SEQ, SEQ + 1, request_id=6)
    online.core.drain()
    online.core.drain()
    assert online.send(Opcode.SEND_MESSAGE, message_to(number=2)) == []
    online.send(Opcode.PING, {"client_time_ms": 1, "foreground": True})
    assert online.frame().opcode is Opcode.PONG
    online.core.check(0)
    assert not online.core.is_closed()
    online.core.commit_done(5, event.request.client_message_id, committed())
    online.core.check(0)
    assert not online.core.is_closed()
    online.core.pull_done(6, pull_batch())
    assert {f.opcode for f in online.frames()} == {Opcode.SEND_ACK, Opcode.MAILBOX_BATCH}
    assert pull.request_id == 6
    online.core.check(0)
    online.assert_closed(ErrorCode.DRAINING)


def pull_batch() -> Batch:
    return Batch([], SEQ, SEQ + 1, SEQ + 1, False, b"")


def test_bytes_fed_one_by_one_mean_the_same() -> None:
    record = {"after_seq": 0, "up_to_seq": SEQ + 9, "max_items": 0, "max_bytes": 0}
    stream = (
        client_frame(Opcode.SEND_MESSAGE, message_to(body=b"y" * 100_000), 1, Stream.REALTIME)
        + client_frame(Opcode.PING, {"client_time_ms": 1, "foreground": True}, 2)
        + client_frame(Opcode.PULL_MAILBOX, record, 3, Stream.BULK)
        + client_frame(0x0999, b"z", 4)
    )
    whole, crumbs = Peer(), Peer()
    for peer in (whole, crumbs):
        peer.log_in()
    whole.feed(stream)
    cuts = sorted(
        {
            *range(300),
            *range(300, len(stream) - 300, 997),
            *range(len(stream) - 300, len(stream) + 1),
        }
    )
    for low, high in pairwise(cuts):
        crumbs.feed(stream[low:high])
    assert list(crumbs.events) == list(whole.events)
    assert crumbs.frames() == whole.frames()
    assert len(whole.events) == 3


def test_a_call_out_of_order_is_our_own_bug(peer: Peer) -> None:
    with pytest.raises(Bug):
        peer.core.push([entry(1)])
    with pytest.raises(Bug):
        _ = peer.core._session
