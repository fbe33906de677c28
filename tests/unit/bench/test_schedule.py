from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schedule import OpenLoopSchedule, PairTurn, pair_turn


def test_messages_come_due_at_an_even_rate() -> None:
    schedule = OpenLoopSchedule.for_seconds(rate_per_s=100.0, seconds=1.0, start_s=50.0)
    assert schedule.count == 100
    assert list(schedule.take_due(49.999)) == []
    assert list(schedule.take_due(50.0)) == [0]
    assert list(schedule.take_due(50.025)) == [1, 2]
    assert schedule.due_at(2) == pytest.approx(50.02)


def test_a_stall_hands_out_everything_missed_with_its_old_due_moment() -> None:
    schedule = OpenLoopSchedule(rate_per_s=10.0, count=100, start_s=0.0)
    schedule.take_due(0.0)
    missed = schedule.take_due(5.05)  # nobody called for five seconds
    assert list(missed) == list(range(1, 51))
    assert schedule.due_at(missed[0]) == pytest.approx(0.1)  # so its latency counts from here


def test_a_clock_that_steps_back_hands_out_nothing_twice() -> None:
    schedule = OpenLoopSchedule(rate_per_s=10.0, count=10, start_s=0.0)
    assert len(schedule.take_due(0.5)) == 6
    assert list(schedule.take_due(0.2)) == []
    assert list(schedule.take_due(0.6)) == [6]


@given(
    st.floats(0.5, 5000),
    st.integers(0, 300),
    st.lists(st.floats(0, 200), max_size=30),
)
def test_every_index_is_handed_out_once_and_never_before_it_is_due(
    rate: float, count: int, moments: list[float]
) -> None:
    schedule = OpenLoopSchedule(rate_per_s=rate, count=count, start_s=3.0)
    seen: list[int] = []
    for now in [*sorted(moments), 1e9]:
        due = schedule.take_due(now)
        assert all(schedule.due_at(index) <= now + 1e-6 for index in due)
        seen += due
    assert seen == list(range(count))
    assert schedule.finished


@pytest.mark.parametrize(("rate", "count"), [(0.0, 1), (-1.0, 1), (1.0, -1)])
def test_a_schedule_without_a_rate_is_refused(rate: float, count: int) -> None:
    with pytest.raises(ValueError, match="rate"):
        OpenLoopSchedule(rate, count, 0.0)


@pytest.mark.contract("LOAD-01")
def test_both_ends_of_every_pair_send_and_never_outside_their_pair() -> None:
    pairs = 3
    turns = [pair_turn(index, pairs) for index in range(4 * pairs)]
    assert turns[0] == PairTurn(0, 1)
    assert turns[3] == PairTurn(1, 0)
    assert {turn.sender for turn in turns} == set(range(2 * pairs))
    assert all(turn.sender // 2 == turn.recipient // 2 for turn in turns)


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs"):
        pair_turn(0, 0)
