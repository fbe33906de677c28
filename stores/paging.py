"""The one paging rule of Q-IM: a page is whatever piled up while the previous page was in flight (design §2).

Nothing waits for a page to fill. A stage that has been idle starts at once, so a page of one costs no latency; the
pages of a busy stage keep a distance (`Pace`), which bounds how much of a core their fixed cost may take and lets pages
grow with load instead of multiplying (docs/decisions/0004-paging.md).

Each stage is measured once a page: how many records, how long its oldest item waited, how long it took (OBS-06, OBS-07).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from schemas.metrics import Reading, histogram, now_us

__all__ = [
    "BUSY_MESSAGES_PER_S",
    "FULL_PAGE_MESSAGES",
    "Pace",
    "PageCounter",
    "PagedStage",
    "failed_stages",
    "page_counters",
    "stage_readings",
]

BUSY_MESSAGES_PER_S: Final = 400
"""Messages a second from which a process counts as busy: below, the fixed cost of small pages is less than a tenth of a
core and latency matters more."""

_SETTLE_FROM_RECORDS: Final = (
    8  # a stage whose last page was smaller is not busy: its next page starts at once
)
_SETTLE_ROUNDS: Final = 10  # whoever is fed without a pause gets its page then

FULL_PAGE_MESSAGES: Final = 110
"""Messages of a page from which on its fixed cost is small beside the work on them."""

Item = TypeVar("Item")
_log = logging.getLogger(__name__)
_registry: dict[str, PageCounter] = {}
_failures: dict[PagedStage[Any], str] = {}


class Pace:
    """How far apart a busy stage starts its pages: a share of time for each record of the last page, up to a limit.

    Below BUSY_MESSAGES_PER_S the share is shorter than the time until the next record, so pages stay small and nothing
    waits; above it the distance grows to `max_interval_s`. `records_per_message` says how many records of this stage a
    message makes. The limit is what a message may wait here at most; 0 turns pacing off. Pages of more than
    FULL_PAGE_MESSAGES start sooner again: their fixed cost is spread thin, and the work on each adds to the latency.
    """

    __slots__ = ("_full_records", "_max_interval_s", "_share_s")

    def __init__(self, max_interval_s: float = 0.0, records_per_message: float = 1.0) -> None:
        self._max_interval_s = max_interval_s
        self._share_s = 1 / (BUSY_MESSAGES_PER_S * records_per_message)
        self._full_records = FULL_PAGE_MESSAGES * max(1.0, records_per_message)

    def after(self, records: int) -> float:
        """Seconds from the start of a page of `records` to the earliest start of the next one."""
        if records > self._full_records:
            # With the square root the distance settles: at k times the rate it is the cube root of k times shorter.
            return self._max_interval_s * math.sqrt(self._full_records / records)
        return min(self._max_interval_s, records * self._share_s)


class PageCounter:
    """Pages and records of one stage since start; `page_counters()` shows them on the process's HTTP port.

    Several stages of one name (one an instance of a store) share it; `stages` are those that live.
    """

    __slots__ = ("pages", "process", "records", "stages", "wait")

    def __init__(self, stage: str) -> None:
        self.pages = 0
        self.records = 0
        self.wait = histogram("qim_stage_wait_us", stage)
        self.process = histogram("qim_stage_process_us", stage)
        self.stages: WeakSet[PagedStage[Any]] = WeakSet()

    @classmethod
    def named(cls, stage: str) -> PageCounter:
        """The counter of `stage` in this process, created at first use."""
        found = _registry.get(stage)
        if found is None:
            found = _registry[stage] = cls(stage)
        return found

    def add(self, records: int) -> None:
        """Count one page."""
        self.pages += 1
        self.records += records


def page_counters() -> dict[str, dict[str, int]]:
    """Pages and records by stage of this process: stage -> {"pages", "records"}."""
    return {name: {"pages": c.pages, "records": c.records} for name, c in sorted(_registry.items())}


def failed_stages() -> str | None:
    """The stages of this process that ended by an error, None while all run: whoever asks for health must know."""
    return "; ".join(sorted(_failures.values())) or None


def stage_readings() -> Iterator[Reading]:
    """Pages, records and queue depth of every stage of this process (OBS-07)."""
    for name, count in _registry.items():
        yield Reading("qim_page_pages_total", count.pages, (name,))
        yield Reading("qim_page_records_total", count.records, (name,))
        yield Reading("qim_stage_queue_depth", sum(map(len, count.stages)), (name,))
        yield Reading("qim_stages_failed", len(count.stages & _failures.keys()), (name,))


class PagedStage(Generic[Item]):
    """One task that hands queued items, in order, to `process` a page at a time, one page in flight.

    `max_records` counts items; `records_in` tells how many records an item stands for, for the counter only.
    Where several tasks feed a stage one after the other, `settle_s` makes a busy stage wait until nobody has fed it for that
    long, so that what they have comes in one page.
    `process` must deal with every failure it can name; an exception that leaves it ends the stage, because going on
    after an unknown outcome would be a guess. `failed_stages` then names it and `on_failure` is told.
    """

    def __init__(
        self,
        name: str,
        process: Callable[[list[Item]], Awaitable[None]],
        *,
        max_records: int,
        pace: Pace | None = None,
        settle_s: float = 0.0,
        records_in: Callable[[Item], int] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.name = name
        self.counter = PageCounter.named(name)
        self._process = process
        self._max_records = max_records
        self._pace = pace or Pace()
        self._settle_s = settle_s
        self._on_failure = on_failure
        self._records_in = records_in
        self._queue: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._busy = False
        self._oldest_us = 0.0  # when the oldest waiting item came
        self.counter.stages.add(self)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Nothing queued and nothing in flight."""
        return not self._queue and not self._busy

    def put(self, item: Item) -> None:
        """Queue one item."""
        if not self._queue:
            self._oldest_us = now_us()
        self._queue.append(item)
        self._arrived.set()

    def put_many(self, items: Iterable[Item]) -> None:
        """Queue items in order."""
        if not self._queue:
            self._oldest_us = now_us()
        self._queue.extend(items)
        self._arrived.set()

    def start(self) -> None:
        """Start the task; does nothing when it runs already."""
        if self._task is not None:
            return
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"stage-{self.name}")

    async def stop(self) -> None:
        """Cancel the task and forget what is queued (OBS-06: depth 0); the caller drains first if it matters."""
        _failures.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._queue.clear()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        earliest = 0.0
        was_busy = False
        queue = self._queue
        try:
            while True:
                while not queue:  # woken by an empty put as well
                    self._arrived.clear()
                    await self._arrived.wait()
                wait = earliest - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                if was_busy and self._settle_s:
                    await self._settle()
                page = [queue.popleft() for _ in range(min(len(queue), self._max_records))]
                size = self._records_in
                records = len(page) if size is None else sum(map(size, page))
                self.counter.add(records)
                earliest = loop.time() + self._pace.after(records)
                was_busy = records >= _SETTLE_FROM_RECORDS
                self._busy = True
                begin_us = self._begin()
                await self._process(page)
                self.counter.process.observe(now_us() - begin_us)
                self._busy = False
        except (asyncio.CancelledError, GeneratorExit):  # the process ends, or its loop is gone
            raise
        except BaseException as error:
            _log.exception("stage %s failed", self.name)
            _failures[self] = f"{self.name}: {type(error).__name__}"
            if self._on_failure is None:
                raise
            self._on_failure(error)

    async def _settle(self) -> None:
        size = 0
        for _ in range(_SETTLE_ROUNDS):
            if len(self._queue) == size:
                return
            size = len(self._queue)
            await asyncio.sleep(self._settle_s)

    def _begin(self) -> float:
        """When a page begins, observing how long its oldest item waited; what stays queued counts from here."""
        begin_us = now_us()
        self.counter.wait.observe(begin_us - self._oldest_us)
        self._oldest_us = begin_us
        return begin_us
