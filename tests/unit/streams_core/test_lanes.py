"""LaneLedger against a plain model: W is continuous coverage, lane by lane."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import Bug
from schemas.watermarks import ABSENT, NOTHING, LaneMark, pack_uniform, pack_w, unpack_w
from streams.lanes import LaneLedger, higher_marks, pack_marks

FRESH = [NOTHING] * 64


def test_a_fresh_ledger_covers_nothing_and_starts_at_offset_0() -> None:
    ledger = LaneLedger(FRESH)
    assert ledger.marks() == FRESH
    assert ledger.next_offset == 0
    assert not ledger.covered(0, 0)


@pytest.mark.contract("LANE-04", "WM-02")
def test_an_empty_lane_passes_at_once() -> None:
    ledger = LaneLedger(FRESH)
    ledger.see(0)
    ledger.open(7, 0, chunks=2)
    ledger.see(1)
    assert ledger.w(7) == NOTHING
    assert [ledger.w(lane) for lane in range(64) if lane != 7] == [1] * 63
    assert ledger.blocked == {7}


@pytest.mark.contract("WM-01", "WM-03", "REG-30")
def test_reg_30_w_stops_before_the_first_unfinished_record() -> None:
    ledger = LaneLedger(FRESH)
    for offset in range(5):
        ledger.see(offset)
    ledger.open(3, 1, 1)
    ledger.open(3, 4, 1)
    assert ledger.w(3) == 0  # 2 and 3 are done, 4 was seen: none of them counts
    assert ledger.finish(3, 1)
    assert ledger.w(3) == 3
    assert ledger.finish(3, 4)
    assert ledger.marks() == [4] * 64


@pytest.mark.contract("DP-03", "WM-03")
def test_a_record_ends_with_its_last_chunk() -> None:
    ledger = LaneLedger(FRESH)
    ledger.see(0)
    ledger.open(3, 0, 3)
    assert [ledger.finish(3, 0) for _ in range(2)] == [False, False]
    assert ledger.w(3) == NOTHING
    assert ledger.finish(3, 0)
    assert ledger.w(3) == 0


@pytest.mark.contract("WM-04")
@pytest.mark.parametrize("offset", [-1, 0, 2, 5])
def test_a_jump_in_the_log_is_refused(offset: int) -> None:
    ledger = LaneLedger(FRESH)
    ledger.see(0)
    with pytest.raises(Bug):
        ledger.see(offset)


def test_work_out_of_order_inside_a_lane_is_refused() -> None:
    ledger = LaneLedger(FRESH)
    for offset in range(3):
        ledger.see(offset)
    ledger.open(3, 1, 1)
    for wrong in ((3, 1, 1), (3, 0, 1), (4, 9, 1), (5, 2, 0)):
        with pytest.raises(Bug):
            ledger.open(*wrong)
    for lane, offset in ((3, 2), (4, 1)):
        with pytest.raises(Bug):
            ledger.finish(lane, offset)


@pytest.mark.parametrize("count", [0, 63, 65])
def test_other_lane_counts_are_a_bug(count: int) -> None:
    with pytest.raises(Bug):
        LaneLedger([NOTHING] * count)


@pytest.mark.contract("TAKE-02", "WM-01")
def test_a_restart_never_takes_a_lane_back() -> None:
    starts = [9] * 64
    starts[5] = 3
    ledger = LaneLedger(starts)
    assert ledger.next_offset == 4
    assert ledger.covered(0, 9)
    assert not ledger.covered(5, 4)
    ledger.see(4)
    assert ledger.marks() == [4 if lane == 5 else 9 for lane in range(64)]


# Records as the lanes with work in them and their chunks; then the order in which chunks get done.
RECORDS = st.lists(st.dictionaries(st.integers(0, 3), st.integers(1, 3), max_size=3), max_size=8)


@pytest.mark.contract("WM-01", "WM-02", "WM-05", "LANE-03", "REG-30")
@settings(max_examples=80)
@given(
    RECORDS,
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(-1, 3), min_size=4, max_size=4),
)
def test_reg_30_w_is_what_the_definition_says(
    records: list[dict[int, int]], order: list[int], starts: list[int]
) -> None:
    """Every position up to W[lane] is empty or finished in that lane, and the next one is not."""
    ledger = LaneLedger(starts + [min(starts)] * 60)
    first = min(starts) + 1
    left: dict[int, dict[int, int]] = {lane: {} for lane in range(4)}  # lane -> offset -> chunks
    last = first - 1
    for last, lanes in enumerate(records, first):
        ledger.see(last)
        for lane, chunks in lanes.items():
            if not ledger.covered(lane, last):
                ledger.open(lane, last, chunks)
                left[lane][last] = chunks
        _check(ledger, left, starts, last)
    for lane in order:
        if left[lane]:
            oldest = min(left[lane])
            left[lane][oldest] -= 1
            assert ledger.finish(lane, oldest) == (left[lane][oldest] == 0)
            if not left[lane][oldest]:
                del left[lane][oldest]
        _check(ledger, left, starts, last)


def _check(
    ledger: LaneLedger, left: dict[int, dict[int, int]], starts: list[int], last: int
) -> None:
    for lane in range(4):
        continuous = min(left[lane]) - 1 if left[lane] else last
        assert ledger.w(lane) == ledger.marks()[lane] == max(continuous, starts[lane])
    assert ledger.marks()[4:] == [max(last, min(starts))] * 60


# --- packing -------------------------------------------------------------------------------------------------

marks_of_64 = st.lists(st.integers(-1, 1 << 40), min_size=64, max_size=64) | st.integers(
    -1, 99
).map(lambda n: [n] * 64)


@pytest.mark.contract("WM-06", "WM-20", "REG-31")
@settings(max_examples=30)
@given(marks_of_64)
def test_marks_are_packed_with_their_floor(marks: list[int]) -> None:
    expected = [ABSENT if w == NOTHING else LaneMark(w, w, w) for w in marks]
    assert unpack_w(pack_marks(marks)) == expected
    assert pack_marks(marks) == pack_w(expected)


@pytest.mark.contract("WM-01")
@settings(max_examples=30)
@given(marks_of_64, marks_of_64)
def test_a_stored_w_never_goes_back(stored: list[int], marks: list[int]) -> None:
    higher = higher_marks(pack_marks(stored), marks)
    assert higher == [max(pair) for pair in zip(stored, marks, strict=True)]
    assert higher_marks(None, marks) == marks


def test_uniform_marks_take_the_short_form() -> None:
    assert pack_marks([5] * 64) == pack_uniform(5)
    assert pack_marks(FRESH) == bytes(19)
