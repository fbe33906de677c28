"""Packed watermarks: both lengths both ways, and fail closed on anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.constants import MAX_LOG_OFFSET
from schemas.errors import RecordError
from schemas.watermarks import ABSENT, NOTHING, LaneMark, pack_uniform, pack_w, unpack_w, w_of

offsets = st.integers(0, MAX_LOG_OFFSET)
marks = st.one_of(
    st.just(ABSENT),
    st.tuples(offsets, offsets, offsets).map(lambda t: LaneMark(*t)),
    offsets.map(lambda floor: LaneMark(NOTHING, floor, NOTHING)),
    st.tuples(offsets, offsets).map(lambda t: LaneMark(*t, NOTHING)),
    st.tuples(offsets, offsets).map(lambda t: LaneMark(NOTHING, *t)),
)
lanes_of_64 = st.lists(marks, min_size=64, max_size=64)

GOOD = bytes.fromhex("01" + "00000000000a" + "000000000007" + "000000000009")


@pytest.mark.contract("WM-20", "WM-21", "WM-22")
@given(lanes_of_64)
def test_round_trip_of_any_64_lanes(lanes: list[LaneMark]) -> None:
    blob = pack_w(lanes)
    assert len(blob) == (19 if len(set(lanes)) == 1 else 1216)
    assert unpack_w(blob) == lanes


@pytest.mark.contract("WM-20")
def test_layout_of_one_lane() -> None:
    mark = LaneMark(w=10, w_floor=7, w_recomputed=9)
    assert pack_w([mark] * 64) == GOOD
    assert pack_w([mark, *[ABSENT] * 63]) == GOOD + bytes(63 * 19)


@pytest.mark.contract("WM-22", "WM-21")
@given(marks)
def test_uniform_lanes_are_written_short_and_expanded_when_read(mark: LaneMark) -> None:
    assert len(pack_w([mark] * 64)) == 19
    assert unpack_w(pack_w([mark] * 64)) == [mark] * 64


@pytest.mark.contract("WM-22")
def test_a_long_blob_of_equal_lanes_is_still_read() -> None:
    """Layout v1 always wrote 1216 bytes."""
    assert unpack_w(GOOD * 64) == [LaneMark(10, 7, 9)] * 64


@pytest.mark.contract("REG-20", "WM-23")
@given(lanes_of_64)
def test_reg_20_every_lane_is_readable_in_both_lengths(lanes: list[LaneMark]) -> None:
    uniform, wide = pack_w([lanes[0]] * 64), pack_w([*lanes[:63], LaneMark(1, 1, 1)])
    for lane in range(64):
        assert w_of(uniform, lane) == lanes[0].w
        assert w_of(wide, lane) == (lanes[lane].w if lane < 63 else 1)


@pytest.mark.contract("REG-20", "WM-23")
def test_reg_20_lane_63_of_the_short_blob() -> None:
    assert w_of(pack_uniform(41), 63) == 41
    assert unpack_w(pack_uniform(41))[63] == LaneMark(41, 41, 41)


@pytest.mark.contract("REG-31", "SEQ-12")
def test_reg_31_an_empty_store_is_below_offset_zero() -> None:
    """Positions are log offsets: "nothing yet" is -1 and offset 0 is a position, never 2**48."""
    fresh = pack_w([ABSENT] * 64)
    assert fresh == bytes(19)
    assert [w_of(fresh, lane) for lane in (0, 63)] == [NOTHING, NOTHING]
    assert NOTHING < w_of(pack_uniform(0), 0) == 0
    assert pack_uniform(0) != fresh


@pytest.mark.contract("WM-20")
@pytest.mark.parametrize("length", [0, 1, 18, 20, 38, 1215, 1217, 19 * 63, 19 * 65])
def test_other_lengths_fail_closed(length: int) -> None:
    with pytest.raises(RecordError):
        unpack_w(bytes(length))
    for lane in (0, 63):
        with pytest.raises(RecordError):
            w_of(bytes(length), lane)


DAMAGED = {
    "presence 4": b"\x04" + GOOD[1:],
    "presence 255": b"\xff" + GOOD[1:],
    "absent with an offset": b"\x00" + GOOD[1:],
    "floor only, with a W": b"\x02" + GOOD[1:13] + bytes(6),
    "floor only, with a recomputed W": b"\x02" + bytes(6) + GOOD[7:],
    "nothing recomputed, with an offset": b"\x03" + GOOD[1:],
}


@pytest.mark.contract("WM-20", "WM-06")
@pytest.mark.parametrize("case", DAMAGED)
def test_damage_fails_closed_in_both_lengths(case: str) -> None:
    raw = DAMAGED[case]
    for blob in (raw, GOOD * 63 + raw):
        with pytest.raises(RecordError):
            unpack_w(blob)
        with pytest.raises(RecordError):
            w_of(blob, 63)


@pytest.mark.contract("WM-06")
@pytest.mark.parametrize(
    "mark",
    [
        LaneMark(5, -1, 5),  # a W without its floor
        LaneMark(-1, -1, 0),  # absent in part
        LaneMark(0, -1, 0),
        LaneMark(1 << 48, 0, 0),
        LaneMark(5, 5, 1 << 48),
    ],
)
def test_marks_that_cannot_be_are_not_written(mark: LaneMark) -> None:
    with pytest.raises(RecordError):
        pack_w([mark] * 64)


@pytest.mark.contract("WM-07", "TAKE-05")
def test_a_lane_is_served_only_at_or_above_its_floor() -> None:
    served = {
        LaneMark(5, 5, 5): True,
        LaneMark(7, 5, 7): True,
        ABSENT: True,
        LaneMark(4, 5, 4): False,  # being replayed
        LaneMark(5, 5, 4): False,  # refused
        LaneMark(NOTHING, 5, NOTHING): False,
        LaneMark(5, 5, NOTHING): False,
    }
    assert {mark: mark.is_served for mark in served} == served


@pytest.mark.parametrize("count", [0, 1, 63, 65])
def test_other_lane_counts_are_not_written(count: int) -> None:
    with pytest.raises(RecordError):
        pack_w([ABSENT] * count)


@given(offsets)
def test_pack_uniform_is_pack_w_of_equal_lanes(offset: int) -> None:
    assert pack_uniform(offset) == pack_w([LaneMark(offset, offset, offset)] * 64)
