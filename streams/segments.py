"""Segment latencies of one shard: where a page of dispatch records spends its time (OBS-06, OBS-09).

    read from the broker -> queued -> taken -> durable

Observed once a page. Nothing here reaches a record: the clock measures durations only.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.metrics import histogram, now_us
from streams.pages import Page

__all__ = ["ShardSegments"]


class ShardSegments:
    """The three histograms of a shard."""

    __slots__ = ("_enqueue", "_fifo", "_materialize")

    def __init__(self, shard: int) -> None:
        name = str(shard)
        self._enqueue = histogram("qim_mailbox_dispatch_broker_to_enqueue_us", name)
        self._fifo = histogram("qim_mailbox_dispatch_fifo_wait_us", name)
        self._materialize = histogram("qim_mailbox_materialize_us", name)

    def queued(self, page: Page) -> None:
        """The page is in the shard's queue."""
        page.queued_us = now_us()
        if page.read_us:
            self._enqueue.observe(page.queued_us - page.read_us)

    def taken(self, pages: Sequence[Page]) -> float:
        """These pages, in the order of the queue, are worked on from now on; returns the time to give to `durable`."""
        begin_us = now_us()
        if pages:
            self._fifo.observe(begin_us - pages[0].queued_us)
        return begin_us

    def durable(self, begin_us: float) -> None:
        """What was taken at `begin_us` is durable and acknowledged."""
        self._materialize.observe(now_us() - begin_us)
