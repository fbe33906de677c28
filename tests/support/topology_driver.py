"""TopologyDriver: the whole pipeline in one process, without a broker and without Redis, in virtual time.

    send -> commit step -> outbox log -> fanout -> dispatch logs -> shard tasks -> mailboxes, tables, push log -> pull

Every part is the real one; only the servers below them are dicts and lists. Calls are synchronous: each runs the
driver's own event loop until nothing is left to do. Two processes can die: the gateway (commit step) and the worker
(fanout and shards). What is durable stays, and all of it can be read.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeVar, cast

from faust.types import TP

from gateway.ports import CommitRequest
from gateway.visibility import WatermarkView
from schemas.constants import LOG_OFFSET_BITS
from schemas.entry import MailboxEntry, decode_entry
from schemas.identifiers import lane_of, shard_of
from schemas.records import WATERMARK_ROW
from streams.app import QimApp
from streams.fanout import Fanout
from streams.pages import Page
from streams.shard import PagedEvent
from tests.support.commit_fakes import CommitRig, Waiter
from tests.support.dispatch_fakes import SHARDS
from tests.support.records import FakeRecord
from tests.support.virtual_time import EPOCH_MS, VirtualLoop
from tests.support.worker_rig import WORKER_CALLS, Durable, WorkerRig

__all__ = ["TopologyDriver"]

Result = TypeVar("Result")
_PAGE = 4
_STEP_S = 0.002
_START_TRIES = 50


class _OutboxReader:
    """The worker's fanout and its place in the outbox log; what was acknowledged survives a crash."""

    def __init__(self, driver: TopologyDriver) -> None:
        self._driver = driver
        self.position = dict(driver.committed)
        self.fanout = Fanout(cast("QimApp", self), "dispatch", SHARDS)
        self.qim_consumer = self

    async def produce_pages(
        self, topic: str, pages: Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]
    ) -> dict[int, list[int]]:
        """See QimApp."""
        del topic

        async def work() -> dict[int, list[int]]:
            for partition, records in pages.items():
                self._driver.append_dispatches(partition, records)
            return {}

        return await self._driver.rig.hooks.call("dispatch", work)

    def is_current(self, page: Page) -> bool:
        """See QimConsumer."""
        del page
        return True

    def hold(self, tp: TP) -> None:
        """See QimConsumer."""
        raise AssertionError(f"an outbox record cannot be planned: {self.fanout.failed[tp]}")

    def feed(self) -> bool:
        """Hand the next page of each outbox partition to fanout; False when all are read to their end."""
        fed = False
        for partition, log in self._driver.rig.outbox.log.items():
            at = self.position.get(partition, 0)
            values = log[at : at + _PAGE]
            if values:
                records = [FakeRecord(at + n, *pair) for n, pair in enumerate(values)]
                self.position[partition] = at + len(values)
                self.fanout.put(self._event(Page("outbox", partition, records)))
                fed = True
        return fed

    def _event(self, page: Page) -> PagedEvent:
        def ack() -> bool:
            self._driver.committed[page.partition] = page.offset + 1
            return True

        return cast("PagedEvent", SimpleNamespace(value=page, ack=ack))


class TopologyDriver:
    """See the module. Use as a context manager: leaving it ends both processes and the loop."""

    def __init__(self) -> None:
        self._loop = VirtualLoop()
        self.committed: dict[int, int] = (
            {}
        )  # outbox partition -> first offset that is not fanned out
        self.view = WatermarkView(SHARDS)
        self._viewed: dict[int, int] = defaultdict(int)
        self._run(self._start())

    async def _start(self) -> None:
        self.rig = CommitRig()
        self.durable = Durable(self.rig.now_ms, self.rig.hooks)
        await self.rig.start()
        await self._start_worker()

    async def _start_worker(self) -> None:
        """A start that fails ends the process; whoever watches over it starts it again."""
        for _ in range(_START_TRIES):
            self.worker = WorkerRig(self.durable)
            self.outbox = _OutboxReader(self)
            self.outbox.fanout.start()
            starting = asyncio.ensure_future(self.worker.start())
            while not (starting.done() or self.rig.hooks.stops(WORKER_CALLS)):  # noqa: ASYNC110
                await asyncio.sleep(_STEP_S)
            started = starting.done() and starting.exception() is None
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            if started:
                return
            await self._end_worker()
        raise AssertionError("the worker does not start")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async def stop() -> None:
            await self.rig.crash()
            await self._end_worker()

        self._run(stop())
        self._loop.close()

    def _run(self, main: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(main)

    # --- what goes in --------------------------------------------------------------------------------------------
    def send(self, asked: CommitRequest) -> Waiter:
        """Hand one message to the gateway; nothing runs yet."""

        async def submit() -> Waiter:
            return self.rig.submit(asked)

        return self._run(submit())

    def append_dispatches(
        self, shard: int, records: Sequence[tuple[bytes | None, bytes | None]]
    ) -> None:
        """Put records behind a dispatch log, as the broker would."""
        log = self.durable.dispatch[shard]
        for key, value in records:
            log.append(FakeRecord(len(log), key, value, EPOCH_MS + len(log)))

    def fault(self, operation: str, *faults: str) -> None:
        """See tests/support/hooks.py; operations: reserve, publish, mark, dispatch, append, progress, watermark, ..."""
        self.rig.hooks.add(operation, *faults)

    # --- what runs -----------------------------------------------------------------------------------------------
    def run(self, seconds: float) -> None:
        """Let everything run for a moment."""
        self._run(self._pump(seconds, max(_STEP_S, seconds / 100)))

    def settle(self) -> None:
        """Run until every message is answered, fanned out and covered by W; fails when that never happens."""
        self._run(self._settle())

    async def _pump(self, seconds: float, step_s: float = _STEP_S) -> None:
        end = self._loop.time() + seconds
        while True:
            self.outbox.feed()
            for shard in self.worker.position:
                self.worker.feed(shard)
            if self._loop.time() >= end or self.rig.hooks.stopped.is_set():
                break
            await asyncio.sleep(step_s)
        self._follow()

    async def _settle(self) -> None:
        for step_s in [_STEP_S] * 50 + [0.1] * 50:  # patient at the end: backoffs take seconds
            await self._pump(20 * step_s, step_s)
            if self.quiet:
                return
        raise AssertionError("the pipeline does not come to rest")

    @property
    def quiet(self) -> bool:
        """Nothing is on its way."""
        return (
            all(waiter.result is not None for waiter in self.rig.waiters)
            and not len(self.rig.commit.intents)
            and all(self.committed.get(p, 0) == len(log) for p, log in self.rig.outbox.log.items())
            and all(map(self.durable.done, range(SHARDS)))
        )

    def _follow(self) -> None:
        """The gateway reads the watermarks changelog on."""
        for (table, shard), log in self.durable.tables.changelogs.items():
            if table == "watermark":
                for _, row in log[self._viewed[shard] :]:
                    self.view.shards[shard].update(WATERMARK_ROW.decode(row))
                self._viewed[shard] = len(log)

    # --- what dies -----------------------------------------------------------------------------------------------
    def crash_gateway(self) -> list[CommitRequest]:
        """The gateway dies and a new one starts; returns what its clients had no answer for."""

        async def crash() -> list[CommitRequest]:
            await self.rig.crash()
            lost = [waiter.asked for waiter in self.rig.waiters if waiter.result is None]
            self.rig.forget()
            await self.rig.start()
            return lost

        return self._run(crash())

    def recover(self) -> int:
        """One round of the recoverer; returns how many commits it continued."""
        return self._run(self.rig.recover())

    def crash_worker(
        self, *, lose_disk: bool = False, mailbox: dict[Any, Any] | None = None
    ) -> None:
        """The worker dies and starts again, with its tables rebuilt from the changelogs when its disk is lost.

        `mailbox` (see `mailbox_state`) is what the mailbox store came back with.
        """

        async def crash() -> None:
            await self._end_worker()
            if lose_disk:
                self.durable.tables.rebuild()
            if mailbox is not None:
                restored = copy.deepcopy(mailbox)
                self.durable.mailboxes.mailboxes = restored["mailboxes"]
                self.durable.mailboxes.watermarks = restored["watermarks"]
            await self._start_worker()
            self._follow()

        self._run(crash())

    async def _end_worker(self) -> None:
        await self.worker.crash()
        await self.outbox.fanout.stage.stop()

    @property
    def stopped(self) -> bool:
        """Whether a `stop` fault has hit: one of the processes hangs in a call and must be crashed."""
        return self.rig.hooks.stopped.is_set()

    # --- what can be seen ----------------------------------------------------------------------------------------
    def mailbox_state(self) -> dict[Any, Any]:
        """A copy of all mailboxes with their W, as a store's snapshot would hold them."""
        store = self.durable.mailboxes
        return copy.deepcopy({"mailboxes": store.mailboxes, "watermarks": store.watermarks})

    def watermark(self, user: int) -> int | None:
        """W of a user's lane as log offset as the gateway shows it; None while the lane is closed."""
        lane = lane_of(0, user)
        view = self.view.shards[shard_of(0, user, SHARDS)]
        if not view.is_open(lane):
            return None
        shown = view.watermark(lane)
        return shown & ((1 << LOG_OFFSET_BITS) - 1) if shown else -1

    def pull_raw(self, user: int, up_to_offset: int | None = None) -> list[bytes]:
        """Encoded entries of a user up to W of the lane (MBX-57), or up to an earlier offset."""
        shown = self.watermark(user)
        up_to = shown if up_to_offset is None else up_to_offset
        if up_to is None or up_to < 0:
            return []
        return self._run(self.durable.entries(shard_of(0, user, SHARDS), user, up_to))

    def pull(self, user: int) -> list[MailboxEntry]:
        """What a device that pulls everything gets."""
        return [decode_entry(entry) for entry in self.pull_raw(user)]
