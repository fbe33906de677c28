"""Table recovery in batches: one RocksDB write for each fetched list of changelog records.

Faust's own path costs 177 us a row, because every record goes through a queue and recounts all partitions. Here the
consumer hands over the lists as fetched. Recovery of a partition is complete when its fetch position has reached the
end that Fetch reported, so holes that compaction left do not matter. A recovery that stops moving fails the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import TP
from faust.types.tables import CollectionT
from faust.types.transports import ConsumerT
from mode import Service

from schemas.errors import StartRefused
from streams.pages import Record

if TYPE_CHECKING:
    from streams.app import QimApp
    from streams.transport import QimConsumer

__all__ = ["BatchRecovery", "BatchTableManager"]

_WATCH_S = 0.5


class BatchRecovery(Recovery):
    """Recovery that is fed by the consumer and judged by fetch positions.

    `positioned` is false from a new assignment until the changelogs are read from where the tables end: before that, positions
    stand at the end of the logs, where their end was asked for.
    """

    positioned = False

    @property
    def _worker(self) -> QimApp:
        return cast("QimApp", self.app)

    def apply(self, tp: TP, records: Sequence[Record]) -> None:
        """Take the changelog records of one partition that the table does not hold yet."""
        table: Any = self.tp_to_table[tp]
        seen = self.active_offsets[tp]
        fresh = [r for r in records if r.offset > seen]
        if not fresh:
            return
        self._worker.page_writer.take_records(table, tp.partition, fresh, fresh[-1].offset)
        self.active_offsets[tp] = fresh[-1].offset

    def step(self, consumer: QimConsumer) -> None:
        """Take the fetch positions over and end the recovery when every partition is at its end."""
        if not (self.in_recovery and self.positioned):
            return
        for tp in self.active_tps:
            reached = consumer.inline.fetch_position(tp) - 1
            self.active_offsets[tp] = max(self.active_offsets[tp], reached)
        if not self.need_recovery():
            self._set_recovery_ended()
            self.signal_recovery_end.set()

    async def _seek_offsets(
        self, consumer: ConsumerT, tps: set[TP], offsets: Any, title: str
    ) -> None:
        """Seek behind the last applied record; Faust would seek onto it, below the log's start after a trim."""
        del title
        await consumer.seek_wait({tp: offsets[tp] + 1 for tp in tps})
        self.positioned = True

    async def _wait(self, coro: Any, timeout: Any = None) -> None:  # noqa: ASYNC109
        """Wait as Faust does, but fail where it would go on as if the answer had come."""
        try:
            async with asyncio.timeout(timeout):
                await super()._wait(coro)
        except TimeoutError:
            raise StartRefused(f"table recovery: no answer within {timeout} s") from None

    @Service.task
    async def _slurp_changelogs(self) -> None:
        """Instead of Faust's reader of single records: fail the start when recovery stops moving.

        A recovery that never ends would leave a worker that neither serves nor fails.
        """
        loop = asyncio.get_running_loop()
        before: dict[TP, int] = {}
        since = loop.time()
        while not self.should_stop:
            await self.sleep(_WATCH_S)
            now = dict(self.active_offsets)
            if not self.in_recovery or now != before:
                before, since = now, loop.time()
            elif loop.time() - since > self._worker.qim.recovery_stall_s:
                left = {tp: n for tp, n in self.active_remaining().items() if n > 0}
                raise StartRefused(f"table recovery stopped moving, records left: {left}")


class BatchTableManager(TableManager):
    """App setting `TableManager`: brings the recovery above, and starts without Faust's flat wait of 1 s."""

    @property
    def recovery(self) -> Recovery:
        """The recovery service, made on first use."""
        if self._recovery is None:
            self._recovery = BatchRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery

    async def on_start(self) -> None:
        """Register the changelogs and start recovery; agents and consumer are started before this."""
        await self._update_channels()
        await self.recovery.start()

    def table_of(self, changelog_topic: str) -> CollectionT | None:
        """The table behind a changelog topic."""
        return self._changelogs.get(changelog_topic)
