"""A device's login against the gateway's own protocol core, back to back, on a clock of the test."""

from __future__ import annotations

import pytest

from clients.config import ClientConfig, Login
from clients.events import (
    EntriesShown,
    LoginRefused,
    Offline,
    Online,
    SyncProgress,
)
from clients.session import DeviceSession
from schemas.errors import ErrorCode, RequestError, ServerFault
from schemas.wire import CursorKind
from tests.support.gateway_pair import Line, World, device
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
