"""One shard's task over real services in memory: the order of durability, crashes in it, unknown outcomes.

append (entries + store W) -> progress -> watermark -> ack
"""

import asyncio

import pytest

from schemas.watermarks import pack_uniform
from streams.shard import ShardState
from tests.support.shard_scripts import SHARD, A, B, bodies, logged, numbers, passes, play
from tests.support.worker_rig import WorkerRig


@pytest.mark.contract("MBX-34", "WM-06", "ADAPT-05")
def test_a_page_becomes_durable_in_order_and_is_then_acknowledged() -> None:
    async def script(worker: WorkerRig) -> None:
        await worker.run()
        assert worker.acked == [(SHARD, 0, 2), (SHARD, 3, 4)]
        assert await numbers(worker.durable) == await numbers(worker.durable, B) == bodies(5)

    durable = play(script, logged(5))
    row = durable.w_row(SHARD)
    assert row is not None
    assert row["w"] == pack_uniform(4)
    assert durable.mailboxes.watermarks[SHARD].blob == pack_uniform(4)
    assert len(durable.progress(SHARD)) == 5


@pytest.mark.contract("REG-01", "SEQ-08", "MBX-53")
def test_reg_01_the_first_record_of_a_partition_is_visible_to_the_zero_cursor() -> None:
    async def script(worker: WorkerRig) -> None:
        await worker.run()
        assert await numbers(worker.durable) == bodies(1)

    assert play(script, logged(1)).w(SHARD, 0) == 0


STEPS = ["append", "progress", "watermark"]


@pytest.mark.contract("MBX-34", "WM-05", "WM-15")
@pytest.mark.parametrize("step", STEPS)
def test_nothing_later_happens_while_a_step_is_not_durable(step: str) -> None:
    async def script(worker: WorkerRig) -> None:
        gate = worker.durable.hooks.block(step)
        worker.feed(SHARD)
        while not worker.durable.hooks.calls[step]:
            await passes()
        await passes(50)
        later = STEPS[STEPS.index(step) + 1 :]
        assert [worker.durable.hooks.calls[name] for name in later] == [0] * len(later)
        assert worker.acked == []
        assert worker.durable.w(SHARD, 0) == -1
        pushed = len(worker.durable.pushes)
        # A push follows the durable append (PUSH-01), and leaves right before the row that lets it be shown.
        assert (pushed > 0) == (step == "watermark")
        gate.set()
        await worker.run()

    play(script, logged(3))


# --- crashes -------------------------------------------------------------------------------------------------

CRASHES = [(step, fault) for step in STEPS for fault in ("stop", "stop_written")]


@pytest.mark.contract("TAKE-02", "TAKE-09", "ADAPT-06", "MBX-34", "DP-06")
@pytest.mark.parametrize(("step", "fault"), CRASHES)
@pytest.mark.parametrize("after_pages", [0, 1])
@pytest.mark.parametrize("disk_lost", [True, False])
def test_a_crash_at_any_step_leaves_one_visible_entry_of_each_message(
    step: str, fault: str, after_pages: int, disk_lost: bool  # noqa: FBT001
) -> None:
    async def script(worker: WorkerRig) -> None:
        durable = worker.durable
        durable.hooks.add(step, *["ok"] * after_pages, fault)
        await worker.run()
        assert durable.hooks.stopped.is_set()
        before = {user: await durable.entries(SHARD, user) for user in (A, B)}
        acked = [last for _, _, last in worker.acked]
        assert acked == [2][:after_pages]  # the page in hand is never acknowledged
        await worker.crash()
        if disk_lost:
            durable.tables.rebuild()
        again = WorkerRig(durable)
        await again.start([SHARD])
        assert again.position[SHARD] == durable.w(SHARD, 0) + 1  # whatever was committed
        await again.run()
        assert await numbers(durable) == await numbers(durable, B) == bodies(8)
        for user, entries in before.items():
            assert (await durable.entries(SHARD, user))[: len(entries)] == entries
        await again.stop()

    durable = play(script, logged(8))
    assert {row["canonical_log_offset"] for row in durable.progress(SHARD).values()} == set(
        range(8)
    )


@pytest.mark.contract("TAKE-02", "WM-05")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("fault", ["fail", "lose_reply", "refuse"])
@pytest.mark.parametrize("times", [1, 4])
def test_an_unknown_outcome_starts_the_shard_again_at_w_plus_1(
    step: str, fault: str, times: int
) -> None:
    async def script(worker: WorkerRig) -> None:
        worker.durable.hooks.add(step, "ok", *[fault] * times)
        await worker.run()
        task = worker.shard(SHARD)
        all_written = (step, fault) == ("watermark", "lose_reply")
        assert all_written or (task.state, task.restarts) == (ShardState.RUNNING, times)
        assert worker.repositions[0] == (SHARD, 6 if all_written else 3)
        assert await numbers(worker.durable) == bodies(8)
        assert all_written or [first for _, first, _ in worker.acked] == [0, 3, 6]

    play(script, logged(8))


@pytest.mark.contract("TAKE-02")
@pytest.mark.parametrize("step", ["lease", "reposition"])
def test_a_restart_that_fails_is_tried_again(step: str) -> None:
    async def script(worker: WorkerRig) -> None:
        worker.durable.hooks.add("append", "fail")
        worker.durable.hooks.add(step, "fail", "refuse", "fail")
        await worker.run()
        assert worker.shard(SHARD).state is ShardState.RUNNING
        assert await numbers(worker.durable) == bodies(4)

    play(script, logged(4))


@pytest.mark.contract("TAKE-05", "TAKE-11")
def test_an_idle_shard_notices_that_its_mailbox_lost_something_and_brings_it_back() -> None:
    async def script(worker: WorkerRig) -> None:
        await worker.run()
        before = await numbers(worker.durable)
        worker.durable.mailboxes.mailboxes.clear()
        worker.durable.mailboxes.watermarks.clear()
        await asyncio.sleep(10)  # virtual time; nobody sends anything
        await worker.run()
        while worker.durable.mailboxes.watermarks[SHARD].blob != pack_uniform(4):
            worker.feed(SHARD)
            await asyncio.sleep(0.01)
        assert await numbers(worker.durable) == before

    assert play(script, logged(5)).w(SHARD, 0) == 4
