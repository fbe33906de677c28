"""One shard's task over real services in memory: fencing, lost stores, damage, full queues, heavy records."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from faust.types import TP

from schemas.constants import SHARD_QUEUE_MAX_PAGES
from schemas.records import DISPATCH_PROGRESS, GROUP_DISPATCH
from schemas.watermarks import pack_uniform
from stores.mailbox import AppendOutcome, StoredWatermark
from streams.materialize_core import HEAVY_RECIPIENTS
from streams.shard import ShardState
from tests.support.dispatch_fakes import dispatch, log, users_of
from tests.support.records import FakeRecord
from tests.support.shard_scripts import SHARD, A, B, C, bodies, logged, made, numbers, passes, play
from tests.support.virtual_time import VirtualClock
from tests.support.worker_rig import TOPIC, Durable, WorkerRig

# --- fencing and lost stores ---------------------------------------------------------------------------------


@pytest.mark.contract("TAKE-01", "WM-04", "ACC-M2")
def test_acc_m2_start_is_w_plus_1_although_more_was_acknowledged() -> None:
    """Offsets of the group run ahead of what was materialized: the replay starts at W + 1 and misses nobody."""

    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        await worker.run()
        before = await durable.entries(SHARD, A)
        # The mailbox comes back with the last second missing: older entries, older W.
        older = Durable(VirtualClock())
        durable.mailboxes.mailboxes.clear()
        durable.mailboxes.watermarks = older.mailboxes.watermarks
        await worker.crash()
        again = WorkerRig(durable)
        await again.start([SHARD])
        assert again.position[SHARD] == 0
        assert durable.w(SHARD, 0) == -1  # gateways are told at once that less is there
        await again.run()
        assert await durable.entries(SHARD, A) == before
        await again.stop()

    play(script, logged(7))


@pytest.mark.contract("WM-04", "TAKE-02")
def test_a_w_that_is_not_what_was_stored_means_start_again() -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        worker.feed(SHARD)
        while not worker.acked:
            await passes()
        durable.mailboxes.watermarks[SHARD] = StoredWatermark("packed-v2", 1, pack_uniform(0))
        await worker.run()
        assert worker.repositions == [(SHARD, 1)]
        assert await numbers(durable) == bodies(6)

    play(script, logged(6))


@pytest.mark.contract("TAKE-01", "ADAPT-01")
def test_a_worker_that_lost_its_lease_cannot_write_and_waits_for_the_new_owner() -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        worker.feed(SHARD)
        while not worker.acked:
            await passes()
        durable.leases._leases.clear()  # the lease ran out while the process was paused
        other = WorkerRig(durable, owner="worker-1")
        await other.start([SHARD])
        worker.feed(SHARD)
        await other.run()
        task = worker.shard(SHARD)
        assert task.state is ShardState.RECOVERING
        assert task.position.page_number == 1  # nothing of the zombie's second page was written
        assert await numbers(durable) == bodies(6)
        row = durable.w_row(SHARD)
        assert row is not None
        assert row["lease_term"] == other.shard(SHARD).position.lease_term
        await other.stop()

    play(script, logged(6))


@pytest.mark.contract("TAKE-01")
def test_the_same_worker_started_again_takes_its_lease_with_a_larger_term() -> None:
    async def script(worker: WorkerRig) -> None:
        first = worker.shard(SHARD).position.lease_term
        await worker.crash()
        again = WorkerRig(worker.durable)
        await again.start([SHARD])
        assert again.shard(SHARD).position.lease_term > first
        await again.run()
        await again.stop()

    play(script, logged(2))


# --- what no replay mends ------------------------------------------------------------------------------------


def other_payload() -> Any:
    return made(1, committed_at_ms=5)


@pytest.mark.contract("DISP-08", "FAN-09")
@pytest.mark.parametrize(
    "bad",
    [
        lambda: GROUP_DISPATCH.encode(other_payload()),
        lambda: b"\x01damaged",
        lambda: GROUP_DISPATCH.encode(dispatch(9, [A], shard=4)),
        lambda: GROUP_DISPATCH.encode(made(9, users_of(4, 1))),
    ],
    ids=["digest conflict", "damage", "another shard", "recipient of another shard"],
)
def test_what_no_replay_mends_stops_this_shard_alone(bad: Callable[[], bytes]) -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        (user,) = users_of(5, 1)
        durable.dispatch[5] = log([dispatch(1, [user], shard=5)])
        await worker.run(limit_s=5)
        failed, running = worker.shard(SHARD), worker.shard(5)
        assert (failed.state, running.state) == (ShardState.FAILED, ShardState.RUNNING)
        assert failed.failure
        assert worker.held == {SHARD}
        assert durable.w(SHARD, 0) == 2  # the good page before it counts
        assert durable.done(5)
        assert worker.materializer.not_ready() == f"failed shards: [{SHARD}]"
        worker.held.clear()
        worker.feed(SHARD)
        assert failed.depth == 0  # and takes nothing more

    records = [*logged(3), FakeRecord(3, None, bad()), *log([made(5)], first=4)]
    play(script, records, shards=(SHARD, 5))


@pytest.mark.contract("WM-04", "LOG-10")
def test_a_gap_in_the_log_is_refused() -> None:
    async def script(worker: WorkerRig) -> None:
        worker.feed(SHARD)
        while not worker.acked:
            await passes()
        worker.position[SHARD] = 4  # offset 3 never comes
        await worker.run(limit_s=5)
        task = worker.shard(SHARD)
        assert task.state is ShardState.FAILED
        assert "continues at 4" in (task.failure or "")
        assert worker.durable.w(SHARD, 0) == 2

    play(script, logged(8))


@pytest.mark.contract("MBX-32")
@pytest.mark.parametrize("code", ["corrupt", "conflict", "wrong_type", "future_day"])
def test_a_refused_append_stops_the_shard(code: str) -> None:
    async def script(worker: WorkerRig) -> None:
        async def refuse(appends: Sequence[Any]) -> list[AppendOutcome]:
            return [AppendOutcome(code, "detail")] * len(appends)

        worker.durable.mailboxes.append_page = refuse  # type: ignore[method-assign]
        await worker.run(limit_s=5)
        task = worker.shard(SHARD)
        assert task.state is ShardState.FAILED
        assert code in (task.failure or "")
        assert worker.acked == []

    play(script, logged(2))


# --- bounds --------------------------------------------------------------------------------------------------


@pytest.mark.contract("REG-21", "FAN-10", "ADAPT-07")
def test_reg_21_a_full_queue_holds_only_its_own_partition() -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        (user,) = users_of(5, 1)
        durable.dispatch[5] = log([dispatch(n, [user], shard=5) for n in range(40)])
        gate = durable.hooks.block("append")
        while worker.feed(SHARD, 1):
            pass
        assert worker.held == {SHARD}
        assert worker.shard(SHARD).depth == SHARD_QUEUE_MAX_PAGES
        assert worker.feed(5, 1)  # the others are read on
        gate.set()
        await worker.run()
        assert worker.held == set()
        assert durable.done(SHARD)
        assert durable.done(5)

    play(script, logged(40), shards=(SHARD, 5))


@pytest.mark.contract("WM-14")
def test_w_is_read_once_at_the_start_and_never_for_live_records() -> None:
    reads = []

    async def script(worker: WorkerRig) -> None:
        read = worker.durable.mailboxes.watermark

        async def watermark(shard: int) -> StoredWatermark | None:
            reads.append(shard)
            return await read(shard)

        worker.durable.mailboxes.watermark = watermark  # type: ignore[method-assign]
        await worker.run()
        assert len(worker.acked) == 10
        assert reads == []
        await worker.materializer.start_shards({TP(TOPIC, SHARD)})
        assert reads == [SHARD]

    play(script, logged(30))


def test_queued_pages_are_written_together() -> None:
    async def script(worker: WorkerRig) -> None:
        gate = worker.durable.hooks.block("append")
        while worker.feed(SHARD, 1):
            await passes(3)
        gate.set()
        await worker.run()
        assert len(worker.durable.mailboxes.appends) == 2
        assert [first for _, first, _ in worker.acked] == list(range(10))

    play(script, logged(10))


def test_pages_of_before_a_restart_are_dropped() -> None:
    async def script(worker: WorkerRig) -> None:
        hooks = worker.durable.hooks
        hooks.add("append", "fail")
        gate = hooks.block("reposition")
        worker.feed(SHARD)
        while not hooks.calls["reposition"]:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.01)
        worker.held.clear()
        assert worker.feed(
            SHARD
        )  # was fetched before the new start and arrives in the middle of it
        assert worker.shard(SHARD).depth == 1
        gate.set()
        await worker.run()
        assert worker.shard(SHARD).state is ShardState.RUNNING
        assert await numbers(worker.durable) == bodies(9)
        assert [first for _, first, _ in worker.acked] == [0, 3, 6]

    play(script, logged(9))


@pytest.mark.contract("PUSH-01")
def test_pushes_that_the_log_refuses_never_hold_up_the_mailbox() -> None:
    async def script(worker: WorkerRig) -> None:
        worker.durable.hooks.add("push", *["fail"] * 10)
        await worker.run()
        assert await numbers(worker.durable) == bodies(6)
        await passes(10)
        assert worker.writer.dropped > 0

    play(script, logged(6))


def test_stop_finishes_the_page_in_hand_and_takes_no_other() -> None:
    async def script(worker: WorkerRig) -> None:
        gate = worker.durable.hooks.block("progress")
        worker.feed(SHARD)
        while not worker.durable.hooks.calls["progress"]:
            await passes()
        worker.feed(SHARD)
        stopping = asyncio.ensure_future(worker.materializer.drain())
        await passes(3)
        gate.set()
        await stopping
        assert worker.durable.w(SHARD, 0) == 2
        assert worker.acked == [(SHARD, 0, 2)]

    play(script, logged(8))


# --- heavy records -------------------------------------------------------------------------------------------


@pytest.mark.contract("LANE-03", "TAKE-02", "TAKE-09")
@pytest.mark.parametrize("crash_after_appends", range(1, 5))
def test_a_crash_between_chunks_replays_only_what_is_missing(crash_after_appends: int) -> None:
    many = users_of(SHARD, HEAVY_RECIPIENTS + 60)
    recipients = [many, (A, B), many, (C,)]

    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        durable.hooks.add("append", *["ok"] * crash_after_appends, "stop")
        await worker.run()
        if durable.hooks.stopped.is_set():
            await worker.crash()
            worker = WorkerRig(durable)
            await worker.start([SHARD])
        await worker.run()
        for user in many:
            expected = sum(user in listed for listed in recipients)
            assert len(await durable.entries(SHARD, user)) == expected
        rows = durable.progress(SHARD).values()
        assert all(row["done"] == row["expected"] for row in rows)
        assert all(DISPATCH_PROGRESS.encode(row) for row in rows)
        if worker.durable.hooks.calls["lease"] > 1:
            await worker.stop()

    play(script, log([made(n, users) for n, users in enumerate(recipients, 1)]))


def test_rig_topic_is_the_materializers() -> None:
    """A partition of another topic is none of its business."""

    async def script(worker: WorkerRig) -> None:
        assert await worker.materializer.start_shards({TP("other", 1)}) == {}
        assert await worker.materializer.start_shards({TP(TOPIC, SHARD)}) == {TP(TOPIC, SHARD): 0}

    play(script, [])
