"""FanoutCoordinator: outbox pages -> dispatch pages, in the order of design §6 and FAN-01.

1. plan every record of the page (pure, streams/fanout_core.py);
2. write all dispatches, one record batch a target shard, and wait for every acknowledgement;
3. acknowledge the source pages, which commits their position.

An unknown outcome repeats the same page in place: duplicates converge by dispatch_id (FAN-02). A record that cannot be
planned stops its outbox partition, loudly: a committed message is never dropped (FAN-04).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from faust.types import TP

from schemas.errors import RecordError, ServerFault
from schemas.metrics import counter, histogram, now_us
from stores.paging import PagedStage
from streams.app import QimApp
from streams.fanout_core import plan_dispatches
from streams.shard import PagedEvent

__all__ = ["Fanout"]

_log = logging.getLogger(__name__)
_PAGES_MAX = 64
_SETTLE_S = 0.001  # the partitions of one fetch arrive some hundred microseconds apart
_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 2.0


class Fanout:
    """Fans out all owned outbox partitions of a worker in one stage.

    `on_written` is called whenever all dispatches of what was read so far are in the log.
    """

    def __init__(
        self,
        app: QimApp,
        topic: str,
        shard_count: int,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._on_written = on_written
        self._topic = topic
        self._shard_count = shard_count
        self.failed: dict[TP, str] = {}
        self._ack_wait = histogram("qim_fanout_dispatch_ack_wait_us")
        self._dispatches = histogram("qim_fanout_dispatches_per_batch")
        self._repeated = counter("qim_fanout_repeated_pages_total")
        self.stage = PagedStage[PagedEvent](
            "fanout",
            self._process,
            max_records=_PAGES_MAX,
            settle_s=_SETTLE_S,
            records_in=lambda event: len(event.value.records),
        )

    def start(self) -> None:
        """Start the stage on the running loop, once."""
        self.stage.start()

    def not_ready(self) -> str | None:
        """Why this part keeps the worker from being ready."""
        return (
            f"stopped outbox partitions: {sorted(tp.partition for tp in self.failed)}"
            if self.failed
            else None
        )

    def put(self, event: PagedEvent) -> None:
        """Queue a page of outbox records; its partition flows on, Faust bounds what is unacknowledged."""
        self.stage.put(event)

    async def _process(self, events: list[PagedEvent]) -> None:
        pages: dict[int, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
        planned: list[PagedEvent] = []
        for event in events:
            page = event.value
            tp = TP(page.topic, page.partition)
            if tp in self.failed or not self._app.qim_consumer.is_current(page):
                continue
            try:
                dispatches = [
                    dispatch
                    for record in page.records
                    for dispatch in plan_dispatches(record.value or b"", self._shard_count)
                ]
            except RecordError as error:
                self._stop_partition(tp, page.first, error)
                continue
            planned.append(event)
            for dispatch in dispatches:
                pages[dispatch.shard].append((dispatch.key, dispatch.value))
        if pages:
            await self._write(pages)
        if not len(self.stage):
            self._on_written()
        for event in planned:
            event.ack()

    async def _write(self, pages: dict[int, list[tuple[bytes | None, bytes | None]]]) -> None:
        backoff_s, begin_us = _BACKOFF_FIRST_S, now_us()
        self._dispatches.observe(sum(map(len, pages.values())))
        while True:
            try:
                await self._app.produce_pages(self._topic, pages)
                self._ack_wait.observe(now_us() - begin_us)
                return
            except ServerFault as error:
                self._repeated.add()
                _log.error("fanout: %s; the page is repeated in %.2f s", error.detail, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)

    def _stop_partition(self, tp: TP, first: int, error: RecordError) -> None:
        _log.critical("outbox partition %d stops at page %d: %s", tp.partition, first, error.detail)
        self.failed[tp] = error.detail
        self._app.qim_consumer.hold(tp)
