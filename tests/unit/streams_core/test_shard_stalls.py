"""One shard's task that stands still, or finds that it cannot go on when it starts again."""

import asyncio

import pytest

from stores.mailbox import MailboxDirty, StoredWatermark
from streams.shard import ShardState
from tests.support.shard_scripts import SHARD, logged, passes, play
from tests.support.worker_rig import WorkerRig


@pytest.mark.contract("LANE-08", "TAKE-13")
def test_lane_08_a_stalled_shard_starts_again_unless_it_writes_all_the_time() -> None:
    async def script(worker: WorkerRig) -> None:
        await worker.run()
        shard = worker.shard(SHARD)
        worker.materializer.stalled(SHARD)  # it wrote a moment ago: a long backlog, no stall
        await passes(20)
        assert (shard.restarts, worker.repositions) == (0, [])
        await asyncio.sleep(31)
        worker.materializer.stalled(SHARD)
        worker.materializer.stalled(7)  # not ours any more
        await asyncio.sleep(1)
        assert shard.restarts == 1
        assert shard.state is ShardState.RUNNING
        assert worker.repositions == [(SHARD, 6)]

    play(script, logged(6))


@pytest.mark.contract("FAN-09", "TAKE-13")
def test_a_damaged_w_in_the_mailbox_stops_its_shard_alone() -> None:
    async def script(worker: WorkerRig) -> None:
        async def damaged(shard: int) -> StoredWatermark | None:
            raise MailboxDirty(f"wrong_type: wm:{shard}")

        await worker.run()
        worker.durable.mailboxes.watermark = damaged  # type: ignore[method-assign]
        worker.materializer.lease_lost(SHARD)
        await asyncio.sleep(1)
        shard = worker.shard(SHARD)
        assert shard.state is ShardState.FAILED
        assert "wrong_type" in (shard.failure or "")
        assert worker.held == {SHARD}

    play(script, logged(2))
