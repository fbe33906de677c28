from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.visibility import ShardView, WatermarkView
from schemas.errors import RecordError
from schemas.records import WatermarkRow
from schemas.watermarks import ABSENT, LaneMark, pack_uniform, pack_w
from tests.support.gateway import SEQ


def row(w: bytes | int, term: int = 1, **changes: Any) -> WatermarkRow:
    blob = w if isinstance(w, bytes) else pack_uniform(w)
    base: WatermarkRow = {
        "lease_term": term,
        "epoch": 1,
        "base_epoch": 1,
        "page_number": 1,
        "w": blob,
    }
    return {**base, **changes}  # type: ignore[typeddict-item]


def wide(offsets: dict[int, int], rest: int = 0) -> bytes:
    marks = [LaneMark(rest, rest, rest)] * 64
    for lane, offset in offsets.items():
        marks[lane] = LaneMark(offset, offset, offset) if offset >= 0 else ABSENT
    return pack_w(marks)


def test_a_shard_without_rows_shows_nothing() -> None:
    view = WatermarkView(2)
    assert view.shards[1].watermark(5) == 0
    assert view.shards[1].is_open(5)
    assert not view.covers(1, SEQ)
    assert not view.covers(1, SEQ, 5)


@pytest.mark.contract("WM-10", "SEQ-08")
def test_offset_zero_is_visible_once_covered() -> None:
    view = WatermarkView(1)
    view.shards[0].update(row(0))
    assert view.shards[0].watermark(63) == SEQ
    assert view.covers(0, SEQ)
    assert not view.covers(0, SEQ + 1)


@pytest.mark.contract("WM-10", "WM-09", "WM-23")
def test_each_lane_has_its_own_watermark() -> None:
    view = WatermarkView(1)
    view.shards[0].update(row(wide({3: 7, 4: -1}, rest=9)))
    assert [view.shards[0].watermark(lane) for lane in (2, 3, 4)] == [SEQ + 9, SEQ + 7, 0]
    assert view.shards[0].uniform is None
    assert not view.covers(0, SEQ + 5)  # not for everybody
    assert view.covers(0, SEQ + 5, 3)
    assert not view.covers(0, SEQ + 8, 3)
    assert not view.covers(0, SEQ, 4)


def test_a_late_row_of_a_fenced_worker_changes_nothing() -> None:
    view = ShardView()
    assert view.update(row(10, term=2))
    assert not view.update(row(99, term=1))
    assert view.watermark(0) == SEQ + 10


def test_w_never_falls_within_a_term() -> None:
    view = ShardView()
    view.update(row(10))
    view.update(row(wide({0: 12}, rest=8)))
    assert [view.watermark(0), view.watermark(1)] == [SEQ + 12, SEQ + 10]


@pytest.mark.contract("TAKE-05", "CUR-14", "WM-07")
def test_a_lane_that_went_back_is_closed_until_it_is_past_what_was_shown() -> None:
    view = WatermarkView(1)
    shard = view.shards[0]
    shard.update(row(wide({3: 20}, rest=10), term=1))
    shard.update(row(10, term=2))
    assert (shard.is_open(2), shard.is_open(3)) == (True, False)
    assert shard.uniform is None
    assert not view.covers(0, SEQ + 5)
    assert not view.covers(0, SEQ + 5, 3)
    assert view.covers(0, SEQ + 5, 2)
    shard.update(row(20, term=2))
    assert shard.is_open(3)
    assert view.covers(0, SEQ + 20)


def test_damage_raises_and_changes_nothing() -> None:
    view = ShardView()
    view.update(row(5))
    for blob in (b"", b"\x01" * 18, b"\x04" + bytes(18), bytes(1215)):
        with pytest.raises(RecordError):
            view.update(row(blob, term=9))
    assert (view.watermark(0), view.lease_term) == (SEQ + 5, 1)


def test_positions_follow_the_boundary_that_covers_their_offset() -> None:
    view = ShardView()
    view.set_boundaries(((1, 0), (2, 50), (5, 60)))
    assert view.compose(49) == (1 << 48) + 49
    assert view.compose(50) == (2 << 48) + 50
    assert view.compose(60) == (5 << 48) + 60
    assert view.base_epochs == [1]


def test_a_recreated_topic_begins_a_new_incarnation() -> None:
    view = ShardView()
    view.set_boundaries(((1, 0), (2, 50), (3, 0), (4, 10)))
    assert view.base_epochs == [1, 3]
    assert view.compose(9) == (3 << 48) + 9
    assert view.compose(10) == (4 << 48) + 10
    assert view.compose(-1) == (3 << 48) - 1  # everything of the former incarnation


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 63), st.integers(0, 40)), max_size=20))
def test_what_was_shown_stays_shown_or_the_lane_is_closed(
    rows: list[tuple[int, int, int]],
) -> None:
    view = ShardView()
    shown = [0] * 64
    for term, lane, offset in rows:
        view.update(row(wide({lane: offset}, rest=max(0, offset - 5)), term=term))
        for j in range(64):
            if view.is_open(j):
                assert view.watermark(j) >= shown[j]
                shown[j] = view.watermark(j)


@pytest.mark.contract("WM-07", "ACC-M3", "TAKE-05")
def test_acc_m3_no_watermark_below_the_floor_is_ever_told() -> None:
    """A gateway that has just started knows nothing but the row; the row says which lanes are behind or refused."""
    view = ShardView()
    behind = {5: LaneMark(100, 100, 40), 6: LaneMark(30, 100, 30), 7: LaneMark(-1, 100, -1)}
    lanes = [behind.get(lane, LaneMark(100, 100, 100)) for lane in range(64)]
    view.update(row(pack_w(lanes)))
    assert [lane for lane in range(64) if not view.is_open(lane)] == [5, 6, 7]
    assert min(view.watermark(lane) for lane in range(64)) == SEQ + 100
    lanes[6] = lanes[7] = LaneMark(101, 101, 101)  # replayed; the refused one stays refused
    view.update(row(pack_w(lanes)))
    assert [lane for lane in range(64) if not view.is_open(lane)] == [5]
    lanes[5] = LaneMark(101, 101, 101)  # its table was rebuilt
    view.update(row(pack_w(lanes), term=2))
    assert all(view.is_open(lane) for lane in range(64))


@pytest.mark.contract("WM-07")
def test_all_lanes_behind_in_the_short_form_are_closed() -> None:
    view = ShardView()
    view.update(row(pack_w([LaneMark(-1, 100, -1)] * 64)))
    assert not any(view.is_open(lane) for lane in range(64))
    view.update(row(pack_w([LaneMark(100, 100, 100)] * 64)))
    assert view.is_open(0)


def test_epochs_never_go_back() -> None:
    view = ShardView()
    assert view.learn([(1, 0), (2, 50)])
    assert not view.learn([(1, 0)])
    assert not view.learn([])
    assert view.boundaries == ((1, 0), (2, 50))


@pytest.mark.contract("TAKE-04")
def test_an_empty_log_taken_over_leaves_the_start_at_zero() -> None:
    view = ShardView()
    view.learn([(2, 0)])
    assert (view.compose(-1), view.compose(0), view.base_epochs) == (0, 2 << 48, [2])


class NaiveShard:
    """The same rules, lane by lane and without short cuts."""

    def __init__(self) -> None:
        self.term = 0
        self.w = [-1] * 64
        self.floor = [-1] * 64

    def update(self, term: int, lanes: list[int]) -> None:
        if term < self.term:
            return
        for lane, offset in enumerate(lanes):
            self.w[lane] = max(self.w[lane], offset) if term == self.term else offset
            self.floor[lane] = max(self.floor[lane], self.w[lane])
        self.term = term


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 9), st.one_of(st.none(), st.integers(0, 63))),
        max_size=25,
    )
)
def test_uniform_short_cut_changes_nothing(rows: list[tuple[int, int, int | None]]) -> None:
    view, naive = WatermarkView(1), NaiveShard()
    shard = view.shards[0]
    for term, offset, lane in rows:
        lanes = [offset] * 64
        if lane is not None:
            lanes[lane] = offset + 3
        shard.update(row(wide(dict(enumerate(lanes))), term=term))
        naive.update(term, lanes)
        for j in range(64):
            assert shard.is_open(j) == (naive.w[j] >= naive.floor[j])
            shown = max(naive.w[j], naive.floor[j])  # a closed lane goes on telling what it told
            assert shard.watermark(j) == (SEQ + shown if shown >= 0 else 0)
        everybody = len(set(naive.w)) == 1 and naive.w == naive.floor
        assert view.covers(0, SEQ + naive.w[0]) == (everybody and naive.w[0] >= 0)
