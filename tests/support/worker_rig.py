"""A materializer worker without a broker and without Redis: the real shard tasks over tables, logs and stores in memory.

What is durable (logs, table rows with their changelog, mailboxes, leases) lives in `Durable` and survives; a `WorkerRig`
is one process on top of it. Hooks: `lease`, `append`, `progress`, `watermark`, `reposition`, `push`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from faust.types import TP

from schemas.records import (
    DISPATCH_PROGRESS,
    PUSH_BATCH,
    WATERMARK_ROW,
    PushBatch,
    WatermarkRow,
)
from schemas.watermarks import w_of
from stores.leases import LeaseGrant, LeaseHeld
from stores.mailbox import AppendOutcome, ScanRequest, ScanResult, ShardAppend
from stores.memory_leases import MemoryShardLeases
from stores.memory_mailbox import MemoryMailboxStore
from streams.app import QimApp
from streams.appender import MailboxAppender
from streams.changelogs import ChangelogWatch
from streams.leases import LeaseKeeper
from streams.materializer import Materializer
from streams.pages import Page
from streams.push import PushWriter
from streams.shard import PagedEvent, ShardTask
from tables.progress import ProgressTable, is_dispatch_row
from tables.watermarks import WATERMARK_KEY, WatermarksTable
from tests.support.dispatch_fakes import SHARDS
from tests.support.hooks import Hooks
from tests.support.records import FakeRecord
from tests.support.rig_tables import PROGRESS, WATERMARK, RigTables

__all__ = ["WORKER_CALLS", "Durable", "WorkerRig"]

TOPIC = "dispatch"
PUSH_PARTITIONS = 4
PAGE = 3
WORKER_CALLS = ("dispatch", "lease", "append", "progress", "watermark", "reposition", "push")


class _Leases(MemoryShardLeases):
    def __init__(self, hooks: Hooks, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self._hooks = hooks

    async def acquire(
        self, shard: int, owner: str, ttl_ms: int, **how: Any
    ) -> LeaseGrant | LeaseHeld:
        """See ShardLeases."""
        work = super().acquire
        return await self._hooks.call("lease", lambda: work(shard, owner, ttl_ms, **how))


class _Mailboxes(MemoryMailboxStore):
    def __init__(self, hooks: Hooks, leases: MemoryShardLeases, now_ms: Callable[[], int]) -> None:
        super().__init__(leases, lambda: now_ms() / 1000)
        self._hooks = hooks
        self.appends: list[ShardAppend] = []

    async def append_page(self, appends: Sequence[ShardAppend]) -> list[AppendOutcome]:
        """See MailboxStore."""
        work = super().append_page

        async def append() -> list[AppendOutcome]:
            self.appends.extend(appends)
            return await work(appends)

        return await self._hooks.call("append", append)


class Durable:
    """What outlives a worker: dispatch and push logs, tables, mailboxes, leases."""

    def __init__(self, now_ms: Callable[[], int], hooks: Hooks | None = None) -> None:
        self.hooks = hooks or Hooks()
        self.leases = _Leases(self.hooks, now_ms)
        self.mailboxes = _Mailboxes(self.hooks, self.leases, now_ms)
        self.tables = RigTables(self.hooks)
        self.dispatch: dict[int, list[FakeRecord]] = defaultdict(list)
        self.first: dict[int, int] = defaultdict(int)  # what retention left of each dispatch log
        self.pushes: list[tuple[int, PushBatch]] = []

    def w_row(self, shard: int) -> WatermarkRow | None:
        """The row that gateways read."""
        row = self.tables.rows["watermark", shard].get(WATERMARK_KEY)
        return None if row is None else WATERMARK_ROW.decode(row)

    def w(self, shard: int, lane: int) -> int:
        """W of a lane as gateways know it, as log offset."""
        row = self.w_row(shard)
        return -1 if row is None else w_of(row["w"], lane)

    def done(self, shard: int) -> bool:
        """Whether every lane covers the whole log."""
        end = len(self.dispatch[shard]) - 1
        return all(self.w(shard, lane) >= end for lane in range(64))

    async def entries(self, shard: int, user: int, up_to_offset: int | None = None) -> list[bytes]:
        """The user's mailbox from the zero cursor on, in order, read in small batches."""
        found: list[bytes] = []
        newest = max(self.leases._epochs.get(shard, {1: 0}))
        after, up_to = 0, (newest << 48) + ((1 << 40) if up_to_offset is None else up_to_offset)
        while True:
            scan = ScanRequest(0, user, shard, (1,), after, up_to, 4, 1 << 20)
            (result,) = await self.mailboxes.range_scan([scan])
            assert isinstance(result, ScanResult), result
            found += result.entries
            after = result.covered_through
            if not result.has_more:
                return found

    def progress(self, shard: int) -> dict[bytes, Any]:
        """Progress rows by dispatch_id."""
        rows = self.tables.rows["progress", shard].items()
        return {k: DISPATCH_PROGRESS.decode(v) for k, v in rows if is_dispatch_row(k)}


class _Event(PagedEvent):
    def __init__(self, rig: WorkerRig, page: Page) -> None:
        self._rig = rig
        self._page = page

    @property
    def value(self) -> Page:
        """See PagedEvent."""
        return self._page

    def ack(self) -> bool:
        """See PagedEvent."""
        self._rig.acked.append((self._page.partition, self._page.first, self._page.offset))
        return True


class WorkerRig:
    """One worker process; it reads what the consumer part of this class hands to it, page by page."""

    def __init__(
        self, durable: Durable, owner: str = "worker-0", shard_count: int = SHARDS
    ) -> None:
        self.durable = durable
        self.inline = self  # the consumer behind the consumer
        self.acked: list[tuple[int, int, int]] = []
        self.held: set[int] = set()
        self.repositions: list[tuple[int, int]] = []
        self._run: dict[int, int] = defaultdict(int)
        self.position: dict[int, int] = {}
        self.keeper = LeaseKeeper(durable.leases, owner)
        self.appender = MailboxAppender(durable.mailboxes, 2)
        self.writer = PushWriter("push", self._produce)
        app = cast("QimApp", SimpleNamespace(qim_consumer=self, page_writer=durable.tables))
        self.watch = ChangelogWatch(
            app, (PROGRESS, WATERMARK), lambda: list(self.materializer.shards.values())
        )
        self.materializer = Materializer(
            app,
            store=durable.mailboxes,
            appender=self.appender,
            keeper=self.keeper,
            progress=ProgressTable(durable.tables, PROGRESS),
            watermarks=WatermarksTable(durable.tables, WATERMARK),
            pushes=self.writer,
            topic=TOPIC,
            shard_count=shard_count,
            push_partitions=PUSH_PARTITIONS,
        )

    async def start(self, shards: Sequence[int] = range(SHARDS)) -> None:
        """Take the leases, read the positions, start the tasks."""
        self.keeper.start()
        self.appender.start()
        self.writer.start()
        starts = await self.materializer.start_shards({TP(TOPIC, shard) for shard in shards})
        self.position = {tp.partition: offset for tp, offset in starts.items()}

    async def stop(self) -> None:
        """A clean end: pages in hand are finished."""
        await self.materializer.drain()
        await self.appender.stop()
        await self.writer.stage.stop()
        await self.keeper.stop()

    async def crash(self) -> None:
        """The process is gone where it stands; leases stay until they end."""
        shards = list(self.materializer.shards.values())
        tasks = [shard._task for shard in shards]
        tasks += [self.keeper.renewing.task] if self.keeper.renewing.task is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.appender.stop()
        await self.writer.stage.stop()
        self.durable.hooks.revive(*WORKER_CALLS)

    def shard(self, shard: int) -> ShardTask:
        """One shard's task."""
        return self.materializer.shards[shard]

    # --- the consumer: hands out pages of what is not held -------------------------------------------------------
    def feed(self, shard: int, records: int = PAGE) -> bool:
        """Hand the next page of one partition to the worker; False when it is held or read to its end."""
        at = self.position.get(shard)
        if at is None or shard in self.held or at >= len(self.durable.dispatch[shard]):
            return False
        page = Page(TOPIC, shard, self.durable.dispatch[shard][at : at + records])
        page.run = self._run[shard]
        self.position[shard] = page.offset + 1
        self.materializer.put(_Event(self, page))
        return True

    async def run(self, limit_s: float = 300.0) -> None:
        """Feed all partitions until W covers their logs, a hook stops the process, or nothing goes on."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while asyncio.get_running_loop().time() < deadline:
            for shard in self.position:
                self.feed(shard)
            if self.durable.hooks.stopped.is_set() or all(map(self.durable.done, self.position)):
                return
            await asyncio.sleep(0.01)

    def hold(self, tp: TP) -> None:
        """See QimConsumer."""
        self.held.add(tp.partition)

    def release(self, tp: TP) -> None:
        """See QimConsumer."""
        self.held.discard(tp.partition)

    def is_current(self, page: Page) -> bool:
        """See QimConsumer."""
        return page.run == self._run[page.partition]

    async def reposition(self, starts: Mapping[TP, int]) -> None:
        """See QimConsumer."""

        async def work() -> None:
            for tp, offset in starts.items():
                self.repositions.append((tp.partition, offset))
                self._run[tp.partition] += 1
                self.position[tp.partition] = offset
                self.held.discard(tp.partition)

        await self.durable.hooks.call("reposition", work)

    async def first_offsets(self, partitions: Sequence[TP]) -> dict[TP, int]:
        """See QimConsumer."""
        return {tp: self.durable.first[tp.partition] for tp in partitions}

    async def end_offsets(self, partitions: Sequence[TP]) -> dict[TP, int]:
        """See QimConsumer."""
        logs = self.durable.tables.changelogs
        return {
            tp: len(self.durable.dispatch[tp.partition] if tp.topic == TOPIC else logs[tp])
            for tp in partitions
        }

    async def _produce(
        self, topic: str, pages: Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]
    ) -> dict[int, list[int]]:
        del topic

        async def work() -> dict[int, list[int]]:
            for partition, records in pages.items():
                for _, value in records:
                    assert value is not None
                    self.durable.pushes.append((partition, PUSH_BATCH.decode(value)))
            return {}

        return await self.durable.hooks.call("push", work)
