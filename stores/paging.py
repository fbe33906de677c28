"""The one paging rule of Q-IM: a page is whatever piled up while the previous page was in flight (design §2).

Nothing waits for a page to fill. A stage that has been idle starts at once, so a page of one costs no latency; a busy
stage starts its pages at least `min_interval_s` apart, which bounds how much of a core the fixed cost of a page may
take and lets pages grow with load instead of multiplying (docs/decisions/0004-paging.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

__all__ = ["PageCounter", "PagedStage", "failed_stages", "page_counters"]

Item = TypeVar("Item")
_log = logging.getLogger(__name__)
_registry: dict[str, PageCounter] = {}


class PageCounter:
    """Pages and records of one stage since start; `page_counters()` shows them on the process's HTTP port."""

    __slots__ = ("pages", "records")

    def __init__(self) -> None:
        self.pages = 0
        self.records = 0

    @classmethod
    def named(cls, stage: str) -> PageCounter:
        """The counter of `stage` in this process, created at first use."""
        return _registry.setdefault(stage, cls())

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


class PagedStage(Generic[Item]):
    """One task that hands queued items, in order, to `process` a page at a time, one page in flight.

    `max_records` counts items; `records_in` tells how many records an item stands for, for the counter only.
    `process` must deal with every failure it can name; an exception that leaves it ends the stage, because going on
    after an unknown outcome would be a guess. `failed_stages` then names it and `on_failure` is told.
    """

    def __init__(
        self,
        name: str,
        process: Callable[[list[Item]], Awaitable[None]],
        *,
        max_records: int,
        min_interval_s: float = 0.0,
        records_in: Callable[[Item], int] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.name = name
        self.counter = PageCounter.named(name)
        self._process = process
        self._max_records = max_records
        self._min_interval_s = min_interval_s
        self._on_failure = on_failure
        self._records_in = records_in
        self._queue: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._busy = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Nothing queued and nothing in flight."""
        return not self._queue and not self._busy

    def put(self, item: Item) -> None:
        """Queue one item."""
        self._queue.append(item)
        self._arrived.set()

    def put_many(self, items: Iterable[Item]) -> None:
        """Queue items in order."""
        self._queue.extend(items)
        self._arrived.set()

    def start(self) -> None:
        """Start the task; does nothing when it runs already."""
        if self._task is not None:
            return
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"stage-{self.name}")

    async def stop(self) -> None:
        """Cancel the task; queued items stay unprocessed, the caller drains first if they matter."""
        _failures.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        earliest = 0.0
        queue = self._queue
        try:
            while True:
                while not queue:  # woken by an empty put as well
                    self._arrived.clear()
                    await self._arrived.wait()
                wait = earliest - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                earliest = loop.time() + self._min_interval_s
                page = [queue.popleft() for _ in range(min(len(queue), self._max_records))]
                self.counter.add(
                    len(page) if self._records_in is None else sum(map(self._records_in, page))
                )
                self._busy = True
                await self._process(page)
                self._busy = False
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            _log.exception("stage %s failed", self.name)
            _failures[self] = f"{self.name}: {type(error).__name__}"
            if self._on_failure is None:
                raise
            self._on_failure(error)


_failures: dict[PagedStage[Any], str] = {}
