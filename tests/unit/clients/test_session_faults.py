"""Any schedule of faults: once the path is whole again, every message is committed once and shown once at every device."""

from __future__ import annotations

from enum import Enum, auto

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.pending import PendingMessage
from schemas.errors import ErrorCode, RequestError, ServerFault
from tests.support.gateway_pair import Line, World
from tests.support.people import ALICE, BOB, bodies, compose, drop_acks


class Step(Enum):
    """What may happen next."""

    ALICE_SENDS = auto()
    BOB_SENDS = auto()
    ALICE_LOSES = auto()  # the connection breaks
    BOB_LOSES = auto()
    ALICE_CUT = auto()  # bytes vanish both ways until HEAL
    BOB_CUT = auto()
    ACKS_LOST = auto()
    PUSHES_LOST = auto()
    COMMITS_FAIL = auto()
    COMMITS_SILENT = auto()
    MAILBOX_DIRTY = auto()
    WATERMARK_STUCK = auto()
    GATEWAY_DOWN = auto()
    HEAL = auto()
    A_MOMENT = auto()
    A_WHILE = auto()


class Story:
    """One schedule and what was sent in it."""

    def __init__(self) -> None:
        self.world = World()
        self.alice = self.world.line(ALICE)
        self.bob = self.world.line(BOB, 2)
        self.sent: list[tuple[Line, PendingMessage]] = []
        for line in (self.alice, self.bob):
            line.go_online()

    def take(self, step: Step) -> None:
        """Let one thing happen."""
        world, alice, bob = self.world, self.alice, self.bob
        if step in {Step.ALICE_SENDS, Step.BOB_SENDS}:
            self._send(alice if step is Step.ALICE_SENDS else bob)
        elif step in {Step.ALICE_LOSES, Step.BOB_LOSES}:
            self._lose(alice if step is Step.ALICE_LOSES else bob)
        elif step is Step.A_MOMENT:
            world.wait(0.3)
        elif step is Step.A_WHILE:
            world.wait(4.0, step_s=0.2)
        else:
            self._break(step)
            world.settle()

    def _send(self, line: Line) -> None:
        message = compose(line, b"%d" % len(self.sent))
        self.sent.append((line, message))
        line.session.send(message, self.world.now_s)
        self.world.settle()

    def _lose(self, line: Line) -> None:
        if line.desk is not None:
            line.lose()
        self.world.settle()

    def _break(self, step: Step) -> None:
        world = self.world
        if step is Step.HEAL:
            self.heal()
        elif step in {Step.ALICE_CUT, Step.BOB_CUT}:
            (self.alice if step is Step.ALICE_CUT else self.bob).cut = True
        elif step is Step.ACKS_LOST:
            self.alice.filter = self.bob.filter = drop_acks
        elif step is Step.PUSHES_LOST:
            for desk in world.desks:
                desk.deaf = True
        elif step is Step.COMMITS_FAIL:
            world.refuse_commit = ServerFault("no store")
        elif step is Step.COMMITS_SILENT:
            world.hold_commits = True
        elif step is Step.MAILBOX_DIRTY:
            world.refuse_pull = RequestError("dirty", ErrorCode.MAILBOX_DIRTY)
        elif step is Step.WATERMARK_STUCK:
            world.watermark_offset = world.offset
        else:
            world.accept = False

    def heal(self) -> None:
        """Everything works again."""
        world = self.world
        world.accept, world.hold_commits, world.watermark_offset = True, False, None
        world.refuse_commit = world.refuse_pull = None
        for line in (self.alice, self.bob):
            line.cut, line.filter = False, bytes
        for desk in world.desks:
            desk.deaf = False

    def end(self) -> None:
        """Heal, and wait longer than any timer of a client."""
        self.heal()
        self.world.wait(15.0, step_s=0.25)
        for line in (self.alice, self.bob):
            line.session.pull(self.world.now_s)
        self.world.settle()


@pytest.mark.contract("SDK-02", "SDK-06", "COM-04", "CUR-02")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(Step), max_size=25))
def test_any_schedule_of_faults_ends_with_everything_once_everywhere(steps: list[Step]) -> None:
    story = Story()
    for step in steps:
        story.take(step)
    story.end()
    world = story.world
    expected = sorted(b"%d" % n for n in range(len(story.sent)))
    assert len(world.commits) == len(expected)
    for line, message in story.sent:
        assert message.coordinates is not None
        committed = world.commits[message.client_message_id]
        assert message.coordinates.message_id == committed.message_id
        assert message.coordinates.conversation_seq == committed.conversation_seq
        assert not line.session.pending.by_cmid
    for line in (story.alice, story.bob):
        assert line.session.is_online
        assert sorted(body or b"" for body in bodies(line)) == expected
        assert line.session.timeline.cursor_seq == world.watermark


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(Step), max_size=25))
def test_messages_of_one_device_keep_their_order_through_any_faults_but_refusals(
    steps: list[Step],
) -> None:
    story = Story()
    for step in steps:
        if step is not Step.COMMITS_FAIL:  # a refused message may be overtaken by the next one
            story.take(step)
    story.end()
    for line in (story.alice, story.bob):
        own = [message for sender, message in story.sent if sender is line]
        seqs = [message.coordinates.conversation_seq for message in own if message.coordinates]
        assert seqs == sorted(seqs)
