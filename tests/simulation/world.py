"""What outlives a process, and the processes on top of it: the real gateway, fanout and shard code.

Simulated are only the servers: logs, changelogs and both stores are lists and dicts, reached through `Network`. Each worker
has tables of its own, which follow the changelogs only while it is told to (a start, a lost disk), as RocksDB does.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from faust.types import TP

from gateway.commit import CommitStep
from gateway.hlc import HybridClock
from gateway.ports import CommitRequest, CommittedMessage
from gateway.recoverer import Recoverer
from gateway.visibility import WatermarkView
from schemas.constants import LANE_COUNT
from schemas.errors import QimError
from schemas.records import SHARD_EPOCHS, WATERMARK_ROW
from stores.leases import Completed
from stores.mailbox import ShardAppend
from stores.memory_leases import MemoryShardLeases
from streams.app import QimApp
from streams.fanout import Fanout
from streams.pages import Page
from streams.shard import PagedEvent, ShardState
from tables.progress import EPOCHS_KEY
from tables.watermarks import WATERMARK_KEY
from tests.simulation.judge import Judge, marks_in
from tests.simulation.loop import Process, SimLoop
from tests.simulation.network import Network, carry_out
from tests.simulation.tables import Tables
from tests.support.commit_fakes import OUTBOX_PARTITIONS, FakeOutbox, HookedStore
from tests.support.dispatch_fakes import SHARDS
from tests.support.records import FakeRecord
from tests.support.rig_tables import PROGRESS, WATERMARK
from tests.support.virtual_time import EPOCH_MS, VirtualClock
from tests.support.worker_rig import Durable, WorkerRig

__all__ = ["Gateway", "Worker", "World"]

_SNAPSHOTS = 4
_WATCH_S = 10.0
_ROLLBACK_S = 2.0  # appendfsync everysec may lose up to two seconds
_RESTART_S = 0.1  # lease terms that were lost are never given again, because a restart takes longer than a millisecond
Place = tuple[str, int]


class _Acknowledged(list[tuple[int, int, int]]):
    """Pages that a worker acknowledged; each is judged in that moment."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def append(self, page: tuple[int, int, int]) -> None:
        """See list."""
        super().append(page)
        shard, _, offset = page
        worker = self._worker
        row = worker.tables.get("watermark", shard, WATERMARK_KEY)
        marks = (-1,) * LANE_COUNT if row is None else marks_in(WATERMARK_ROW.decode(row)["w"])
        blocked = worker.rig.shard(shard).pipeline.ledger.blocked
        worker.world.judge.acknowledged(shard, offset, marks, blocked)


class Worker:
    """One worker process that owns some shards and, with them, the outbox."""

    def __init__(self, world: World, name: str, shards: Sequence[int], *, compacted: bool) -> None:
        self.world = world
        self.process = Process(name)
        self.shards = list(shards)
        durable = copy.copy(world.durable)
        self.tables = Tables(world)
        for table in (PROGRESS, WATERMARK):
            self.tables.recover(table, compacted=compacted)
        durable.tables = self.tables  # type: ignore[assignment]
        self.rig = WorkerRig(durable, name)
        self.rig.acked = _Acknowledged(self)
        self.outbox_at = dict(world.committed)
        self.qim_consumer = self
        self.fanout = Fanout(cast("QimApp", self), "dispatch", SHARDS)
        self.starting = world.loop.spawn(self.process, self._start())

    async def _start(self) -> None:
        self.fanout.start()
        await self.rig.start(self.shards)
        while True:
            await asyncio.sleep(_WATCH_S)
            await self.rig.watch.look()
            self.tables.looked()

    @property
    def alive(self) -> bool:
        """Runs, or would if it were not paused."""
        return not self.process.dead

    def runs(self, shard: int) -> bool:
        """Whether it serves a shard."""
        task = self.rig.materializer.shards.get(shard)
        return not self.process.paused and task is not None and task.state is ShardState.RUNNING

    def feed(self, shard: int, records: int) -> bool:
        """Hand over the next page of a dispatch partition."""
        return self.process.context.run(self.rig.feed, shard, records)

    def feed_outbox(self, records: int) -> bool:
        """Hand over the next page of an outbox partition."""
        for partition, log in self.world.outbox.log.items():
            at = self.outbox_at.get(partition, 0)
            values = log[at : at + records]
            if values:
                read = [FakeRecord(at + n, *pair) for n, pair in enumerate(values)]
                self.outbox_at[partition] = at + len(values)
                event = self._event(Page("outbox", partition, read))
                self.process.context.run(self.fanout.put, event)
                return True
        return False

    def _event(self, page: Page) -> PagedEvent:
        committed = self.world.committed

        def ack() -> bool:
            committed[page.partition] = max(committed.get(page.partition, 0), page.offset + 1)
            return True

        return cast("PagedEvent", SimpleNamespace(value=page, ack=ack))

    # --- what fanout asks of the app ---------------------------------------------------------------------------
    async def produce_pages(
        self, topic: str, pages: Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]
    ) -> dict[int, list[int]]:
        """See QimApp."""
        del topic

        async def work() -> dict[int, list[int]]:
            for shard, records in pages.items():
                for key, value in records:
                    self.world.append_dispatch(shard, key, value)
            return {}

        return await self.world.network.call("dispatch", work)

    def is_current(self, page: Page) -> bool:
        """See QimConsumer."""
        del page
        return True

    def hold(self, tp: TP) -> None:
        """See QimConsumer."""
        raise AssertionError(f"an outbox record cannot be planned: {self.fanout.failed[tp]}")


class Gateway:
    """One gateway process: a commit step, a recoverer, and a view of W."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.process = Process(f"gateway-{number}")
        clock = HybridClock(1, number)
        clock.install(world.now_ms(), world.now_ms() + (1 << 40))
        self.commit = CommitStep(
            world.messages,
            world.outbox,
            clock,
            instances=1,
            shard_count=SHARDS,
            outbox_partitions=OUTBOX_PARTITIONS,
            inflight_limit=64,
            now_ms=world.now_ms,
        )
        self.recoverer = Recoverer(world.messages, self.commit, 1, lambda: world.now_ms() + 60_000)
        self.process.context.run(carry_out, self.commit.start)

    def submit(self, asked: CommitRequest) -> None:
        """A client's message; its answer is kept by the world."""

        def done(result: CommittedMessage | QimError) -> None:
            self.world.answers.append((asked, result))
            self.world.judge.answered(result)

        self.process.context.run(self.commit.submit, asked, done)

    def recover(self) -> None:
        """A round of the recoverer."""
        self.world.loop.spawn(self.process, self.recoverer.round())


class World:
    """See the module. `judge` is told of every durable change."""

    def __init__(self, loop: SimLoop, judge: Judge) -> None:
        self.loop = loop
        self.judge = judge
        self.network = Network()
        self.now_ms = VirtualClock()
        self.durable = Durable(self.now_ms, self.network)
        self.leases: MemoryShardLeases = self.durable.leases
        self.mailboxes = self.durable.mailboxes
        self.changelogs: dict[Place, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.compactable: dict[Place, int] = defaultdict(int)
        self.dispatch = self.durable.dispatch
        self.messages = HookedStore(self.network, 1, self.now_ms)
        self.outbox = FakeOutbox(self.network)
        self.committed: dict[int, int] = {}
        self.answers: list[tuple[CommitRequest, CommittedMessage | QimError]] = []
        self.view = WatermarkView(SHARDS)
        self._viewed: dict[int, int] = defaultdict(int)
        self._snapshots: list[tuple[float, *tuple[Any, ...]]] = []
        self._gateways = 0
        self._epochs: dict[int, list[tuple[int, int]]] = {}
        self._epochs_read: dict[int, int] = defaultdict(int)
        self._watch_appends()

    def _watch_appends(self) -> None:
        store = self.mailboxes
        land = store._append

        def watched(append: ShardAppend) -> None:
            term = self.leases.live_term(append.shard)
            self._snapshot()
            land(append)
            self.judge.appended(append, term)

        store._append = watched  # type: ignore[method-assign]
        raise_epoch = self.leases.raise_epoch

        async def raising(*what: Any, **how: Any) -> Completed:
            self._snapshot()  # also what a taker did may be lost
            return await raise_epoch(*what, **how)

        self.leases.raise_epoch = raising  # type: ignore[method-assign]

    def compacted(self, place: Place) -> list[tuple[bytes, bytes]]:
        """What compaction leaves of a changelog at most: of a key its last row, and whatever came since somebody looked."""
        log, cut = self.changelogs[place], self.compactable[place]
        return [*dict(log[:cut]).items(), *log[cut:]]

    def epochs_in_log(self, shard: int) -> list[tuple[int, int]]:
        """The newest epoch boundaries of the log's side."""
        log = self.changelogs["progress", shard]
        for key, row in log[self._epochs_read[shard] :]:
            if key == EPOCHS_KEY:
                found = SHARD_EPOCHS.decode(row)["boundaries"]
                self._epochs[shard] = [(b["epoch"], b["first_offset"]) for b in found]
        self._epochs_read[shard] = len(log)
        return self._epochs.get(shard, [])

    def append_dispatch(self, shard: int, key: bytes | None, value: bytes | None) -> None:
        """Put a record behind a dispatch log."""
        log = self.dispatch[shard]
        log.append(FakeRecord(len(log), key, value, EPOCH_MS + len(log)))

    def gateway(self) -> Gateway:
        """Start a gateway."""
        self._gateways += 1
        return Gateway(self, self._gateways)

    # --- the mailbox Redis ---------------------------------------------------------------------------------------
    def _snapshot(self) -> None:
        leases = {shard: replace(lease) for shard, lease in self.leases._leases.items()}
        store = self.mailboxes
        state = (
            dict(store.mailboxes),
            dict(store.watermarks),
            leases,
            dict(self.leases._terms),
            {shard: dict(epochs) for shard, epochs in self.leases._epochs.items()},
            dict(self.leases._last),
        )
        self._snapshots.append((self.loop.time(), *state))
        del self._snapshots[:-_SNAPSHOTS]

    def roll_back(self, random: Random) -> bool:
        """The mailbox Redis loses its last moments; what was on its way to it is lost as well."""
        recent = [s for s in self._snapshots if s[0] >= self.loop.time() - _ROLLBACK_S]
        if not recent:
            return False
        _, mailboxes, watermarks, leases, terms, epochs, last = random.choice(recent)
        self.mailboxes.mailboxes = dict(mailboxes)
        self.mailboxes.watermarks = dict(watermarks)
        self.leases._leases = {shard: replace(lease) for shard, lease in leases.items()}
        self.leases._terms = dict(terms)
        self.leases._epochs = {shard: dict(known) for shard, known in epochs.items()}
        self.leases._last = dict(last)
        self._snapshots.clear()
        for operation in list(self.network.pending):
            if operation.name in ("append", "lease"):
                self.network.settle(operation, "fail")
        self.judge.rolled_back()
        self.loop.advance(_RESTART_S)
        return True

    # --- what a gateway shows ------------------------------------------------------------------------------------
    def follow(self, *, from_compacted: bool = False) -> None:
        """Read the watermarks changelog on, or a fresh gateway reads what compaction left of it."""
        if from_compacted:
            self.view = WatermarkView(SHARDS)
            self._viewed.clear()
            self.judge.new_gateway()
        for (table, shard), log in self.changelogs.items():
            if table != "watermark":
                continue
            fresh = self.compacted((table, shard)) if from_compacted else log[self._viewed[shard] :]
            for _, row in fresh:
                view, decoded = self.view.shards[shard], WATERMARK_ROW.decode(row)
                if decoded["epoch"] > view.boundaries[-1][0]:
                    view.learn(sorted(self.leases._epochs[shard].items()))
                view.update(decoded)
                self.judge.shown(shard, view)
            self._viewed[shard] = len(log)
