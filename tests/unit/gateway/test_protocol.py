"""The server core on bytes it should not see, and before AUTH_OK."""

import struct
from zlib import crc32

import pytest

from gateway.events import LoginRequested
from gateway.limits import GatewayLimits
from gateway.tokens import Identity
from schemas.errors import ErrorCode, RequestError, ServerFault
from schemas.frames import HEADER_BYTES, Opcode, Stream, encode_frame
from tests.support.gateway import (
    ALICE,
    DEVICE,
    SEQ,
    Peer,
    client_frame,
    message_to,
)

IDENTITY = Identity(0, ALICE, DEVICE, 1)


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def online(peer: Peer) -> Peer:
    peer.go_online()
    return peer


# --- damage ------------------------------------------------------------------------------------------------------
@pytest.mark.contract("GW-03")
def test_header_crc_mismatch_disconnects_at_once(online: Peer) -> None:
    good = client_frame(Opcode.PING, {"client_time_ms": 1, "foreground": True})
    bad = good[: HEADER_BYTES - 1] + bytes([good[HEADER_BYTES - 1] ^ 1]) + good[HEADER_BYTES:]
    assert online.feed(bad + good) == []
    online.assert_closed(ErrorCode.BAD_FRAME)
    assert online.feed(good) == []  # no resynchronisation
    assert online.frames() == []


@pytest.mark.contract("GW-03")
def test_bad_magic_disconnects(peer: Peer) -> None:
    peer.feed(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    peer.assert_closed(ErrorCode.BAD_FRAME)


def test_what_came_whole_before_damage_still_counts(online: Peer) -> None:
    events = online.feed(client_frame(Opcode.SEND_MESSAGE, message_to()) + b"\0" * HEADER_BYTES)
    assert len(events) == 1
    online.assert_closed(ErrorCode.BAD_FRAME)


def test_slice_above_the_limit_is_refused_from_its_header(online: Peer) -> None:
    frame = encode_frame(Opcode.SEND_MESSAGE, Stream.REALTIME, 1, b"x" * 65536)
    length = struct.pack(">I", 65537)
    head = frame[:12] + length
    online.feed(head + struct.pack(">I", crc32(head)))
    online.assert_closed(ErrorCode.FRAME_TOO_LARGE)


def test_message_above_the_limit_is_refused_before_it_is_whole() -> None:
    peer = Peer(GatewayLimits(max_inbound_message_bytes=100_000))
    peer.go_online()
    slice_ = encode_frame(Opcode.SEND_MESSAGE, Stream.REALTIME, 1, b"x" * 65536, flags=1)
    peer.feed(slice_)
    assert not peer.core.is_closed()
    peer.feed(slice_)
    peer.assert_closed(ErrorCode.FRAME_TOO_LARGE)


@pytest.mark.parametrize(
    ("opcode", "payload"),
    [
        (Opcode.SEND_MESSAGE, b""),
        (Opcode.SEND_MESSAGE, b"\x01\xff\xff"),
        (Opcode.PULL_MAILBOX, b"\x09"),
        (Opcode.PING, b"\x01"),
    ],
)
def test_malformed_payload_closes_with_the_request_named(
    online: Peer, opcode: Opcode, payload: bytes
) -> None:
    assert online.feed(client_frame(opcode, payload, request_id=7)) == []
    online.assert_closed(ErrorCode.MALFORMED_PAYLOAD, request_id=7)


def test_malformed_sync_complete_closes(peer: Peer) -> None:
    peer.log_in()
    peer.feed(client_frame(Opcode.SYNC_COMPLETE, b"\x01"))
    peer.assert_closed(ErrorCode.MALFORMED_PAYLOAD)


def test_malformed_auth_closes(peer: Peer) -> None:
    peer.feed(client_frame(Opcode.AUTH, b"\x01\x02"))
    peer.assert_closed(ErrorCode.MALFORMED_PAYLOAD)


# --- before AUTH_OK ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "opcode", [Opcode.SEND_MESSAGE, Opcode.PULL_MAILBOX, Opcode.SYNC_COMPLETE, Opcode.PING, 0x7777]
)
def test_anything_but_auth_first_closes(peer: Peer, opcode: int) -> None:
    assert peer.feed(client_frame(opcode, b"\x01")) == []
    peer.assert_closed(ErrorCode.NOT_AUTHENTICATED)


def test_frames_while_auth_is_judged_close(peer: Peer) -> None:
    peer.auth()
    peer.send(Opcode.SEND_MESSAGE, message_to())
    peer.assert_closed(ErrorCode.NOT_AUTHENTICATED)
    assert not peer.core.auth_accepted(1, peer.login_of())  # the late answer finds nobody
    assert peer.core.login is None


def test_bytes_of_a_stranger_are_bounded() -> None:
    peer = Peer(GatewayLimits(max_unauthenticated_bytes=100))
    peer.feed(b"x" * 0)
    peer.feed(client_frame(Opcode.AUTH, b"y" * 200)[:60])
    assert not peer.core.is_closed()
    peer.feed(b"y" * 60)
    peer.assert_closed(ErrorCode.FRAME_TOO_LARGE)


def test_login_that_takes_too_long_ends(peer: Peer) -> None:
    peer.core.check(peer.limits.auth_timeout_ms - 1)
    assert not peer.core.is_closed()
    peer.core.check(peer.limits.auth_timeout_ms)
    peer.assert_closed(ErrorCode.HEARTBEAT_TIMEOUT)
    peer.core.check(peer.limits.auth_timeout_ms * 2)
    assert peer.frames() == []


def test_auth_carries_everything_to_the_shell(peer: Peer) -> None:
    event = peer.auth(kind=2, cursor=b"signed", request_id=9)
    assert event == LoginRequested(9, "token", DEVICE, 2, b"signed", None)


@pytest.mark.contract("CUR-05", "CUR-06")
def test_auth_ok_names_session_lane_and_barrier(peer: Peer) -> None:
    frame = peer.log_in(start_seq=SEQ + 3, sync_to_seq=SEQ + 10)
    assert frame.opcode is Opcode.AUTH_OK
    assert frame.record == {
        "session_epoch": 1,
        "user_id": ALICE,
        "lane_id": 0,
        "lane_watermark": SEQ + 10,
        "trim_watermark": 0,
        "sync_to_seq": SEQ + 10,
        "cursor_seq": SEQ + 3,
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


def test_refused_login_may_try_again_but_not_for_ever(peer: Peer) -> None:
    for _ in range(peer.limits.max_auth_attempts):
        peer.auth()
        peer.core.auth_refused(1, RequestError("x", ErrorCode.CURSOR_EXPIRED), IDENTITY)
        frame = peer.frame()
        assert frame.record["code"] == ErrorCode.CURSOR_EXPIRED
        assert frame.record["rebuild_required"]
    record = {
        "access_token": "token",
        "device_id": DEVICE,
        "cursor_kind": 1,
        "cursor": b"",
        "foreground": True,
    }
    assert peer.send(Opcode.AUTH, record) == []
    peer.assert_closed(ErrorCode.AUTH_FAILED)


@pytest.mark.contract("REB-02")
def test_a_later_attempt_knows_who_was_proved_before(peer: Peer) -> None:
    assert peer.auth().proved is None
    peer.core.auth_refused(1, RequestError("x", ErrorCode.CURSOR_EXPIRED), IDENTITY)
    assert peer.auth(kind=1).proved == IDENTITY
    peer.core.auth_refused(1, ServerFault("redis is away"))
    assert peer.auth(kind=1).proved == IDENTITY


def test_wrong_token_ends_the_connection(peer: Peer) -> None:
    peer.auth()
    peer.core.auth_refused(1, RequestError("signature", ErrorCode.AUTH_FAILED))
    peer.assert_closed(ErrorCode.AUTH_FAILED)
    peer.core.auth_refused(1, RequestError("late", ErrorCode.CURSOR_INVALID))
    peer.core.auth_rebased(1, IDENTITY, b"c", 1)
    assert peer.frames() == []


@pytest.mark.contract("CUR-04")
def test_rebased_cursor_is_handed_out_and_auth_comes_again(peer: Peer) -> None:
    peer.auth(kind=2, cursor=b"old")
    peer.core.auth_rebased(1, IDENTITY, b"new", SEQ + 5)
    frame = peer.frame()
    assert frame.opcode is Opcode.CURSOR_REBASED
    assert frame.record == {"new_cursor": b"new", "replay_from_seq": SEQ + 5}
    assert peer.auth(kind=2, cursor=b"new").proved == IDENTITY
