"""Where a shard continues: W computed anew from progress, the three witnesses, lanes that are refused (TAKE-01, M-3)."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ErrorCode, StoreFault
from schemas.records import DispatchProgress
from schemas.watermarks import ABSENT, NOTHING, LaneMark
from streams.takeover import Recomputed, first_to_verify, plan_takeover, recompute_w
from tables.progress import BLOCK_RECORDS, OffsetBlock, OffsetIndex

LANES = range(64)
END = 150  # records 0..149


def id_of(offset: int) -> bytes:
    return offset.to_bytes(16, "big")


def progress(offset: int, unfinished: Sequence[int] = ()) -> DispatchProgress:
    return {
        "payload_digest": bytes(32),
        "canonical_log_offset": offset,
        "max_observed_offset": offset,
        "last_seen_ms": 1,
        "completed_at_ms": 1,
        "manifest": b"",
        "expected": 1,
        "done": 1,
        "unfinished_lanes": list(unfinished),
    }


class Table:
    """Rows of `END` records, and the index over them."""

    def __init__(self, end: int = END) -> None:
        self.rows: dict[bytes, DispatchProgress | None] = {
            id_of(offset): progress(offset) for offset in range(end)
        }
        self.ids = [id_of(offset) for offset in range(end)]

    def known(self, ids: Sequence[bytes]) -> Mapping[bytes, DispatchProgress | None]:
        return {i: self.rows[i] for i in ids if i in self.rows}

    def blocks(self, first: int = 0) -> list[OffsetBlock]:
        starts = range(first - first % BLOCK_RECORDS, len(self.ids), BLOCK_RECORDS)
        return [OffsetBlock(at, self.ids[at : at + BLOCK_RECORDS]) for at in starts]

    def recomputed(self, first: int = 0) -> Recomputed:
        return recompute_w(first, self.blocks(first), self.known)


def marks(w: int, floor: int | None = None) -> list[LaneMark]:
    floor = w if floor is None else floor
    return [ABSENT if w == floor == NOTHING else LaneMark(w, floor, w)] * 64


@pytest.mark.contract("TAKE-01", "WM-02", "CON-36")
@pytest.mark.parametrize("first", [0, 1, 63, 64, 65, 140, END])
def test_w_is_the_continuous_end_of_what_is_finished(first: int) -> None:
    assert Table().recomputed(first) == Recomputed([END - 1] * 64, frozenset())


@pytest.mark.contract("TAKE-01", "LANE-03")
def test_an_unfinished_record_ends_its_own_lanes_only() -> None:
    table = Table()
    table.rows[id_of(70)] = progress(70, [3, 63])
    table.rows[id_of(90)] = progress(90, [3, 5])
    found = table.recomputed()
    expected = {3: 69, 63: 69, 5: 89}
    assert found.marks == [expected.get(lane, END - 1) for lane in LANES]
    assert found.stopped == {3, 5, 63}


@pytest.mark.contract("DISP-07")
def test_duplicates_leave_no_hole() -> None:
    """Three observations of one dispatch: the row knows two of the offsets, the index all three."""
    table = Table()
    for offset in (20, 30):
        table.ids[offset] = id_of(10)
    table.rows[id_of(10)] = progress(10) | {"max_observed_offset": 30}
    assert table.recomputed().marks == [END - 1] * 64


@pytest.mark.parametrize("damage", ["missing", "undecodable", "of a later record"])
def test_a_damaged_row_ends_every_lane(damage: str) -> None:
    table = Table()
    if damage == "missing":
        del table.rows[id_of(70)]
    else:
        table.rows[id_of(70)] = None if damage == "undecodable" else progress(71)
    assert table.recomputed() == Recomputed([69] * 64, frozenset(LANES))


def test_a_missing_block_is_a_hole_and_a_missing_end_is_not() -> None:
    table = Table()
    blocks = table.blocks()
    hole = recompute_w(0, [blocks[0], blocks[2]], table.known)
    assert hole == Recomputed([63] * 64, frozenset(LANES))
    assert recompute_w(0, blocks[:2], table.known) == Recomputed([127] * 64, frozenset())
    assert recompute_w(0, [], table.known) == Recomputed([-1] * 64, frozenset())


def test_verification_begins_below_every_floor_and_inside_the_log() -> None:
    uneven = [LaneMark(5000, 5000, 5000)] * 63 + [LaneMark(4000, 3000, 4000)]
    assert first_to_verify(uneven, 0) == 1977
    assert first_to_verify(uneven, 2500) == 2500
    assert first_to_verify([ABSENT], 0) == 0


@pytest.mark.contract("TAKE-01", "TAKE-02", "TAKE-07")
@given(st.integers(-1, 90), st.integers(-1, 90), st.integers(-1, 90))
def test_the_start_is_behind_the_lowest_witness(table: int, store: int, again: int) -> None:
    plan = plan_takeover(
        marks(table), marks(store), Recomputed([again] * 64, frozenset()), log_first=0
    )
    assert plan.next_offset == min(table, store, again) + 1
    assert plan.refused == {}
    assert plan.floors == (max(table, store),) * 64
    assert plan.behind == (min(table, store, again) < max(table, store))


@pytest.mark.contract("TAKE-01", "WM-14")
def test_the_slowest_lane_decides_where_the_log_is_read_again() -> None:
    table = [LaneMark(80, 80, 80)] * 64
    table[7] = LaneMark(40, 40, 40)
    plan = plan_takeover(table, None, Recomputed([80] * 64, frozenset()), 0)
    assert plan.next_offset == 0  # the store has nothing
    plan = plan_takeover(table, marks(90), Recomputed([80] * 64, frozenset()), 0)
    assert plan.next_offset == 41
    assert (plan.starts[7], plan.starts[8]) == (40, 80)


@pytest.mark.contract("ACC-M3", "TAKE-01", "WM-06")
def test_acc_m3_recomputed_below_the_floor_refuses_that_lane_only() -> None:
    table = Table()
    table.rows[id_of(70)] = progress(70, [5])  # damage: W[5] had passed it
    plan = plan_takeover(marks(149), marks(149), table.recomputed(), 0)
    assert plan.refused == {5: LaneMark(149, 149, 69)}
    assert not plan.refused[5].is_served
    assert plan.next_offset == 150  # the others lose nothing and repeat nothing


def test_an_unfinished_record_above_the_floor_is_ordinary_work() -> None:
    table = Table()
    table.rows[id_of(70)] = progress(70, [5])
    log_side = marks(149)
    log_side[5] = LaneMark(69, 69, 69)
    plan = plan_takeover(log_side, marks(149), table.recomputed(), 0)
    assert (plan.refused, plan.next_offset) == ({}, 70)


@pytest.mark.contract("ADAPT-05")
def test_a_changelog_that_lagged_is_replayed_with_lanes_closed() -> None:
    """W of the table and progress end earlier than the mailbox: nothing contradicts, something is missing."""
    plan = plan_takeover(marks(59), marks(99), Table(60).recomputed(), 0)
    assert (plan.refused, plan.next_offset) == ({}, 60)
    assert plan.floors == (99,) * 64
    assert plan.behind


@pytest.mark.contract("LOG-08", "TAKE-01")
def test_a_start_that_the_log_lost_refuses_the_lane_and_with_all_lanes_the_shard() -> None:
    log_side = marks(99)
    log_side[3] = LaneMark(40, 40, 40)
    again = Recomputed([99] * 64, frozenset())
    plan = plan_takeover(log_side, marks(99), again, log_first=60)
    assert plan.refused == {3: LaneMark(40, 99, NOTHING)}
    assert plan.next_offset == 100
    with pytest.raises(StoreFault) as refused:
        plan_takeover(marks(99), None, again, log_first=60)  # the mailbox came back empty
    assert refused.value.code is ErrorCode.INTERNAL


@pytest.mark.contract("TAKE-09")
@given(st.lists(st.integers(1, 40), max_size=12), st.integers(0, 200))
def test_the_index_does_not_depend_on_how_the_log_was_cut(pages: list[int], first: int) -> None:
    rows: dict[bytes, bytes] = {}
    index, at = OffsetIndex(first), first
    for records in pages:
        rows.update(index.add((o, id_of(o)) for o in range(at, at + records)))
        at += records
    at_once = dict(OffsetIndex(first).add((o, id_of(o)) for o in range(first, at)))
    assert rows == at_once


def test_the_index_goes_on_in_a_block_that_was_begun() -> None:
    whole = dict(OffsetIndex(0).add((o, id_of(o)) for o in range(100)))
    block = OffsetBlock(64, [id_of(o) for o in range(64, 100)])
    again = OffsetIndex(80, block).add((o, id_of(o)) for o in range(80, 100))
    assert dict(again) == {key: row for key, row in whole.items() if key.endswith(b"\1")}


def test_a_floor_that_only_the_mailbox_reached_refuses_nothing() -> None:
    """Entries and W of the store were written, progress was not, and the start that saw this died as well."""
    table = Table()
    table.rows[id_of(70)] = progress(70, [5])
    log_side = marks(69, 120)
    plan = plan_takeover(log_side, marks(120), table.recomputed(), 0)
    assert (plan.refused, plan.next_offset) == ({}, 70)
