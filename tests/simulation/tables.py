"""One worker's tables, which follow the changelogs only while they are told to: a start, a lost disk (as RocksDB does).

The real PageWriter runs; simulated are the broker behind it and the database below it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from schemas.records import WATERMARK_ROW
from tables.joining import LogRow
from tables.pages import PageProducer, PageWriter
from tests.support.records import FakeRecord
from tests.support.rig_tables import MERGES

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Tables"]

Row = tuple[bytes, bytes | None]
Place = tuple[str, int]


class _Changelogs:
    """The broker as a writer sees it: ChangelogSource and producer of one worker."""

    observer = None

    def __init__(self, world: World) -> None:
        self._world = world

    async def append(self, topic: str, partition: int, rows: Sequence[Row]) -> list[int]:
        """See PageProducer."""

        async def work() -> list[int]:
            log = self._world.changelogs[topic, partition]
            first = len(log)
            log.extend(cast("Sequence[tuple[bytes, bytes]]", rows))
            if topic == "watermark":
                for _, row in rows:
                    self._world.judge.row_written(partition, WATERMARK_ROW.decode(row or b""))
            return list(range(first, len(log)))

        return await self._world.network.call(topic, work)

    async def end(self, topic: str, partition: int) -> int:
        """See ChangelogSource."""
        return len(self._world.changelogs[topic, partition])

    async def records(self, topic: str, partition: int, first: int, end: int) -> list[LogRow]:
        """See ChangelogSource."""

        async def work() -> list[LogRow]:
            log = self._world.changelogs[topic, partition][first:end]
            return [FakeRecord(first + n, *row) for n, row in enumerate(log)]

        return await self._world.network.call("changelog", work)


class Tables(PageWriter):
    """One worker's tables over the changelogs of all."""

    def __init__(self, world: World) -> None:
        log = _Changelogs(world)
        super().__init__(cast("PageProducer", log), log, MERGES)
        self._world = world
        self.rows: dict[Place, dict[bytes, bytes]] = defaultdict(dict)
        self._held: dict[Place, int] = {}
        self.changelogs = world.changelogs

    def held_offset(self, table: Any, partition: int) -> int | None:
        """See PageWriter."""
        return self._held.get((table.name, partition))

    def apply(self, table: Any, partition: int, rows: Sequence[Row], offset: int) -> None:
        """See PageWriter."""
        self.rows[table.name, partition].update(cast("Sequence[tuple[bytes, bytes]]", rows))
        self._held[table.name, partition] = offset

    def get(self, table: Any, partition: int, key: bytes) -> bytes | None:
        """See PageWriter."""
        return self.rows[table, partition].get(key)

    def get_many(self, table: Any, partition: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """See PageWriter."""
        rows = self.rows[table, partition]
        return [rows.get(key) for key in keys]

    def scan(self, table: Any, partition: int, prefix: bytes = b"", start: bytes = b"") -> Any:
        """See PageWriter."""
        rows = sorted(self.rows[table, partition].items())
        return iter([row for row in rows if row[0].startswith(prefix) and row[0] >= start])

    async def catch_up(self, table: Any, partition: int) -> None:
        """See PageWriter."""
        await super().catch_up(table, partition)
        self.looked()

    def looked(self) -> None:
        """Compaction comes long after an owner looked: what it has not looked at yet is still there."""
        for place, end in self._next.items():
            if end == len(self._world.changelogs[place]):
                self._world.compactable[place] = end

    def recover(self, table: Any, *, compacted: bool) -> None:
        """Read the changelogs of a table from their beginning, or what compaction left of them."""
        for place, log in self.changelogs.items():
            if place[0] == table.name and log:
                rows = self._world.compacted(place) if compacted else log
                records = [FakeRecord(n, *row) for n, row in enumerate(rows)]
                self.take_records(table, place[1], records, len(log) - 1)
