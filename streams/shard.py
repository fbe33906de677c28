"""One mailbox shard: a task that turns dispatch records into durable entries, progress and W, in that order.

    page -> plan (pure) -> entries + store W (one script) -> progress rows -> watermark row -> ack; pushes beside it

Between two pages at most one chunk of a heavy record runs (M-1). Whatever goes wrong, nothing is guessed: the shard
forgets what it holds, reads where it stands from the table and the mailbox, and starts again at W + 1 (design §6,
TAKE-02). An error that a replay cannot mend (digest conflict, damage) stops this shard alone; its partition is held and
the other shards go on (FAN-09, FAN-10).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from aiokafka.errors import KafkaError
from faust.types import TP

from schemas.constants import SHARD_LEASE_RENEW_MS, SHARD_QUEUE_MAX_PAGES
from schemas.errors import ErrorCode, QimError, ServerFault, StoreFault
from schemas.kill_points import KillPoint, reached
from schemas.records import DispatchProgress, WatermarkRow
from stores.mailbox import AppendOutcome, EntryWrite, ShardAppend
from streams.expand import PlannedPush
from streams.heavy import split_heavy
from streams.materialize_core import PagePlan, ShardPipeline, decode_page
from streams.outcomes import check_outcome, count_violation
from streams.pages import PAGE_RECORDS, Page
from streams.position import Position
from streams.segments import ShardSegments

__all__ = ["PagedEvent", "ShardServices", "ShardState", "ShardTask"]

_log = logging.getLogger(__name__)
_HIGH_PAGES = SHARD_QUEUE_MAX_PAGES
_LOW_PAGES = SHARD_QUEUE_MAX_PAGES // 4
_DAMAGE = (ErrorCode.INTERNAL, ErrorCode.MAILBOX_DIRTY)  # no replay mends these
_WRITING_S = 30.0
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 2.0
_BACKLOG_MAX_ENTRIES = 1_000_000
"""Waiting entries above which no page is taken; about 100 MB. Smaller: one wide record holds up the free lanes."""
_STAND_S = SHARD_LEASE_RENEW_MS / 1000
"""How often an idle shard looks after its mailbox: one script call for all of a worker's. Longer: a loss is noticed later."""


class ShardState(Enum):
    """Where a shard stands; shown on the worker's HTTP port."""

    RUNNING = "running"
    RECOVERING = "recovering"
    FAILED = "failed"
    STOPPED = "stopped"


class PagedEvent(Protocol):
    """The Faust event of one page."""

    @property
    def value(self) -> Page:
        """The page."""

    def ack(self) -> bool:
        """Book the page as processed."""


class ShardServices(Protocol):
    """What the shell around a shard provides; tests replace it."""

    async def position(self, shard: int) -> Position:
        """Fence, then read where the shard stands."""

    async def append(self, append: ShardAppend) -> AppendOutcome:
        """Entries and store W, one section of a mailbox page."""

    async def known_progress(
        self, shard: int, ids: Sequence[bytes]
    ) -> dict[bytes, DispatchProgress]:
        """Progress rows that exist already."""

    async def write_progress(self, shard: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Durable on return."""

    async def write_watermark(self, shard: int, row: WatermarkRow) -> None:
        """Durable on return."""

    def push(self, pushes: Sequence[PlannedPush]) -> None:
        """Queue pushes; never waits."""

    def hold(self, tp: TP) -> None:
        """Stop reading the partition."""

    def release(self, tp: TP) -> None:
        """Read the partition again."""

    def is_current(self, page: Page) -> bool:
        """Whether the page was read since the last start."""

    async def reposition(self, tp: TP, offset: int) -> None:
        """Read the partition from `offset` on."""


class ShardTask:
    """Runs one shard. `put` takes pages in log order; everything else happens in its own task.

    With the state RECOVERING it first reads where it stands, whatever `position` says.
    """

    def __init__(
        self,
        tp: TP,
        services: ShardServices,
        position: Position,
        state: ShardState = ShardState.RUNNING,
    ) -> None:
        self.tp = tp
        self.shard = tp.partition
        self.state = state
        self.failure: str | None = None
        self.position = position
        self.restarts = 0
        self.pipeline = ShardPipeline(position.context, position.starts, position.refused)
        self._flowing: asyncio.Timeout | None = None
        self._durable_s = 0.0
        self._services = services
        self._segments = ShardSegments(self.shard)
        self._queue: deque[PagedEvent] = deque()
        self._arrived = asyncio.Event()
        self._held = False
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"shard-{self.shard}")

    @property
    def depth(self) -> int:
        """Queued pages (OBS-07)."""
        return len(self._queue)

    def put(self, event: PagedEvent) -> None:
        """Queue a page; a full queue holds only this partition (REG-21)."""
        if self.state is not ShardState.RUNNING or self._stopping:
            return  # it is read again from W + 1
        self._segments.queued(event.value)
        self._queue.append(event)
        self._arrived.set()
        if len(self._queue) >= _HIGH_PAGES and not self._held:
            self._held = True
            self._services.hold(self.tp)

    async def stop(self, limit_s: float) -> None:
        """Finish the page in hand and take no other."""
        self._stopping = True
        self._arrived.set()
        in_hand = self.state is ShardState.RUNNING  # a start holds nothing that could be finished
        done, _ = await asyncio.wait({self._task}, timeout=limit_s if in_hand else 0)
        if not done:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.state is not ShardState.FAILED:
            self.state = ShardState.STOPPED

    @property
    def is_writing(self) -> bool:
        """Whether something became durable a moment ago: a long backlog is no reason to begin anew."""
        return asyncio.get_running_loop().time() - self._durable_s < _WRITING_S

    def start_again(self, reason: str) -> None:
        """Give up what is in hand, even a call that does not return, and start at W + 1 (LANE-08)."""
        if self.state is ShardState.RUNNING and self._flowing is not None:
            _log.error("shard %d has to start again: %s", self.shard, reason)
            self._flowing.reschedule(asyncio.get_running_loop().time())

    async def _run(self) -> None:
        backoff_s = _RETRY_FIRST_S
        while not self._stopping:
            pages = self.position.page_number
            try:
                if self.state is ShardState.RECOVERING:
                    await self._recover()
                async with asyncio.timeout(None) as self._flowing:
                    await self._flow()
            except (ServerFault, KafkaError, OSError, TimeoutError) as error:
                if isinstance(error, StoreFault) and error.code in _DAMAGE:
                    self._fail(error)
                    return
                if self.position.page_number > pages:
                    backoff_s = _RETRY_FIRST_S
                self._leave(error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _RETRY_MAX_S)
            # An exception must never leave a shard task (design §5).
            except Exception as error:  # noqa: BLE001
                self._fail(error)
                return

    def _leave(self, error: BaseException) -> None:
        _log.error("shard %d starts again at W + 1 after: %r", self.shard, error)
        self.state = ShardState.RECOVERING
        self._flowing = None
        self.restarts += 1
        self._queue.clear()
        self._services.hold(self.tp)

    def _fail(self, error: BaseException) -> None:
        count_violation(error)
        _log.critical(
            "shard %d stops alone at offset %d",
            self.shard,
            self.pipeline.ledger.next_offset,
            exc_info=error,
        )
        self.state = ShardState.FAILED
        self.failure = f"{type(error).__name__}: {error}"
        self._queue.clear()
        self._services.hold(self.tp)

    async def _recover(self) -> None:
        self.position = at = await self._services.position(self.shard)
        self.pipeline = ShardPipeline(at.context, at.starts, at.refused)
        self._queue.clear()
        self._held = False
        self.state = ShardState.RUNNING  # pages read from the new position may arrive at once
        try:
            await self._services.reposition(self.tp, at.next_offset)
        except BaseException:
            self.state = ShardState.RECOVERING
            raise

    async def _flow(self) -> None:
        pipeline = self.pipeline
        while not self._stopping:
            if self._queue and pipeline.backlog_entries < _BACKLOG_MAX_ENTRIES:
                await self._page(self._take_events())
            pipeline.now_ms = int(asyncio.get_running_loop().time() * 1000)
            chunk = pipeline.next_chunk()
            if chunk is not None:
                await self._write(chunk)
            elif not self._queue:
                await self._idle()

    async def _idle(self) -> None:
        """Wait for a page; meanwhile make sure, again and again, that the mailbox still stands where it was left.

        A store that lost its last second, or a lease that somebody else has now, would otherwise stay unnoticed until
        the next message: what is missing must be replayed before anybody looks for it (TAKE-05).
        """
        self._arrived.clear()
        try:
            async with asyncio.timeout(_STAND_S):
                await self._arrived.wait()
        except TimeoutError:
            at = self.position
            if at.store_w is not None:
                await self._append(at.store_w, [])

    def _take_events(self) -> list[PagedEvent]:
        """Everything that is queued, up to a page's worth of records; pages of before a restart are dropped."""
        queue, events, records = self._queue, [], 0
        while queue and records < PAGE_RECORDS:
            event = queue.popleft()
            if self._services.is_current(event.value):
                events.append(event)
                records += len(event.value.records)
        if self._held and len(queue) <= _LOW_PAGES:
            self._held = False
            self._services.release(self.tp)
        return events

    async def _page(self, events: list[PagedEvent]) -> None:
        if not events:
            return
        begin_us = self._segments.taken([event.value for event in events])
        expected = self.pipeline.ledger.next_offset
        for event in events:
            if event.value.first != expected:
                raise QimError(
                    f"the log continues at {event.value.first}, not at {expected}",
                    ErrorCode.INTERNAL,
                )
            expected = event.value.offset + 1
        decoded = decode_page(self.shard, (r for event in events for r in event.value.records))
        ids = [dispatch["dispatch_id"] for _, _, dispatch in decoded]
        known = await self._services.known_progress(self.shard, ids)
        self.pipeline.now_ms = int(asyncio.get_running_loop().time() * 1000)
        plan = self.pipeline.take_page(decoded, known, await split_heavy(decoded))
        seen = [(offset, dispatch["dispatch_id"]) for offset, _, dispatch in decoded]
        plan.progress_rows.extend(self.position.dispatches.add(seen))
        await self._write(plan)
        for event in events:
            event.ack()
        self._segments.durable(begin_us)

    async def _append(self, new_w: bytes, entries: Sequence[EntryWrite]) -> None:
        """Entries and W of the store, if lease and stored W are still what this task knows."""
        at = self.position
        append = ShardAppend(
            shard=self.shard,
            lease_term=at.lease_term,
            base_epoch=at.base_epoch,
            expected_w=at.store_w,
            new_w=new_w,
            w_epoch=at.context.boundaries[-1][0],
            entries=entries,
        )
        check_outcome(append, await self._services.append(append))

    async def _write(self, plan: PagePlan) -> None:
        """Entries and store W, then progress, then the watermark row: each durable before the next (ADAPT-05)."""
        at = self.position
        store_w, table_w = at.pack(plan.marks)
        await self._append(store_w, plan.entries)
        reached(KillPoint.AFTER_ENTRIES)
        await self._services.write_progress(self.shard, plan.progress_rows)
        reached(KillPoint.AFTER_PROGRESS)
        # A gateway shows a push once it sees W cover it, so both leave together, in one request to the log.
        self._services.push(plan.pushes)
        row: WatermarkRow = {
            "lease_term": at.lease_term,
            "epoch": at.context.boundaries[-1][0],
            "base_epoch": at.base_epoch,
            "page_number": at.page_number + 1,
            "w": table_w,
        }
        await self._services.write_watermark(self.shard, row)
        reached(KillPoint.AFTER_W)
        self.position = at.after(plan.marks, store_w)
        self._durable_s = asyncio.get_running_loop().time()
