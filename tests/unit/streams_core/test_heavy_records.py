"""ShardPipeline, heavy records: chunks, lanes that wait and lanes that go on (M-1), crashes in the middle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.constants import MAILBOX_SUBTASK_TIMEOUT_MS, MAILBOX_WRITE_BATCH_MAX_ENTRIES
from schemas.identifiers import lane_of
from schemas.records import DISPATCH_PROGRESS, GroupDispatch
from schemas.watermarks import NOTHING
from streams.expand import ShardContext
from streams.materialize_core import HEAVY_RECIPIENTS, PagePlan, ShardPipeline, decode_page
from tests.support.dispatch_fakes import dispatch, log, users_of
from tests.support.pipeline import FRESH, SHARD, USERS, PlannedShard, made
from tests.support.records import FakeRecord

BUSY_LANE = lane_of(0, USERS[0])
MANY = users_of(SHARD, HEAVY_RECIPIENTS + 1)
IN_LANE = users_of(SHARD, 5, BUSY_LANE)


@pytest.mark.contract("LANE-03", "DP-02")
def test_a_heavy_record_waits_while_lanes_without_it_go_on() -> None:
    shard = PlannedShard()
    heavy, light = made(1, MANY), made(2, [USERS[0]])
    plan = shard.take(log([heavy, light]))
    lanes = {lane_of(0, user) for user in MANY}
    assert BUSY_LANE in lanes
    assert plan.entries == []  # the light one waits in its lane, order inside a lane is strict
    assert [plan.marks[lane] for lane in range(64)] == [-1 if n in lanes else 1 for n in range(64)]
    assert shard.row(heavy)["done"] == 0
    assert shard.row(heavy)["expected"] == len(lanes)
    plans = shard.drain()
    assert plans[-1].marks == [1] * 64
    assert [w.user for p in plans for w in p.entries if w.log_offset == 1] == [USERS[0]]
    assert shard.row(heavy)["done"] == len(lanes)


@pytest.mark.contract("LANE-03", "LANE-04", "LANE-09")
def test_a_light_record_in_a_free_lane_overtakes_a_heavy_one() -> None:
    shard = PlannedShard()
    heavy = made(1, [u for u in users_of(SHARD, 400) if lane_of(0, u) != BUSY_LANE])
    light = made(2, [USERS[0]])
    plan = shard.take(log([heavy, light]))
    assert [w.user for w in plan.entries] == [USERS[0]]
    assert plan.marks[BUSY_LANE] == 1
    assert min(plan.marks) == NOTHING


@pytest.mark.contract("LANE-03", "WM-11")
def test_a_busy_lane_keeps_the_order_of_its_records() -> None:
    shard = PlannedShard()
    dispatches = [made(1, MANY), made(2, IN_LANE[:2]), made(3, IN_LANE), made(4, MANY)]
    plan = shard.take(log(dispatches))
    seen: list[int] = []
    for step in [plan, *shard.drain()]:
        seen += [w.log_offset for w in step.entries if lane_of(0, w.user) == BUSY_LANE]
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2, 3}


@pytest.mark.contract("DP-02", "DP-03")
def test_one_chunk_holds_at_most_2000_entries() -> None:
    shard = PlannedShard()
    users = users_of(0, 4500, shards=1)
    context = ShardContext(0, 1, push_partitions=4, boundaries=[(1, 0)])
    shard.pipeline = ShardPipeline(context, FRESH)
    page = decode_page(0, log([dispatch(1, users, shard=0)]))
    shard.written(shard.pipeline.take_page(page, {}))
    assert shard.pipeline.backlog_entries == 4500
    plans = shard.drain()
    assert [len(p.entries) <= MAILBOX_WRITE_BATCH_MAX_ENTRIES for p in plans] == [True] * len(plans)
    assert len(plans) <= 4
    assert sum(len(p.entries) for p in plans) == 4500
    assert shard.pipeline.backlog_entries == 0
    assert plans[-1].marks == [0] * 64


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 20 entries: finding thousands of users of one lane takes longer than the test."""
    monkeypatch.setattr("streams.materialize_core.MAILBOX_WRITE_BATCH_MAX_ENTRIES", 20)


MANY_IN_LANE = users_of(SHARD, HEAVY_RECIPIENTS + 1, BUSY_LANE)


@pytest.mark.usefixtures("small_chunks")
def test_mentions_count_against_the_size_of_a_chunk() -> None:
    shard = PlannedShard()
    shard.take(log([made(1, MANY_IN_LANE, mentions=list(MANY_IN_LANE))]))
    sizes = [len(plan.entries) for plan in shard.drain()]
    assert sizes == [20] * 12 + [18]


@pytest.mark.contract("LANE-10")
@pytest.mark.usefixtures("small_chunks")
def test_lanes_take_turns() -> None:
    """A lane with much work does not keep another lane's single chunk waiting behind all of it."""
    shard = PlannedShard()
    other = next(u for u in users_of(SHARD, 100) if lane_of(0, u) != BUSY_LANE)
    shard.take(log([made(1, [*MANY_IN_LANE, other])]))
    rounds = [{lane_of(0, w.user) for w in plan.entries} for plan in shard.drain()]
    assert lane_of(0, other) in rounds[0] | rounds[1]
    assert len(rounds) <= 8


@pytest.mark.contract("DISP-07", "DP-03")
def test_a_duplicate_of_an_unfinished_dispatch_does_not_finish_it() -> None:
    shard, heavy = PlannedShard(), made(1, MANY)
    shard.take(log([heavy, heavy]))
    assert shard.row(heavy)["done"] == 0
    shard.drain()
    row = shard.row(heavy)
    assert row["done"] == row["expected"]
    assert (row["canonical_log_offset"], row["max_observed_offset"]) == (0, 1)
    assert len(shard.entries) == len(MANY)


CUTS = st.integers(0, 12)


@pytest.mark.contract("TAKE-02", "TAKE-09", "DP-16", "WM-02", "LANE-05")
@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(["heavy", "light", "lane", "again"]), min_size=1, max_size=6),
    st.lists(st.tuples(CUTS, st.booleans()), max_size=3),
)
def test_a_crash_anywhere_replays_to_the_same_mailbox(
    kinds: list[str], crashes: list[tuple[int, bool]]
) -> None:
    """A crash after some plans, with the rows of the last plan durable or not; W by lane is what was durable."""
    recipients = {"heavy": MANY, "light": USERS[1:3], "lane": IN_LANE}
    dispatches: list[GroupDispatch] = []
    for number, kind in enumerate(kinds):
        dispatches.append(
            dispatches[0]
            if kind == "again" and dispatches
            else made(number, recipients.get(kind, USERS))
        )
    records = log(dispatches)
    expected = PlannedShard()
    expected.take(records)
    expected.drain()

    shard, marks = PlannedShard(), FRESH
    for plans_before, rows_written in [*crashes, (10_000, True)]:
        shard.restart(marks)
        at = min(marks) + 1
        for _ in range(plans_before + 1):
            before = dict(shard.rows)
            if at < len(records):
                plan: PagePlan | None = shard.take(records[at : at + 2])
                at += 2
            else:
                plan = shard.chunk()
            if plan is None:
                break
            assert all(new >= old for new, old in zip(plan.marks, marks, strict=True))
            if rows_written or _ < plans_before:
                marks = plan.marks
            else:
                shard.rows = before  # the entries were durable, rows and W were not
    assert shard.entries == expected.entries
    assert marks == [len(records) - 1] * 64
    for key, row in shard.rows.items():
        got, want = DISPATCH_PROGRESS.decode(row), DISPATCH_PROGRESS.decode(expected.rows[key])
        assert got == want


@pytest.mark.contract("LANE-07")
@pytest.mark.usefixtures("small_chunks")
def test_lane_07_an_overdue_lane_waits_for_the_others_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After 30 s a lane's work is slow: one chunk of it for eight of the others, in its order, and W stops before it."""
    monkeypatch.setattr("streams.materialize_core.HEAVY_RECIPIENTS", 19)
    shard = PlannedShard()
    fresh_lane = next(lane_of(0, u) for u in users_of(SHARD, 9) if lane_of(0, u) != BUSY_LANE)
    shard.take(log([made(1, MANY_IN_LANE[:60])]))
    shard.pipeline.now_ms = MAILBOX_SUBTASK_TIMEOUT_MS - 1
    assert shard.chunk() is not None
    assert shard.pipeline.slow_lanes == 0

    shard.pipeline.now_ms += 1
    fresh = users_of(SHARD, 20 * 12, fresh_lane)
    shard.take([FakeRecord(1, value=log([made(2, fresh)])[0].value)])
    plans = shard.drain()
    lanes = [lane_of(0, plan.entries[0].user) for plan in plans]

    expected = [fresh_lane] * 7 + [BUSY_LANE] + [fresh_lane] * 5 + [BUSY_LANE]
    assert lanes == expected
    first = lanes.index(BUSY_LANE)
    assert [plan.marks[BUSY_LANE] for plan in plans[: first + 1]] == [NOTHING] * (first + 1)
    assert plans[-1].marks == [1] * 64
