"""One mailbox shard: a task that turns pages of dispatch records into durable entries, progress and W, in that order.

    page -> plan (pure) -> entries + store W (one script) -> progress rows -> watermark row -> ack; pushes beside it

Whatever goes wrong, nothing is guessed: the shard forgets what it holds, reads where it stands from the table and the
mailbox, and starts again at W + 1 (design §6, TAKE-02). An error that a replay cannot mend (digest conflict, damage)
stops this shard alone; its partition is held and the other shards go on (FAN-09, FAN-10).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from aiokafka.errors import KafkaError
from faust.types import TP

from schemas.constants import SHARD_QUEUE_MAX_PAGES
from schemas.errors import ErrorCode, QimError, ServerFault, StoreFault
from schemas.records import DispatchProgress, WatermarkRow
from schemas.watermarks import NOTHING, LaneMark, pack_uniform, pack_w, unpack_w, w_of
from stores.mailbox import AppendOutcome, EntryWrite, ShardAppend
from streams.materialize_core import PlannedPush, ShardContext, decode_page, plan_page
from streams.pages import Page

__all__ = ["Position", "ShardServices", "ShardState", "ShardTask", "advance_blob", "start_offset"]

_log = logging.getLogger(__name__)
_HIGH_PAGES = SHARD_QUEUE_MAX_PAGES
_LOW_PAGES = SHARD_QUEUE_MAX_PAGES // 4
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 2.0


class ShardState(Enum):
    """Where a shard stands; shown on the worker's HTTP port."""

    RUNNING = "running"
    RECOVERING = "recovering"
    FAILED = "failed"
    STOPPED = "stopped"


class Position(NamedTuple):
    """What a shard continues from: read anew at every start (design §6).

    `store_w` is the packed blob in the mailbox, None when it has none; `table_w` the log offset of the watermarks
    table, -1 when it has none; `next_offset` the first record to process.
    """

    lease_term: int
    context: ShardContext
    base_epoch: int
    store_w: bytes | None
    table_w: int
    page_number: int
    next_offset: int


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


def advance_blob(stored: bytes | None, last_offset: int) -> bytes:
    """The store's W after a page that ends at `last_offset`: every lane at least there, none ever back (WM-01)."""
    if stored is None or (len(stored) == len(pack_uniform(0)) and w_of(stored, 0) <= last_offset):
        return pack_uniform(last_offset)
    lanes = [max(mark.w, last_offset) for mark in unpack_w(stored)]
    return pack_w([LaneMark(w, w, w) for w in lanes])


class ShardTask:
    """Runs one shard. `put` takes pages in log order; everything else happens in its own task."""

    def __init__(self, tp: TP, services: ShardServices, position: Position) -> None:
        self.tp = tp
        self.shard = tp.partition
        self.state = ShardState.RUNNING
        self.failure: str | None = None
        self.position = position
        self.restarts = 0
        self._services = services
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
        self._queue.append(event)
        self._arrived.set()
        if len(self._queue) >= _HIGH_PAGES and not self._held:
            self._held = True
            self._services.hold(self.tp)

    async def stop(self, limit_s: float) -> None:
        """Finish the page in hand and take no other."""
        self._stopping = True
        self._arrived.set()
        done, _ = await asyncio.wait({self._task}, timeout=limit_s)
        if not done:
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.state is not ShardState.FAILED:
            self.state = ShardState.STOPPED

    async def _run(self) -> None:
        backoff_s = _RETRY_FIRST_S
        while not self._stopping:
            pages = self.position.page_number
            try:
                if self.state is ShardState.RECOVERING:
                    await self._recover()
                await self._flow()
            except (ServerFault, KafkaError, OSError, TimeoutError) as error:
                if (
                    isinstance(error, StoreFault) and error.code is ErrorCode.INTERNAL
                ):  # damage: no replay mends it
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
        self.restarts += 1
        self._queue.clear()
        self._services.hold(self.tp)

    def _fail(self, error: BaseException) -> None:
        _log.critical(
            "shard %d stops alone at offset %d",
            self.shard,
            self.position.next_offset,
            exc_info=error,
        )
        self.state = ShardState.FAILED
        self.failure = f"{type(error).__name__}: {error}"
        self._queue.clear()
        self._services.hold(self.tp)

    async def _recover(self) -> None:
        self.position = await self._services.position(self.shard)
        self._queue.clear()
        self._held = False
        self.state = ShardState.RUNNING  # pages read from the new position may arrive at once
        try:
            await self._services.reposition(self.tp, self.position.next_offset)
        except BaseException:
            self.state = ShardState.RECOVERING
            raise

    async def _flow(self) -> None:
        queue = self._queue
        while True:
            if not queue and not self._stopping:
                self._arrived.clear()
                await self._arrived.wait()
            if self._stopping:
                return
            event = queue.popleft()
            if self._held and len(queue) <= _LOW_PAGES:
                self._held = False
                self._services.release(self.tp)
            if self._services.is_current(event.value):
                await self._page(event.value)
                event.ack()

    async def _page(self, page: Page) -> None:
        at = self.position
        if page.first != at.next_offset:
            raise QimError(
                f"the log continues at {page.first}, not at {at.next_offset}", ErrorCode.INTERNAL
            )
        decoded = decode_page(self.shard, page.records)
        ids = [dispatch["dispatch_id"] for _, _, dispatch in decoded]
        plan = plan_page(at.context, decoded, await self._services.known_progress(self.shard, ids))
        store_w = await self._append(at, plan.entries, plan.last_offset)
        self._services.push(plan.pushes)
        await self._services.write_progress(self.shard, plan.progress_rows)
        table_w = max(at.table_w, plan.last_offset)
        row: WatermarkRow = {
            "lease_term": at.lease_term,
            "epoch": at.context.boundaries[-1][0],
            "base_epoch": at.base_epoch,
            "page_number": at.page_number + 1,
            "w": pack_uniform(table_w),
        }
        await self._services.write_watermark(self.shard, row)
        self.position = at._replace(
            store_w=store_w,
            table_w=table_w,
            page_number=at.page_number + 1,
            next_offset=plan.last_offset + 1,
        )

    async def _append(self, at: Position, entries: Sequence[EntryWrite], last_offset: int) -> bytes:
        new_w = advance_blob(at.store_w, last_offset)
        outcome = await self._services.append(
            ShardAppend(
                shard=self.shard,
                lease_term=at.lease_term,
                base_epoch=at.base_epoch,
                expected_w=at.store_w,
                new_w=new_w,
                w_epoch=at.context.boundaries[-1][0],
                entries=entries,
            )
        )
        if outcome.code == "ok":
            return new_w
        if outcome.code in ("fenced", "w_mismatch"):
            # Another term or another W: somebody else wrote, or the store lost something. Read again, start again.
            raise StoreFault(f"append: {outcome.code} {outcome.detail}", ErrorCode.UNAVAILABLE)
        raise StoreFault(f"append: {outcome.code} {outcome.detail}", ErrorCode.INTERNAL)


def start_offset(store_w: bytes | None, table_w: int) -> int:
    """Return min over lanes of min(table W, store W) + 1, whatever a consumer group committed (TAKE-01 T5, TAKE-02)."""
    stored = NOTHING if store_w is None else min(mark.w for mark in unpack_w(store_w))
    return min(stored, table_w) + 1
