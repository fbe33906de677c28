import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.coverage import Coverage


def test_nothing_owed_is_complete_at_once() -> None:
    assert Coverage(5, 5).complete
    assert Coverage(9, 5).complete


def test_one_missing_position_is_a_gap() -> None:
    coverage = Coverage(0, 10)
    coverage.add(0, 4)
    coverage.add(5, 10)
    assert (coverage.complete, coverage.pieces) == (False, 2)
    coverage.add(4, 5)
    assert (coverage.complete, coverage.pieces) == (True, 1)


def test_parts_outside_the_login_do_not_count() -> None:
    coverage = Coverage(10, 20)
    coverage.add(0, 10)
    coverage.add(20, 30)
    coverage.add(15, 15)
    coverage.add(16, 12)
    assert coverage.pieces == 0
    coverage.add(0, 100)
    assert coverage.complete


@pytest.mark.contract("CUR-09")
@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 32), st.integers(0, 32)), max_size=12),
)
def test_coverage_equals_a_set_of_positions(
    start: int, end: int, pieces: list[tuple[int, int]]
) -> None:
    coverage = Coverage(start, end)
    owed = set(range(start + 1, end + 1))
    served: set[int] = set()
    for after, through in pieces:
        coverage.add(after, through)
        served |= set(range(after + 1, through + 1)) & owed
        assert coverage.complete == (served == owed)
        assert coverage.pieces == sum(1 for seq in served if seq - 1 not in served)
