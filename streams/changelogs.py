"""What a worker reads of its changelogs outside of recovery: records that it did not write itself.

A worker that lost a shard while it stood still may write late rows behind those of its successor, and it may be given the shard
again with tables that are older than the log. Whoever takes a shard therefore reads what its tables lack (PageWriter.catch_up),
every write notices rows in between, and the watch here notices them where nothing is written: long before compaction, which
would keep the late row instead of the good one, is allowed to touch them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaError
from faust.types import TP

from schemas.background import Background
from schemas.errors import ServerFault
from streams.shard import ShardState, ShardTask
from tables.joining import LogRow
from tables.log_reader import LogReader

if TYPE_CHECKING:
    from streams.app import QimApp

__all__ = ["ChangelogWatch", "Changelogs"]

_log = logging.getLogger(__name__)
_PAGE_RECORDS: Final = 10_000
_EVERY_S: Final = 10.0


class Changelogs:
    """ChangelogSource of a worker."""

    def __init__(self, app: QimApp) -> None:
        self._app = app

    async def end(self, topic: str, partition: int) -> int:
        """See ChangelogSource."""
        tp = TP(topic, partition)
        try:
            return (await self._app.qim_consumer.inline.end_offsets([tp]))[tp]
        except KafkaError as error:
            raise ServerFault(f"end of {topic}[{partition}]: {error!r}") from error

    async def records(self, topic: str, partition: int, first: int, end: int) -> list[LogRow]:
        """See ChangelogSource; on a connection of its own, because the worker's consumer fetches for all."""
        found: list[LogRow] = []
        try:
            async with (
                asyncio.timeout(self._app.qim.recovery_stall_s),
                LogReader(",".join(self._app.qim.brokers)) as reader,
            ):
                async for page in reader.pages(topic, partition, first, end, _PAGE_RECORDS):
                    found += page
        except (KafkaError, TimeoutError) as error:
            raise ServerFault(f"{topic}[{partition}] from {first}: {error!r}") from error
        _log.warning(
            "a table lacked records of its changelog",
            extra={"topic": topic, "partition": partition, "records": len(found)},
        )
        return found


class ChangelogWatch(Background):
    """Looks every 10 s whether the changelogs of the running shards hold rows of somebody else; such a shard starts again."""

    def __init__(
        self, app: QimApp, tables: Sequence[Any], shards: Callable[[], Iterable[ShardTask]]
    ) -> None:
        self._app = app
        self._tables = tables
        self._shards = shards
        super().__init__("changelogs", self._run)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.look()
            except (KafkaError, OSError) as error:
                _log.warning("changelogs are not watched: %r", error)

    async def look(self) -> None:
        """Ask for all ends at once."""
        running = {s.shard: s for s in self._shards() if s.state is ShardState.RUNNING}
        places = {
            TP(table.changelog_topic_name, shard): (table, shard)
            for table in self._tables
            for shard in running
        }
        if not places:
            return
        ends = await self._app.qim_consumer.inline.end_offsets(places)
        foreign = {
            shard
            for tp, (table, shard) in places.items()
            if self._app.page_writer.lacks(table, shard, ends[tp])
        }
        for shard in sorted(foreign):
            running[shard].start_again("its changelog holds rows of another worker")
