import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from streams.gates import Gates, Reason

A, B = TP("t", 0), TP("t", 1)


def test_partition_opens_only_when_the_last_reason_is_taken_back() -> None:
    gates = Gates()

    assert gates.close([A, B], Reason.START) == [A, B]
    assert gates.close([A], Reason.FAUST) == []
    assert gates.open([A, B], Reason.FAUST) == []
    assert not gates.is_open(A)
    assert gates.open([A], Reason.START) == [A]
    assert gates.is_open(A)
    assert gates.closed_for(Reason.START) == {B}


@pytest.mark.contract("TAKE-07")
def test_resume_by_faust_does_not_open_a_partition_without_a_start_position() -> None:
    gates = Gates()
    gates.close([A], Reason.FAUST)
    gates.close([A], Reason.START)

    assert gates.open([A], Reason.FAUST) == []


def test_opening_an_open_partition_changes_nothing() -> None:
    assert Gates().open([A], Reason.HOLD) == []


def test_forgotten_partition_is_open() -> None:
    gates = Gates()
    gates.close([A], Reason.START)

    gates.forget([A, B])

    assert gates.is_open(A)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([A, B]), st.sampled_from(Reason))))
def test_every_change_is_told_once_and_matches_the_reasons(
    moves: list[tuple[bool, TP, Reason]],
) -> None:
    gates, reasons = Gates(), {A: set[Reason](), B: set[Reason]()}
    for closing, tp, reason in moves:
        was_open = not reasons[tp]
        if closing:
            told = gates.close([tp], reason)
            reasons[tp].add(reason)
            assert told == ([tp] if was_open else [])
        else:
            told = gates.open([tp], reason)
            reasons[tp].discard(reason)
            assert told == ([tp] if not was_open and not reasons[tp] else [])
        assert gates.is_open(tp) == (not reasons[tp])
