"""ShardPipeline, records of few recipients: pages, duplicates, replay."""

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.digests import payload_digest
from schemas.errors import Bug, RecordError
from schemas.identifiers import lane_of
from schemas.manifest import decode_manifest
from schemas.records import GroupDispatch
from schemas.watermarks import NOTHING
from streams.materialize_core import DigestConflict, decode_page
from tests.support.dispatch_fakes import dispatch, log
from tests.support.pipeline import FRESH, SHARD, USERS, PlannedShard, made
from tests.support.records import FakeRecord

# --- reading the log -----------------------------------------------------------------------------------------


def test_a_page_is_decoded_with_its_positions() -> None:
    one, two = made(1), made(2)
    records = log([one, two], first=5)
    assert decode_page(SHARD, records) == [
        (5, records[0].timestamp, one),
        (6, records[1].timestamp, two),
    ]


@pytest.mark.contract("DISP-12", "LOG-06")
def test_a_dispatch_for_another_shard_is_refused() -> None:
    with pytest.raises(RecordError, match="offset 6"):
        decode_page(SHARD, log([made(1), dispatch(2, USERS[:1], shard=4)], first=5))


@pytest.mark.contract("DISP-12", "DISP-05")
@pytest.mark.parametrize("value", [None, b"", b"\x01", b"\x02" + bytes(300), bytes(40)])
def test_a_damaged_dispatch_is_refused(value: bytes | None) -> None:
    with pytest.raises(RecordError):
        decode_page(SHARD, [FakeRecord(5, None, value)])


@pytest.mark.contract("WM-04")
def test_a_gap_inside_a_page_is_refused() -> None:
    records = [*log([made(1)], first=0), *log([made(2)], first=2)]
    with pytest.raises(Bug):
        PlannedShard().take(records)


# --- light records -------------------------------------------------------------------------------------------


@pytest.mark.contract("DP-02", "DP-10", "DISP-09")
def test_a_light_page_is_written_at_once_with_its_rows() -> None:
    shard, dispatches = PlannedShard(), [made(n) for n in range(4)]
    records = log(dispatches)
    plan = shard.take(records)
    assert [w.log_offset for w in plan.entries] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert plan.marks == [3] * 64
    assert shard.chunk() is None
    lanes = sorted({lane_of(0, user) for user in USERS[:2]})
    for offset, d in enumerate(dispatches):
        assert shard.row(d) == {
            "payload_digest": payload_digest(d),
            "canonical_log_offset": offset,
            "max_observed_offset": offset,
            "last_seen_ms": records[offset].timestamp,
            "completed_at_ms": d["committed_at_ms"],
            "manifest": shard.row(d)["manifest"],
            "expected": len(lanes),
            "done": len(lanes),
            "unfinished_lanes": [],
        }
        assert decode_manifest(shard.row(d)["manifest"]) == dict.fromkeys(lanes, (0,))


def test_a_dispatch_without_recipients_advances_every_lane() -> None:
    shard = PlannedShard()
    plan = shard.take(log([made(1, recipients=[])]))
    assert (plan.entries, plan.pushes, plan.marks) == ([], [], [0] * 64)
    assert len(plan.progress_rows) == 1


# --- duplicates ----------------------------------------------------------------------------------------------


@pytest.mark.contract("DISP-07", "COM-08", "SEQ-09")
@pytest.mark.parametrize("same_page", [True, False])
def test_a_duplicate_at_another_offset_adds_no_entries_and_advances_w(
    same_page: bool,  # noqa: FBT001
) -> None:
    shard, d = PlannedShard(), made(1)
    records = log([d, made(2), d])
    plans = (
        [shard.take(records)] if same_page else [shard.take(records[:2]), shard.take(records[2:])]
    )
    assert {w.mailbox_seq for p in plans for w in p.entries} == {1 << 48, (1 << 48) + 1}
    assert plans[-1].marks == [2] * 64
    assert (shard.row(d)["canonical_log_offset"], shard.row(d)["max_observed_offset"]) == (0, 2)
    assert shard.row(d)["last_seen_ms"] == records[2].timestamp
    if not same_page:
        assert (plans[1].entries, plans[1].pushes) == ([], [])


@pytest.mark.contract("DISP-08")
@pytest.mark.parametrize("same_page", [True, False])
def test_another_payload_under_a_known_id_stops_the_shard(same_page: bool) -> None:  # noqa: FBT001
    shard, d = PlannedShard(), made(1)
    other = made(1, committed_at_ms=1)
    records = log([d, other])
    if not same_page:
        shard.take(records[:1])
    with pytest.raises(DigestConflict):
        shard.take(records if same_page else records[1:])


@pytest.mark.contract("DISP-06", "DISP-08")
@pytest.mark.parametrize(
    "change", [{"message_type": 4}, {"custom_type": "x"}, {"mentions": [USERS[0]]}]
)
def test_whatever_changes_an_entry_changes_the_identity(change: dict[str, object]) -> None:
    shard, d = PlannedShard(), made(1)
    shard.take(log([d]))
    with pytest.raises(DigestConflict):
        shard.take(log([cast("GroupDispatch", d | change)], first=1))


def test_a_row_from_behind_the_log_is_refused() -> None:
    shard, d = PlannedShard(), made(1)
    shard.take(log([made(0), d]))
    shard.restart(FRESH)
    with pytest.raises(RecordError, match="later canonical"):
        shard.take(log([d]))


# --- replay --------------------------------------------------------------------------------------------------


@pytest.mark.contract("TAKE-09", "TAKE-02", "DISP-07")
@pytest.mark.parametrize("lost_rows", [True, False])
def test_a_replay_of_the_same_offsets_writes_the_same_bytes(
    lost_rows: bool,  # noqa: FBT001
) -> None:
    """The mailbox may have lost the entries, or the table the rows: both come back as they were."""
    shard = PlannedShard()
    records = log([made(1), made(2), made(1), made(3)])
    first = shard.take(records)
    rows = dict(shard.rows)
    if lost_rows:
        shard.rows.clear()
    shard.restart(FRESH)
    assert shard.take(records) == first
    assert shard.rows == rows


@pytest.mark.contract("TAKE-02")
def test_lanes_that_were_covered_get_no_entries_again() -> None:
    shard, d = PlannedShard(), made(1, USERS)
    first = shard.take(log([d]))
    lane = lane_of(0, USERS[0])
    starts = [0] * 64
    starts[lane] = NOTHING
    shard.restart(starts)
    again = shard.take(log([d]))
    assert again.entries == [w for w in first.entries if lane_of(0, w.user) == lane]
    assert again.marks == [0] * 64
    assert shard.rows == dict(first.progress_rows)


PAGES = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@pytest.mark.contract("TAKE-09", "DISP-07", "EVT-12")
@settings(max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), PAGES, PAGES)
def test_entries_and_rows_do_not_depend_on_the_cut_into_pages(
    numbers: list[int], one: list[int], two: list[int]
) -> None:
    """Duplicates included: any cut of one log gives the same entries and the same rows."""
    records = log([made(n, USERS[: 1 + n % 3]) for n in numbers])
    results = []
    for sizes in (one, two):
        shard, at = PlannedShard(), 0
        while at < len(records):
            size = sizes[at % len(sizes)]
            shard.take(records[at : at + size])
            at += size
        results.append((shard.entries, shard.rows))
    assert results[0] == results[1]
