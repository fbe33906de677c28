"""A device's session against the gateway's own protocol core, back to back, on a clock of the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clients.config import ClientConfig, Login
from clients.events import (
    Committed,
    EntriesShown,
    Failed,
    Kicked,
    LoginRefused,
    Offline,
    Online,
    SyncProgress,
)
from clients.pending import FoundBy, PendingMessage
from clients.session import DeviceSession
from clients.timeline import CursorKind
from schemas.errors import ErrorCode, RecordError, RequestError, ServerFault
from schemas.frames import FrameDecoder, Opcode, encode_slices
from schemas.identifiers import direct_conversation_id
from schemas.wire import SEND_ACK
from tests.support.gateway_pair import Line, World, device

ALICE, BOB = 11, 22


def compose(line: Line, body: bytes) -> PendingMessage:
    """A message from the line's user to the other one."""
    other = BOB if line.user == ALICE else ALICE
    return PendingMessage(
        {
            "client_message_id": line.session.cmids.take(),
            "conversation_id": direct_conversation_id(0, line.user, other),
            "recipient_user_id": other,
            "message_type": 1,
            "custom_type": "",
            "body": body,
            "mentions": [],
            "reply_to": None,
        },
        line.world.now_s,
    )


def say(line: Line, body: bytes) -> PendingMessage:
    """Send a message and let it travel."""
    message = compose(line, body)
    line.session.send(message, line.world.now_s)
    line.world.settle()
    return message


def bodies(line: Line) -> list[bytes | None]:
    return [entry.decode()["event"]["body"] for entry in line.session.timeline.entries]


def drop_acks(data: bytes) -> bytes:
    kept = [m for m in FrameDecoder().feed(data) if m.opcode != Opcode.SEND_ACK]
    return b"".join(frame for message in kept for frame in encode_slices(*message))


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


# --- login ------------------------------------------------------------------------------------------------------
def test_first_login_of_a_new_user_has_nothing_to_pull(world: World, alice: Line) -> None:
    assert alice.of_kind(Online) == [Online(session_epoch=7, sync_to_seq=0)]
    assert world.pulls == []


@pytest.mark.contract("CUR-06", "CUR-07", "CUR-08", "CUR-09")
def test_login_pulls_everything_below_the_barrier_before_it_is_online(world: World) -> None:
    sender = world.line(ALICE)
    sender.go_online()
    for n in range(2500):
        say(sender, b"%d" % n)
    world.batch_items = 100
    bob = world.line(BOB, 2)
    bob.go_online()
    assert bodies(bob) == [b"%d" % n for n in range(2500)]
    assert bob.session.timeline.cursor_seq == world.watermark
    online = bob.events.index(bob.of_kind(Online)[0])
    shown = [i for i, event in enumerate(bob.events) if isinstance(event, EntriesShown)]
    assert len(shown) >= 25
    assert max(shown) < online
    progress = [event.covered_through_seq for event in bob.of_kind(SyncProgress)]
    assert progress == sorted(set(progress))
    assert [pull.after_seq for pull in world.pulls[:4]] != [0, 0, 0, 0]  # four parts, not one


@pytest.mark.contract("CON-07", "REB-08")
def test_empty_cursor_starts_at_the_barrier_and_zero_cursor_at_the_beginning(world: World) -> None:
    sender = world.line(ALICE)
    sender.go_online()
    say(sender, b"old")
    fresh = world.line(BOB, 2)
    fresh.go_online()
    rebuilt = world.line(BOB, 3)
    rebuilt.session = DeviceSession(
        Login(0, BOB, device(3), f"{BOB}", start=CursorKind.EMPTY), ClientConfig()
    )
    rebuilt.go_online()
    assert bodies(fresh) == [b"old"]
    assert bodies(rebuilt) == []
    assert rebuilt.session.timeline.cursor_seq == world.watermark


@pytest.mark.contract("CUR-01", "CUR-12")
def test_second_login_goes_on_from_the_signed_cursor_of_this_device(
    world: World, alice: Line, bob: Line
) -> None:
    say(alice, b"one")
    world.wait(2.0)
    bob.session.stop()
    world.settle()
    for body in (b"two", b"three", b"four"):
        say(alice, body)
    world.pulls.clear()
    bob.go_online()
    assert bodies(bob) == [b"one", b"two", b"three", b"four"]
    assert world.pulls[0].after_seq > 0
    second = world.line(BOB, 9)
    second.go_online()
    assert bodies(second) == [b"one", b"two", b"three", b"four"]


def test_refused_login_ends_the_session_with_the_code(world: World) -> None:
    world.refuse_login = RequestError("expired", ErrorCode.AUTH_FAILED)
    line = world.line(ALICE)
    line.go_online()
    assert line.of_kind(LoginRefused)[0].code == ErrorCode.AUTH_FAILED
    assert line.of_kind(Offline)[-1].final
    world.wait(30.0, step_s=1.0)
    assert line.dials == 1


def test_expired_cursor_asks_for_a_rebuild(world: World) -> None:
    world.refuse_login = RequestError("old", ErrorCode.CURSOR_EXPIRED)
    line = world.line(ALICE)
    line.go_online()
    assert line.of_kind(LoginRefused)[0].rebuild_required


def test_unavailable_login_is_tried_again_with_growing_pauses(world: World) -> None:
    world.refuse_login = ServerFault("no store")
    line = world.line(ALICE)
    line.go_online()
    world.wait(2.0)
    assert 3 <= line.dials <= 5
    world.refuse_login = None
    world.wait(3.0)
    assert line.session.is_online


def test_gateway_that_does_not_answer_the_login_is_given_up(world: World) -> None:
    line = world.line(ALICE)
    line.cut = True
    line.go_online()
    world.wait(7.2)
    assert line.dials == 2
    assert "detection limit" in line.of_kind(Offline)[0].reason


def test_dirty_mailbox_during_login_is_pulled_again_after_a_pause(world: World) -> None:
    sender = world.line(ALICE)
    sender.go_online()
    say(sender, b"one")
    world.refuse_pull = RequestError("dirty", ErrorCode.MAILBOX_DIRTY)
    bob = world.line(BOB, 2)
    bob.go_online()
    assert bob.of_kind(Online) == []
    world.refuse_pull = None
    world.wait(0.6)
    assert bob.session.is_online
    assert bodies(bob) == [b"one"]
    assert bob.dials == 1


# --- push and pull ----------------------------------------------------------------------------------------------
@pytest.mark.contract("PUSH-06", "CUR-02")
def test_push_is_shown_at_once_and_moves_no_cursor(world: World, alice: Line, bob: Line) -> None:
    before = bob.session.timeline.cursor_seq
    say(alice, b"hello")
    assert bodies(bob) == [b"hello"]
    assert bob.of_kind(EntriesShown)[-1].pushed
    assert bob.session.timeline.cursor_seq == before


@pytest.mark.contract("PUSH-06", "SDK-02")
def test_pushes_start_one_pull_that_moves_the_cursor_and_shows_nothing_twice(
    world: World, alice: Line, bob: Line
) -> None:
    world.wait(1.5)
    world.pulls.clear()
    for n in range(20):
        say(alice, b"%d" % n)
    assert world.pulls == []
    world.wait(1.1)
    assert len(world.pulls) == 1
    assert bob.session.timeline.cursor_seq == world.watermark
    assert bodies(bob) == [b"%d" % n for n in range(20)]
    world.wait(5.0)
    assert len(world.pulls) == 1


@pytest.mark.contract("PUSH-06")
def test_push_while_a_pull_is_in_flight_only_marks_the_mailbox_dirty(
    world: World, alice: Line, bob: Line
) -> None:
    say(alice, b"one")
    world.wait(0.95)
    world.pulls.clear()
    bob.cut = True
    world.wait(0.1)  # the pull goes out and is lost on the way
    bob.cut = False
    assert bob.session._mailbox._asked
    for body in (b"two", b"three"):
        say(alice, body)
    assert world.pulls == []
    assert bodies(bob) == [b"one", b"two", b"three"]


@pytest.mark.contract("PUSH-06")
def test_pong_is_the_fallback_when_no_push_came(world: World, alice: Line, bob: Line) -> None:
    world.wait(2.0)
    assert bob.desk is not None
    bob.desk.deaf = True
    say(alice, b"unpushed")
    world.wait(10.0, step_s=1.0)
    assert bodies(bob) == []
    world.wait(60.0, step_s=1.0)
    assert bodies(bob) == [b"unpushed"]


def test_own_messages_come_to_the_other_device_by_push_and_by_pull(
    world: World, alice: Line, bob: Line
) -> None:
    second = world.line(ALICE, 5)
    second.go_online()
    message = say(alice, b"mine")
    assert bodies(second) == [b"mine"]
    assert second.session.timeline.entries[0].client_message_id == message.client_message_id
    third = world.line(ALICE, 6)
    third.go_online()
    assert bodies(third) == [b"mine"]


def test_kicked_session_stops_and_does_not_dial(world: World, alice: Line) -> None:
    assert alice.desk is not None
    alice.desk.core.kick()
    world.settle()
    assert alice.of_kind(Kicked) == [Kicked("REPLACED")]
    world.wait(20.0, step_s=1.0)
    assert alice.dials == 1
    assert alice.session.ended


def test_damaged_entry_in_a_batch_drops_the_connection_and_moves_no_cursor(
    world: World, alice: Line, bob: Line
) -> None:
    world.wait(2.0)
    say(alice, b"one")
    before = bob.session.timeline.cursor_seq
    world.mailboxes[BOB] = [(seq, b"\x01damage") for seq, _ in world.mailboxes[BOB]]
    world.wait(1.1)
    assert "damage" in bob.of_kind(Offline)[0].reason
    assert bob.session.timeline.cursor_seq == before


# --- sending ----------------------------------------------------------------------------------------------------
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


def rewriting(opcode: Opcode, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A line filter that changes the payload of one kind of frame."""

    def rewrite(data: bytes) -> bytes:
        frames: list[bytes] = []
        for message in FrameDecoder().feed(data):
            payload = change(message.payload) if message.opcode == opcode else message.payload
            frames += encode_slices(*message[:3], payload)
        return b"".join(frames)

    return rewrite


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
