"""The server core between AUTH_OK and ONLINE_READY: pulls, coverage, order of frames."""

import pytest

from gateway.events import Batch, PullRequested
from gateway.limits import GatewayLimits
from gateway.states import State
from gateway.tokens import Identity
from schemas.errors import ErrorCode, RequestError
from schemas.frames import Opcode
from tests.support.gateway import (
    ALICE,
    DEVICE,
    SEQ,
    Peer,
    client_frame,
    entry,
)

IDENTITY = Identity(0, ALICE, DEVICE, 1)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def online(peer: Peer) -> Peer:
    peer.go_online()
    return peer


# --- the login barrier -------------------------------------------------------------------------------------------
@pytest.mark.contract("CUR-09")
def test_sync_complete_needs_the_value_of_this_auth_ok(peer: Peer) -> None:
    peer.log_in(start_seq=SEQ + 10, sync_to_seq=SEQ + 10)
    peer.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 9})
    peer.assert_refused(ErrorCode.SYNC_INCOMPLETE)
    peer.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 11})
    peer.assert_refused(ErrorCode.SYNC_INCOMPLETE)
    peer.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 10})
    frame = peer.frame()
    assert frame.opcode is Opcode.ONLINE_READY
    assert frame.record == {"sync_to_seq": SEQ + 10, "cursor": b"cursor-at-sync"}
    assert peer.core.state is State.ONLINE


@pytest.mark.contract("CUR-09")
def test_sync_complete_with_a_gap_between_batches_is_incomplete(peer: Peer) -> None:
    peer.log_in(sync_to_seq=SEQ + 10)
    peer.serve(0, SEQ + 4)
    peer.serve(SEQ + 5, SEQ + 10)
    peer.frames()
    peer.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 10})
    peer.assert_refused(ErrorCode.SYNC_INCOMPLETE)
    peer.serve(SEQ + 4, SEQ + 5)
    peer.frames()
    peer.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 10})
    assert peer.frame().opcode is Opcode.ONLINE_READY


def test_second_sync_complete_is_out_of_order(online: Peer) -> None:
    online.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 10})
    online.assert_closed(ErrorCode.UNEXPECTED_FRAME)


def test_second_auth_is_out_of_order(online: Peer) -> None:
    online.feed(client_frame(Opcode.AUTH, b"\x01"))
    online.assert_closed(ErrorCode.UNEXPECTED_FRAME)


@pytest.mark.parametrize("opcode", [Opcode.SEND_ACK, Opcode.AUTH_OK, Opcode.PUSH_EVENTS])
def test_a_client_cannot_speak_for_the_server(online: Peer, opcode: Opcode) -> None:
    online.feed(client_frame(opcode, b"\x01"))
    online.assert_closed(ErrorCode.UNEXPECTED_FRAME)


def test_unknown_opcode_is_refused_and_the_connection_goes_on(online: Peer) -> None:
    online.feed(client_frame(0x0406, b"anything", request_id=5))
    frame = online.frame()
    assert (frame.request_id, frame.record["code"]) == (5, ErrorCode.UNKNOWN_OPCODE)
    online.post()


@pytest.mark.contract("CUR-08")
def test_pull_carries_the_interval_and_bounded_counts(peer: Peer) -> None:
    peer.log_in()
    record = {"after_seq": 0, "up_to_seq": SEQ + 9, "max_items": 1 << 30, "max_bytes": 0}
    events = peer.send(Opcode.PULL_MAILBOX, record, request_id=3)
    limits = peer.limits
    assert events == [PullRequested(3, 0, SEQ + 9, limits.pull_max_items, limits.pull_max_bytes)]


@pytest.mark.contract("CUR-08")
def test_fifth_pull_in_flight_closes(peer: Peer) -> None:
    peer.log_in()
    for number in range(4):
        peer.pull(0, SEQ + number, request_id=number)
    assert peer.frames() == []
    record = {"after_seq": 0, "up_to_seq": SEQ + 9, "max_items": 0, "max_bytes": 0}
    assert peer.send(Opcode.PULL_MAILBOX, record) == []
    peer.assert_closed(ErrorCode.PULL_WINDOW_EXCEEDED)


def test_answered_pulls_free_the_window(peer: Peer) -> None:
    peer.log_in()
    for number in range(9):
        peer.serve(SEQ + number, SEQ + number + 1)
    assert [f.opcode for f in peer.frames()] == [Opcode.MAILBOX_BATCH] * 9


def test_backward_interval_is_refused(peer: Peer) -> None:
    peer.log_in()
    record = {"after_seq": SEQ, "up_to_seq": SEQ, "max_items": 0, "max_bytes": 0}
    assert peer.send(Opcode.PULL_MAILBOX, record) == []
    peer.assert_refused(ErrorCode.INVALID_REQUEST)
    assert peer.core.pulls_in_flight == 0


@pytest.mark.contract("CUR-08")
def test_batch_passes_entries_through_with_coverage_and_cursor(peer: Peer) -> None:
    peer.log_in()
    event = peer.pull(0, SEQ + 10, request_id=6)
    entries = [entry(1), entry(2)]
    peer.core.pull_done(event.request_id, Batch(entries, 0, SEQ + 2, SEQ + 100, True, b"c2"))
    frame = peer.frame()
    assert (frame.opcode, frame.request_id) == (Opcode.MAILBOX_BATCH, 6)
    assert frame.record == {
        "entries": entries,
        "after_seq": 0,
        "covered_through_seq": SEQ + 2,
        "lane_watermark": SEQ + 100,
        "has_more": True,
        "cursor": b"c2",
    }


@pytest.mark.contract("CUR-14")
def test_failed_pull_keeps_the_connection(peer: Peer) -> None:
    peer.log_in()
    for code in (ErrorCode.SHARD_MOVED, ErrorCode.MAILBOX_DIRTY, ErrorCode.CURSOR_EXPIRED):
        event = peer.pull(0, SEQ + 10)
        peer.core.pull_done(event.request_id, RequestError("x", code))
        peer.assert_refused(code)


def test_scattered_pulls_are_bounded() -> None:
    peer = Peer(GatewayLimits(max_sync_pieces=2))
    peer.log_in(sync_to_seq=SEQ + 100)
    for low in (0, 10, 20):
        peer.serve(SEQ + low, SEQ + low + 1)
    assert peer.core.is_closed()
    assert peer.frames()[0].record["code"] == ErrorCode.PULL_WINDOW_EXCEEDED


def test_pull_done_outside_the_barrier_counts_nothing(online: Peer) -> None:
    online.serve(SEQ + 10, SEQ + 20)
    assert online.frame().opcode is Opcode.MAILBOX_BATCH


def test_a_batch_above_the_frame_limit_ends_the_connection(peer: Peer) -> None:
    peer.log_in()
    event = peer.pull(0, SEQ + 10)
    batch = Batch([entry(1, bytes(5 << 20))], 0, SEQ + 10, SEQ + 10, False, b"c")
    peer.core.pull_done(event.request_id, batch)
    peer.assert_closed(ErrorCode.FRAME_TOO_LARGE)
