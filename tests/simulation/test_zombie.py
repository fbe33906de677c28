"""One schedule written by hand: a worker stands still between its entries and its progress rows, and writes them later."""

import pytest

from tests.simulation.judge import Violation
from tests.simulation.loop import SimLoop
from tests.simulation.network import Operation
from tests.simulation.people import PEOPLE, SHARD, WIDE, dispatch_value, small_limits
from tests.simulation.plants import PLANTS_BY_HAND
from tests.simulation.schedule import Schedule
from tests.simulation.world import Worker


def carry(schedule: Schedule, passes: int = 100) -> None:
    """Everything of whoever runs works."""
    for _ in range(passes):
        for worker in schedule.workers:
            if worker.alive and not worker.process.paused:
                worker.feed(SHARD, 64)
        schedule.loop.run_ready()
        for operation in list(schedule.world.network.pending):
            if not operation.process.paused and not operation.process.dead:
                schedule.world.network.settle(operation, "ok")
        schedule.loop.run_ready()
        schedule.loop.advance(0.1)


def start(schedule: Schedule, name: str, *, compacted: bool = False) -> Worker:
    worker = Worker(schedule.world, name, [SHARD], compacted=compacted)
    schedule.workers.append(worker)
    schedule.loop.run_ready()
    return worker


def until_progress_of_a_page(schedule: Schedule, worker: Worker) -> list[Operation]:
    """The progress rows of the first page, on their way."""
    world = schedule.world
    while True:
        worker.feed(SHARD, 64)
        schedule.loop.run_ready()
        waiting = [operation for operation in world.network.pending if operation.name == "progress"]
        if waiting and world.mailboxes.watermarks:
            return waiting
        for operation in list(world.network.pending):
            world.network.settle(operation, "ok")
        schedule.loop.advance(0.01)


def late_rows_then_takeover(*, compacted: bool) -> bool:
    """Rows of a zombie land behind those of its successor, then a third one takes over: whether all lanes are open."""
    with small_limits(), SimLoop() as loop:
        schedule = Schedule(loop, seed=1, whole=False)
        for worker in list(schedule.workers):
            schedule.kill(worker)
        zombie = start(schedule, "worker-7")
        schedule.world.append_dispatch(SHARD, None, dispatch_value(1, PEOPLE[:WIDE]))
        late = until_progress_of_a_page(schedule, zombie)
        loop.pause(zombie.process)
        loop.advance(16.0)
        successor = start(schedule, "worker-8")
        carry(schedule)
        for operation in late:
            schedule.world.network.settle(operation, "ok")
        if compacted:  # compaction comes long after somebody looked
            loop.advance(11.0)
            carry(schedule)
        schedule.kill(zombie)
        schedule.kill(successor)
        loop.advance(16.0)
        start(schedule, "worker-9", compacted=compacted)
        schedule.settle()
        schedule.finish()
        return all(schedule.world.view.shards[SHARD].is_open(lane) for lane in range(64))


@pytest.mark.contract("TAKE-01", "TAKE-02", "DP-03")
@pytest.mark.parametrize("compacted", [False, True])
def test_late_progress_rows_of_a_zombie_refuse_no_lane_at_the_next_takeover(
    compacted: bool,  # noqa: FBT001
) -> None:
    assert late_rows_then_takeover(compacted=compacted)


def test_late_rows_that_stay_the_last_ones_are_found_by_this_test() -> None:
    with PLANTS_BY_HAND["late rows stay"](), pytest.raises(Violation):
        late_rows_then_takeover(compacted=True)
