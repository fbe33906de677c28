"""One schedule: a seed decides what is sent, what happens to every operation, and who dies when.

A schedule plays faults for a while, then everything works again, and the pipeline has to come to rest with nothing lost. The
same seed plays the same schedule; its trace tells what happened.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

from gateway.ports import CommitRequest
from schemas.records import WATERMARK_ROW
from streams.shard import ShardState
from tests.simulation.judge import Judge, Violation, marks_in
from tests.simulation.loop import SimLoop
from tests.simulation.people import PEOPLE, SHARD, WIDE, Device, dispatch_value, small_limits
from tests.simulation.world import Gateway, Worker, World
from tests.support.commit_fakes import request

__all__ = ["Schedule", "play", "small_limits"]

_SETTLE_LIMIT_S = 120.0
_WHOLE = 0.35  # of the schedules send through gateways, the others put dispatches into the log
_FATES: Final = ("ok",) * 12 + ("lose_reply",) * 2 + ("fail", "refuse")


class Schedule:
    """See the module; `play` is the way in."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        trace: list[str] | None = None,
        *,
        whole: bool | None = None,
    ) -> None:
        self.random = Random(seed)
        self.loop = loop
        self.judge = Judge()
        self.world = self.judge.world = World(loop, self.judge)
        self.world.network.trace = trace
        self.workers: list[Worker] = []
        self.gateways: list[Gateway] = []
        self.devices = [Device(user) for user in PEOPLE]
        self.sent: list[CommitRequest] = []
        self.numbers = 0
        self._events: Counter[str] = Counter()
        through_gateways = self.random.random() < _WHOLE
        self.whole = through_gateways if whole is None else whole
        self._start_worker()
        if self.whole:
            self.gateways.append(self.world.gateway())

    @property
    def counts(self) -> Counter[str]:
        """How much of what happened."""
        terms = {WATERMARK_ROW.decode(r)["lease_term"] for _, r in self._rows()}
        return self._events + Counter(
            sent=self.numbers,
            records=len(self.world.dispatch[SHARD]),
            pages=self.judge.judged,
            terms=len(terms),
        )

    def _rows(self) -> list[tuple[bytes, bytes]]:
        return self.world.changelogs["watermark", SHARD]

    def _note(self, what: str, process: str = "") -> None:
        self._events[what] += 1
        if self.world.network.trace is not None:
            self.world.network.trace.append(f"{process} {what}")

    # --- processes -----------------------------------------------------------------------------------------------
    def _start_worker(self) -> None:
        name = f"worker-{self.random.randrange(3)}"
        for worker in self._alive():
            if worker.process.name == name:
                return
        self._note("start", name)
        compacted = self.random.random() < 0.5
        self.workers.append(Worker(self.world, name, [SHARD], compacted=compacted))

    def _alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    def kill(self, worker: Worker) -> None:
        """SIGKILL a worker."""
        self._note("kill", worker.process.name)
        self.loop.kill(worker.process)
        self.workers.remove(worker)

    def _watch(self) -> None:
        """Start again whoever could not start; a shard that gave up is a finding."""
        self.judge.raise_found()
        for worker in list(self.workers):
            if worker.starting.done() and worker.starting.exception() is not None:
                self.kill(worker)
                continue
            for shard in worker.rig.materializer.shards.values():
                if shard.state is ShardState.FAILED:
                    raise Violation(f"the shard stops alone: {shard.failure}")

    # --- steps ---------------------------------------------------------------------------------------------------
    def _send(self) -> None:
        random = self.random
        self.numbers += 1
        if self.whole:
            self._send_through_gateway()
            return
        log = self.world.dispatch[SHARD]
        if log and random.random() < 0.2:
            self.world.append_dispatch(SHARD, None, random.choice(log).value)
            return
        count = WIDE if random.random() < 0.35 else random.choice((1, 1, 2))
        users = tuple(random.sample(PEOPLE, count))
        self.world.append_dispatch(SHARD, None, dispatch_value(self.numbers, users))

    def _send_through_gateway(self) -> None:
        random = self.random
        if self.sent and random.random() < 0.25:
            asked = random.choice(self.sent)  # a client that saw no answer, or did not believe it
        else:
            asked = request(self.numbers, *random.sample(PEOPLE, 2))
            self.sent.append(asked)
        if self.gateways:
            random.choice(self.gateways).submit(asked)

    def _operate(self) -> None:
        network = self.world.network
        pending = [op for op in network.pending if not op.process.dead] or network.pending
        if not pending:
            return
        if self.random.random() < 0.1:
            pending = network.pending
        operation = self.random.choice(pending)
        fate = self.random.choice(_FATES)
        if operation.process.dead:
            fate = self.random.choice(("ok", "fail"))
        network.settle(operation, fate)

    def _feed(self) -> None:
        workers = [w for w in self._alive() if not w.process.paused]
        if workers:
            worker = self.random.choice(workers)
            size = self.random.choice((1, 2, 4))
            if not (self.whole and self.random.random() < 0.4 and worker.feed_outbox(size)):
                worker.feed(SHARD, size)

    def _disturb(self) -> None:
        random = self.random
        kind = random.random()
        workers = self._alive()
        if kind < 0.25 and workers:
            self.kill(random.choice(workers))
        elif kind < 0.4:
            self._start_worker()
        elif kind < 0.5 and workers:
            self._make_zombie(random.choice(workers))
        elif kind < 0.65 and workers:
            worker = random.choice(workers)
            if worker.process.paused:
                self._note("resume", worker.process.name)
                self.loop.resume(worker.process)
            else:
                self._note("pause", worker.process.name)
                self.loop.pause(worker.process)
        elif kind < 0.8:
            self._roll_back()
        elif self.whole and kind < 0.9:
            self._disturb_gateways()
        else:
            self.world.follow(from_compacted=True)

    def _roll_back(self) -> None:
        """The mailbox store loses its last moments, and with them who had the shard."""
        if self.world.roll_back(self.random):
            self._note("roll back")

    def _make_zombie(self, worker: Worker) -> None:
        """It stands still past its lease with whatever it has on its way, and another one takes over."""
        self._note("pause past the lease", worker.process.name)
        self.loop.pause(worker.process)
        self.loop.advance(16.0)
        self._start_worker()

    def _disturb_gateways(self) -> None:
        if self.gateways and self.random.random() < 0.5:
            gateway = self.gateways.pop(self.random.randrange(len(self.gateways)))
            self._note("kill", gateway.process.name)
            self.loop.kill(gateway.process)
        elif len(self.gateways) < 2:
            self.gateways.append(self.world.gateway())
            self._note("start", self.gateways[-1].process.name)
        else:
            self.gateways[0].recover()

    def step(self) -> None:
        """One random thing happens."""
        kind = self.random.random()
        if kind < 0.53 and self.world.network.pending:
            self._operate()
        elif kind < 0.70:
            self._feed()
        elif kind < 0.79:
            self._send()
        elif kind < 0.86:
            self._advance()
        elif kind < 0.92:
            self.world.follow()
            self.random.choice(self.devices).pull(self.world)
        elif kind < 0.99:
            self._disturb()
        self.loop.run_ready()
        self._watch()

    def _advance(self) -> None:
        due = self.loop.next_timer_s()
        now_s = self.loop.time()
        if self.random.random() < 0.05:
            self.loop.advance(16.0)  # past every lease
        elif due is not None:
            self.loop.advance(max(0.0, min(due - now_s, 5.0)) + 0.001)
        else:
            self.loop.advance(0.05)

    # --- the end -------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Everything works again; the pipeline comes to rest."""
        self._note("calm")
        self.world.network.calm()
        for worker in self._alive():
            self.loop.resume(worker.process)
        self.loop.run_ready()
        limit_s = self.loop.time() + _SETTLE_LIMIT_S
        if self.whole and not self.gateways:
            self.gateways.append(self.world.gateway())
        while not self.quiet():
            if self.loop.time() > limit_s:
                raise Violation("the pipeline does not come to rest")
            self._go_on()
            due = self.loop.next_timer_s()
            self.loop.advance(0.01 if due is None else max(0.0, due - self.loop.time()) + 0.001)

    def _go_on(self) -> None:
        """Whatever is down starts again, whatever can be read is read."""
        if not self._alive():
            self._start_worker()
        for gateway in self.gateways:
            if not len(gateway.commit.intents) and self.sent:
                gateway.recover()
        for worker in self._alive():
            while self.whole and worker.feed_outbox(64):
                pass
            while worker.feed(SHARD, 64):
                pass
        self.loop.run_ready()
        self._watch()

    def quiet(self) -> bool:
        """Whether everything sent is where it belongs, and somebody owns the shard."""
        world = self.world
        world.follow()
        if not any(worker.runs(SHARD) for worker in self._alive()):
            return False
        if self.whole and not self._committed():
            return False
        end = len(world.dispatch[SHARD]) - 1
        if end < 0:
            return True
        view, stored = world.view.shards[SHARD], world.mailboxes.watermarks.get(SHARD)
        seen = view.uniform is not None and view.uniform >= end
        return seen and stored is not None and min(marks_in(stored.blob)) >= end

    def _committed(self) -> bool:
        world = self.world
        if any(len(gateway.commit.intents) for gateway in self.gateways):
            return False
        if any(commit.state != "C" for commit in world.messages._commits.values()):
            return False
        return all(world.committed.get(p, 0) >= len(log) for p, log in world.outbox.log.items())

    def replace_all(self) -> None:
        """One more takeover, by a worker that has nothing but what compaction left; it must find the same."""
        for worker in self._alive():
            self.kill(worker)
        self.loop.advance(16.0)
        self.workers.append(Worker(self.world, "worker-9", [SHARD], compacted=True))
        self.settle()

    def finish(self) -> None:
        """Judge the end."""
        for device in self.devices:
            before = -1
            while before != device.cursor:
                before = device.cursor
                device.pull(self.world)
        shown = {device.user: device.shown for device in self.devices}
        self.judge.final(shown, dict.fromkeys(PEOPLE, SHARD))
        self.judge.final_answers(shown)
        if self.loop.errors:
            raise Violation(f"nobody handled {self.loop.errors[0]!r}")


def play(seed: int, *, steps: int = 80, trace: list[str] | None = None) -> Schedule:
    """Play one schedule under small_limits; raises Violation."""
    with SimLoop() as loop:
        schedule = Schedule(loop, seed, trace)
        loop.run_ready()
        for _ in range(schedule.random.randrange(10, steps)):
            schedule.step()
        schedule.settle()
        schedule.replace_all()
        schedule.finish()
        return schedule
