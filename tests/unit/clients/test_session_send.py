"""What becomes of a device's messages: ACKs, lost ACKs, dead paths, refusals; against the gateway's own protocol core."""

from __future__ import annotations

import pytest

from clients.events import (
    Committed,
    Failed,
    Offline,
)
from clients.pending import FoundBy
from schemas.errors import ErrorCode, RecordError, RequestError, ServerFault
from schemas.frames import Opcode
from schemas.wire import SEND_ACK
from tests.support.gateway_pair import Line, World
from tests.support.people import ALICE, BOB, bodies, compose, drop_acks, rewriting, say


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def alice(world: World) -> Line:
    line = world.line(ALICE)
    line.go_online()
    return line


@pytest.fixture
def bob(world: World) -> Line:
    line = world.line(BOB, 2)
    line.go_online()
    return line


@pytest.mark.contract("COM-04", "GW-17")
def test_ack_brings_the_coordinates(world: World, alice: Line) -> None:
    message = say(alice, b"hello")
    assert message.coordinates is not None
    assert message.coordinates.found_by is FoundBy.ACK
    assert (message.coordinates.conversation_seq, message.attempts) == (1, 1)
    assert alice.of_kind(Committed) == [Committed(message)]


@pytest.mark.contract("SDK-05")
def test_message_sent_offline_leaves_after_the_next_login(world: World) -> None:
    line = world.line(ALICE)
    message = say(line, b"early")
    assert not message.settled
    line.go_online()
    assert message.coordinates is not None
    assert message.attempts == 1


@pytest.mark.contract("GW-09", "COM-04")
def test_lost_ack_is_probed_after_three_seconds_and_the_retry_has_the_same_coordinates(
    world: World, alice: Line
) -> None:
    alice.filter = drop_acks
    message = say(alice, b"hello")
    world.wait(2.9)
    assert (message.settled, message.attempts) == (False, 1)
    alice.filter = bytes
    world.wait(0.2)
    assert message.attempts == 2
    assert message.coordinates is not None
    assert message.coordinates.duplicate
    assert message.coordinates.message_id == world.commits[message.client_message_id].message_id
    assert (len(world.commits), alice.dials) == (1, 1)


@pytest.mark.contract("PUSH-06")
def test_pong_of_the_probe_pulls_the_mailbox_which_settles_the_message(
    world: World, alice: Line
) -> None:
    world.hold_commits = True
    message = say(alice, b"hello")
    world.wait(3.1)
    assert (message.settled, message.attempts) == (False, 2)
    world.wait(1.0)
    assert message.coordinates is not None
    assert message.coordinates.found_by is FoundBy.MAILBOX
    assert message.coordinates.message_id == world.commits[message.client_message_id].message_id
    assert (alice.of_kind(Committed), alice.dials) == ([Committed(message)], 1)


@pytest.mark.contract("GW-09", "SDK-06")
def test_after_a_dead_path_the_mailbox_settles_the_message_and_nothing_is_sent_again(
    world: World, alice: Line
) -> None:
    world.hold_commits = True
    message = say(alice, b"hello")
    alice.cut = True
    world.wait(7.05)
    assert alice.of_kind(Offline)
    alice.cut = False
    world.wait(0.2)
    assert alice.dials == 2
    assert message.coordinates is not None
    assert message.coordinates.found_by is FoundBy.MAILBOX
    assert (message.attempts, len(world.commits)) == (1, 1)
    assert alice.of_kind(Committed) == [Committed(message)]


@pytest.mark.contract("GW-09", "GATE-07")
def test_gate_07_silent_path_is_given_up_within_seven_seconds(world: World, alice: Line) -> None:
    alice.cut = True
    say(alice, b"hello")
    world.wait(6.9)
    assert not alice.of_kind(Offline)
    world.wait(0.15)
    assert alice.of_kind(Offline)


@pytest.mark.contract("GW-09", "GATE-07")
def test_gate_07_gateway_that_answers_pings_but_no_message_is_given_up_within_seven_seconds(
    world: World, alice: Line
) -> None:
    world.ignore_sends = True
    message = say(alice, b"hello")
    world.wait(6.9)
    assert (message.attempts, alice.of_kind(Offline)) == (2, [])
    world.wait(0.15)
    assert alice.of_kind(Offline)
    world.ignore_sends = False
    world.wait(0.3)
    assert message.coordinates is not None


@pytest.mark.contract("COM-04")
def test_ack_that_names_another_message_settles_nothing(world: World, alice: Line) -> None:
    def other(payload: bytes) -> bytes:
        return SEND_ACK.encode(
            {**SEND_ACK.decode(payload), "client_message_id": b"other message id"}
        )

    alice.filter = rewriting(Opcode.SEND_ACK, other)
    message = say(alice, b"hello")
    assert not message.settled
    assert "another message" in alice.of_kind(Offline)[0].reason


@pytest.mark.contract("CUR-11")
def test_gateway_whose_watermark_lags_does_not_move_the_cursor_back(
    world: World, alice: Line, bob: Line
) -> None:
    say(alice, b"one")
    say(alice, b"two")
    world.wait(1.1)
    cursor = bob.session.timeline.cursor_seq
    bob.lose()
    world.watermark_offset = 0
    world.wait(0.3)
    assert bob.session.is_online
    assert bob.session.timeline.cursor_seq == cursor


@pytest.mark.contract("SDK-06")
def test_message_that_never_arrived_is_sent_again_after_reconnect_in_order(
    world: World, alice: Line, bob: Line
) -> None:
    alice.cut = True
    sent = [say(alice, b"%d" % n) for n in range(5)]
    alice.lose()
    alice.cut = False
    world.wait(0.2)
    assert [m.coordinates.conversation_seq for m in sent if m.coordinates] == [1, 2, 3, 4, 5]
    assert bodies(bob) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.contract("SDK-06")
def test_message_older_than_a_day_is_not_sent_again(world: World, alice: Line) -> None:
    alice.cut = True
    world.accept = False
    message = say(alice, b"late")
    alice.lose()
    world.now_s += 24 * 3600 + 1
    alice.cut, world.accept = False, True
    world.wait(6.0, step_s=0.5)
    assert alice.session.is_online
    assert message.error is not None
    assert alice.of_kind(Failed) == [Failed(message)]
    assert world.commits == {}


def test_refusal_for_good_fails_the_message_with_the_code(world: World, alice: Line) -> None:
    world.refuse_commit = RequestError("other message", ErrorCode.IDEMPOTENCY_CONFLICT)
    message = say(alice, b"hello")
    assert message.error is not None
    assert message.error.code is ErrorCode.IDEMPOTENCY_CONFLICT
    assert alice.session.is_online


def test_retryable_refusal_is_sent_again_under_the_same_id(world: World, alice: Line) -> None:
    world.refuse_commit = ServerFault("busy")
    message = say(alice, b"hello")
    world.wait(0.6)
    assert (message.settled, message.attempts) == (False, 2)
    world.refuse_commit = None
    world.wait(0.6)
    assert message.coordinates is not None
    assert list(world.commits) == [message.client_message_id]


def test_message_that_the_wire_cannot_carry_is_refused_at_once(world: World) -> None:
    line = world.line(ALICE)
    message = compose(line, b"fine")
    message.record["body"] = "text"  # type: ignore[typeddict-item]
    for _ in ("offline", "online"):
        with pytest.raises(RecordError):
            line.session.send(message, world.now_s)
        assert line.session.pending.by_cmid == {}
        line.go_online()
        assert line.session.is_online


def test_client_message_id_under_way_is_refused(world: World) -> None:
    line = world.line(ALICE)
    message = say(line, b"once")
    with pytest.raises(ValueError, match="under way"):
        line.session.send(message, world.now_s)


def test_settled_message_sent_again_gets_the_same_coordinates(world: World, alice: Line) -> None:
    message = say(alice, b"hello")
    first = message.coordinates
    assert first is not None
    alice.session.resend(message, world.now_s)
    world.settle()
    assert message.coordinates == first._replace(duplicate=True)


def test_gateway_that_drains_is_left_and_the_message_goes_elsewhere(
    world: World, alice: Line
) -> None:
    world.hold_commits = True
    message = say(alice, b"hello")
    world.hold_commits = False
    assert alice.desk is not None
    alice.desk.core.drain()
    alice.desk.core.sends_in_flight = 0
    alice.desk.core.check(int(world.now_s * 1000))
    world.settle()
    world.wait(0.3)
    assert alice.dials == 2
    assert message.coordinates is not None


def test_heartbeat_follows_the_interval_of_the_gateway(world: World, alice: Line) -> None:
    pongs: list[float] = []

    def watch(data: bytes) -> bytes:
        pongs.append(world.now_s)
        return data

    alice.filter = watch
    world.wait(200.0, step_s=1.0)
    assert [round(at - 1000.0) for at in pongs] == [60, 180]


def test_online_session_has_nothing_to_do_until_the_next_heartbeat(
    world: World, alice: Line
) -> None:
    world.wait(1.5)
    assert alice.session.next_deadline_s() == pytest.approx(1060.0, abs=0.1)
