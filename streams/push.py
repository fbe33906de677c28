"""Push: planned PushBatch records go to the push topic, a page at a time, beside the durable path.

A push follows the durable append and never holds it up (design §6): the queue is bounded, and what does not fit, or
what the log does not take, is dropped and counted, because the mailbox recovers it (PUSH-01, QUOTA-05). A gateway
shows a push only once its view of W covers it.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from schemas.errors import ServerFault
from stores.paging import PagedStage
from streams.expand import PlannedPush

__all__ = ["PushWriter"]

_log = logging.getLogger(__name__)
_QUEUE_MAX = 16_384  # a few seconds of pushes; older ones are better pulled
_PAGE_MAX = 1024

Produce = Callable[
    [str, Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]],
    Awaitable[dict[int, list[int]]],
]


class PushWriter:
    """Queues pushes of all shards of a worker and writes them in order."""

    def __init__(self, topic: str, produce: Produce) -> None:
        self._topic = topic
        self._produce = produce
        self.dropped = 0
        self.stage = PagedStage[PlannedPush]("push.produce", self._write, max_records=_PAGE_MAX)

    def start(self) -> None:
        """Start the stage on the running loop, once."""
        self.stage.start()

    def push(self, pushes: Sequence[PlannedPush]) -> None:
        """Queue pushes; never waits."""
        if len(self.stage) + len(pushes) > _QUEUE_MAX:
            self.dropped += len(pushes)
            return
        self.stage.put_many(pushes)

    async def _write(self, page: list[PlannedPush]) -> None:
        pages: dict[int, list[tuple[bytes | None, bytes | None]]] = defaultdict(list)
        for push in page:
            pages[push.partition].append((None, push.value))
        try:
            await self._produce(self._topic, pages)
        except ServerFault as error:
            self.dropped += len(page)
            _log.error("%d pushes dropped, the mailbox has them: %s", len(page), error.detail)
