"""The pull plan against a simulated mailbox: any batch size and any order of answers gives everything once, in order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.pulls import Covered, Interval, PullPlan
from schemas.errors import ProtocolError
from schemas.identifiers import MailboxSeq

BASE = MailboxSeq.compose(1, 0)


class Mailbox:
    """Answers pulls as the gateway does: cut at `batch` entries, else covered through the end asked for."""

    def __init__(self, positions: set[int], batch: int) -> None:
        self.positions = sorted(positions)
        self.batch = batch

    def answer(self, asked: Interval) -> Covered:
        found = [p for p in self.positions if asked.after_seq < p <= asked.up_to_seq]
        entries = [p.to_bytes(8, "big") for p in found[: self.batch]]
        covered = found[self.batch - 1] if len(found) > self.batch else asked.up_to_seq
        return Covered(entries, covered, covered.to_bytes(8, "big"))


def run(plan: PullPlan, mailbox: Mailbox, shuffle: random.Random) -> tuple[list[int], list[int]]:
    """Pull everything, answering in random order; returns the positions seen and the cursors taken."""
    open_requests: list[Interval] = []
    seen: list[int] = []
    cursors: list[int] = []
    for _ in range(100_000):
        open_requests += plan.take_requests()
        assert len(open_requests) == plan.in_flight <= plan.window
        if not open_requests:
            break
        asked = open_requests.pop(shuffle.randrange(len(open_requests)))
        entries, covered, cursor = mailbox.answer(asked)
        for whole in plan.deliver(asked, entries, covered, cursor):
            seen += [int.from_bytes(entry, "big") for entry in whole.entries]
            cursors.append(whole.covered_through_seq)
            assert whole.cursor == whole.covered_through_seq.to_bytes(8, "big")
    return seen, cursors


@pytest.mark.contract("CUR-02", "CUR-08", "CUR-09")
@given(
    st.sets(st.integers(0, 5000)),
    st.integers(1, 50),
    st.integers(1, 4),
    st.integers(0, 5000),
    st.integers(0, 2**32),
)
def test_any_order_of_answers_gives_everything_once_in_order_without_a_gap(
    offsets: set[int], batch: int, window: int, cursor_offset: int, seed: int
) -> None:
    after = BASE + cursor_offset if cursor_offset else 0
    positions = {BASE + offset for offset in offsets}
    plan = PullPlan(after, BASE + 5000, window)
    seen, cursors = run(plan, Mailbox(positions, batch), random.Random(seed))
    assert seen == sorted(p for p in positions if p > after)
    assert cursors == sorted(set(cursors))
    assert plan.finished
    assert cursors[-1:] == ([BASE + 5000] if after < BASE + 5000 else [])


@pytest.mark.contract("CUR-08")
def test_wide_interval_is_asked_for_in_four_parts_at_once() -> None:
    plan = PullPlan(0, BASE + 4000, 4)
    asked = plan.take_requests()
    assert asked == [
        Interval(0, BASE + 1000),
        Interval(BASE + 1000, BASE + 2000),
        Interval(BASE + 2000, BASE + 3000),
        Interval(BASE + 3000, BASE + 4000),
    ]
    assert plan.take_requests() == []


def test_narrow_interval_is_one_request() -> None:
    assert PullPlan(BASE + 1, BASE + 300, 4).take_requests() == [Interval(BASE + 1, BASE + 300)]


def test_nothing_owed_is_finished_at_once() -> None:
    plan = PullPlan(BASE + 5, BASE + 5, 4)
    assert plan.finished
    assert plan.take_requests() == []


@pytest.mark.contract("CUR-02")
def test_cursor_waits_for_the_earlier_part() -> None:
    plan = PullPlan(0, BASE + 4000, 2)
    first, second = plan.take_requests()
    assert plan.deliver(second, [b"late"], second.up_to_seq, b"2") == []
    whole = plan.deliver(first, [b"early"], first.up_to_seq, b"1")
    assert [covered.entries for covered in whole] == [[b"early"], [b"late"]]
    assert plan.finished


@pytest.mark.contract("CUR-10", "CUR-11")
@pytest.mark.parametrize("covered", [0, BASE - 1, BASE + 101])
def test_answer_that_covers_nothing_or_too_much_is_damage(covered: int) -> None:
    plan = PullPlan(BASE, BASE + 100, 1)
    (asked,) = plan.take_requests()
    with pytest.raises(ProtocolError, match="covers through"):
        plan.deliver(asked, [], covered, b"")


def test_refused_request_is_asked_for_again() -> None:
    plan = PullPlan(0, BASE + 100, 1)
    (asked,) = plan.take_requests()
    assert plan.take_requests() == []
    plan.give_back(asked)
    assert plan.take_requests() == [asked]


def test_answer_to_no_request_is_damage() -> None:
    plan = PullPlan(0, BASE + 100, 1)
    with pytest.raises(ProtocolError, match="in flight"):
        plan.deliver(Interval(0, BASE + 100), [], BASE + 100, b"")


def test_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        PullPlan(0, 1, 0)
