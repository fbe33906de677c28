"""Takeovers of whole workers over services in memory: another owner, damaged progress, a log that lost its beginning."""

from __future__ import annotations

import pytest

from gateway.visibility import ShardView
from schemas.identifiers import lane_of
from schemas.records import DISPATCH_PROGRESS
from streams.shard import ShardState
from tests.support.dispatch_fakes import log
from tests.support.shard_scripts import SHARD, A, B, C, logged, made, passes, play
from tests.support.worker_rig import Durable, WorkerRig

LANES = {user: lane_of(0, user) for user in (A, B, C)}


def view_of(durable: Durable) -> ShardView:
    """A gateway that has just started: it knows the newest row, and what the registry says."""
    view, row = ShardView(), durable.w_row(SHARD)
    assert row is not None
    view.learn(sorted(durable.leases._epochs[SHARD].items()))
    view.update(row)
    return view


async def taken_by(durable: Durable, owner: str) -> WorkerRig:
    """Another worker starts once the leases have run out by themselves."""
    durable.leases._leases.clear()
    worker = WorkerRig(durable, owner)
    await worker.start([SHARD])
    return worker


@pytest.mark.contract("TAKE-01", "TAKE-04", "TAKE-09", "CON-39", "OPEN-11", "ACC-M2")
def test_acc_m2_another_owner_starts_at_w_plus_1_and_writes_the_same_bytes_under_a_new_epoch() -> (
    None
):
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        durable.hooks.add("progress", "ok", "stop")  # committed ahead, crashed before it was whole
        await worker.run()
        before = {user: await durable.entries(SHARD, user) for user in (A, B)}
        await worker.crash()
        other = await taken_by(durable, "worker-1")
        assert other.position[SHARD] == durable.w(SHARD, 0) + 1 == 3
        assert await durable.leases.boundaries(SHARD) == [(1, 0), (2, 7)]
        durable.dispatch[SHARD] += log([made(99)], first=7)
        await other.run()
        for user, entries in before.items():
            after = await durable.entries(SHARD, user)
            assert after[: len(entries)] == entries
        epochs = [int.from_bytes(e[1:3], "big") for e in await durable.entries(SHARD, A)]
        assert epochs == [1] * 7 + [2]
        row = durable.w_row(SHARD)
        assert row is not None
        assert (row["epoch"], row["base_epoch"]) == (2, 1)
        await other.stop()

    play(script, logged(7))


@pytest.mark.contract("TAKE-04")
def test_epochs_that_redis_lost_come_back_from_the_log() -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        await worker.run()
        await worker.crash()
        other = await taken_by(durable, "worker-1")
        await other.run()
        await other.crash()
        durable.leases._epochs.clear()
        durable.leases._last.clear()
        again = await taken_by(durable, "worker-1")
        assert await durable.leases.boundaries(SHARD) == [(1, 0), (2, 4)]
        await again.crash()
        durable.leases._epochs.clear()
        durable.leases._last.clear()
        third = await taken_by(durable, "worker-2")  # the log also remembers who had it
        assert await durable.leases.boundaries(SHARD) == [(1, 0), (2, 4), (3, 4)]
        await third.stop()

    play(script, logged(4))


@pytest.mark.contract("ACC-M3", "TAKE-01", "WM-06", "WM-07")
def test_acc_m3_damaged_progress_refuses_its_lane_and_nothing_below_the_floor_is_told() -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        await worker.run()
        floor = view_of(durable).watermark(LANES[A])
        await worker.crash()
        rows = durable.tables.rows["progress", SHARD]
        key, row = next(
            (k, r) for k, r in durable.progress(SHARD).items() if r["canonical_log_offset"] == 1
        )
        rows[key] = DISPATCH_PROGRESS.encode(row | {"unfinished_lanes": [LANES[A]]})
        again = WorkerRig(durable)
        await again.start([SHARD])
        view = view_of(durable)
        assert not view.is_open(LANES[A])
        assert view.is_open(LANES[B])
        assert view.watermark(LANES[A]) >= floor  # never a watermark below the floor
        entries = await durable.entries(SHARD, A)
        durable.dispatch[SHARD] += log([made(99)], first=5)
        for _ in range(200):
            again.feed(SHARD)
            await passes()
        view = view_of(durable)
        assert view.watermark(LANES[B]) & 0xFFFF == 5  # the others go on
        assert not view.is_open(LANES[A])
        assert await durable.entries(SHARD, A) == entries
        assert again.shard(SHARD).state is ShardState.RUNNING
        await again.stop()

    play(script, logged(5))


@pytest.mark.contract("LOG-08", "TAKE-01")
def test_an_emptied_mailbox_whose_log_is_gone_fails_its_shard_alone() -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        await worker.run()
        await worker.crash()
        durable.mailboxes.mailboxes.clear()
        durable.mailboxes.watermarks.clear()
        durable.first[SHARD] = 2
        again = WorkerRig(durable)
        await again.start([SHARD])
        await passes(50)
        assert again.shard(SHARD).state is ShardState.FAILED
        assert "log begins at 2" in str(again.shard(SHARD).failure)
        await again.stop()

    play(script, logged(5))
