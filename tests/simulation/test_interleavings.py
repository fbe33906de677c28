"""Every place at which one late request of a paused worker may land in its successor's taking over (REG-47).

The protocol: take the lease (fences) -> read what the tables lack -> boundary and new term -> positions -> a row for the
gateways -> entries, progress rows, watermark row. One request of the former owner is on its way when it stops: a lease, entries,
progress rows or a watermark row. Each of them is let land before, between and after all steps of the successor; then compaction
runs, a third worker takes over, and everybody must have everything.
"""

from __future__ import annotations

import pytest

from tests.simulation.judge import Violation
from tests.simulation.loop import SimLoop
from tests.simulation.network import Operation
from tests.simulation.people import PEOPLE, SHARD, WIDE, dispatch_value, small_limits
from tests.simulation.plants import PLANTS, PLANTS_BY_HAND
from tests.simulation.schedule import Schedule
from tests.simulation.world import Worker

LATE = [("lease", 1), *((n, p) for n in ("append", "progress", "watermark") for p in (1, 2, 3))]


class Race:
    """One interleaving; `play` returns how many steps the successor took."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.schedule = Schedule(loop, seed=1, whole=False)
        for worker in list(self.schedule.workers):
            self.schedule.kill(worker)
        world = self.schedule.world
        for number, users in enumerate((PEOPLE[:1], PEOPLE[:WIDE], PEOPLE[1:3], PEOPLE[:2]), 1):
            world.append_dispatch(SHARD, None, dispatch_value(number, users))

    def start(self, name: str) -> Worker:
        worker = Worker(self.schedule.world, name, [SHARD], compacted=False)
        self.schedule.workers.append(worker)
        self.loop.run_ready()
        return worker

    def waiting(self, worker: Worker) -> list[Operation]:
        """What the worker has on its way; its timers go on until there is something, or it is idle."""
        for _ in range(400):
            worker.feed(SHARD, 2)
            self.loop.run_ready()
            pending = self.schedule.world.network.pending
            if found := [op for op in pending if op.process is worker.process]:
                return found
            if self.schedule.quiet():
                break
            self.loop.advance(0.05)
        return []

    def until(self, worker: Worker, name: str, pages: int) -> Operation:
        """The `pages`-th request of this name, on its way; everything before it worked."""
        seen = 0
        while found := self.waiting(worker):
            for operation in found:
                seen += operation.name == name
                if operation.name == name and seen == pages:
                    return operation
                self.schedule.world.network.settle(operation, "ok")
        raise AssertionError(f"{seen} requests of {name}")

    def rest(self, worker: Worker) -> None:
        """Time in which the worker looks at its changelogs, and everything of it works."""
        for _ in range(150):
            self.loop.advance(0.1)
            self.loop.run_ready()
            for operation in list(self.schedule.world.network.pending):
                if operation.process is worker.process:
                    self.schedule.world.network.settle(operation, "ok")
            worker.feed(SHARD, 2)

    def play(self, name: str, pages: int, after: int) -> int:
        settle = self.schedule.world.network.settle
        zombie = self.start("worker-7")
        late = self.until(zombie, name, pages)
        self.loop.pause(zombie.process)
        self.loop.advance(16.0)
        successor = self.start("worker-8")
        steps = 0
        while found := self.waiting(successor):
            if steps == after:
                settle(late, "ok")
            settle(found[0], "ok")
            self.schedule.judge.raise_found()
            steps += 1
        if steps <= after:
            settle(late, "ok")
        self.rest(successor)
        self.schedule.replace_all()
        self.schedule.finish()
        view = self.schedule.world.view.shards[SHARD]
        assert all(view.is_open(lane) for lane in range(64))
        return steps


def play_all(name: str, pages: int) -> int:
    """Every interleaving of one kind; returns how many there were, raises what the judge found."""
    after, steps = 0, 1
    while after <= steps:
        with small_limits(), SimLoop() as loop:
            steps = Race(loop).play(name, pages, after)
        after += 1
    return after


@pytest.mark.contract("REG-47", "TAKE-01", "TAKE-02", "TAKE-09", "DP-03")
@pytest.mark.parametrize(("name", "pages"), LATE)
def test_reg_47_a_late_request_lands_at_every_step_of_a_takeover(name: str, pages: int) -> None:
    assert play_all(name, pages) > 8, "a takeover has more steps than that"


@pytest.mark.parametrize(
    ("plant", "name", "pages"),
    [
        ("late rows stay", "progress", 2),
        ("tables of before", "progress", 2),
        ("the last row wins", "watermark", 1),
        ("fence skipped", "append", 1),
    ],
)
def test_a_protocol_with_one_step_missing_is_found(plant: str, name: str, pages: int) -> None:
    with {**PLANTS, **PLANTS_BY_HAND}[plant](), pytest.raises(Violation):
        play_all(name, pages)
