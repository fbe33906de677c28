"""What a device shows: pushes, the pull behind them, its cursor; against the gateway's own protocol core."""

from __future__ import annotations

import pytest

from clients.events import (
    EntriesShown,
    Kicked,
    Offline,
)
from tests.support.gateway_pair import Line, World
from tests.support.people import ALICE, BOB, bodies, say


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
