"""One worker's tables, which follow the changelogs only while they are told to: a start, a lost disk (as RocksDB does)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from schemas.records import WATERMARK_ROW
from tables.pages import PageProducer, PageWriter
from tables.progress import merge_progress
from tables.watermarks import merge_rows

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Tables"]

_ACTIVE_ROWS = 4  # compaction never touches the segment that is written to
Row = tuple[bytes, bytes | None]
Place = tuple[str, int]


class Tables(PageWriter):
    """One worker's tables over the changelogs of all."""

    def __init__(self, world: World) -> None:
        super().__init__(PageProducer(lambda: None))
        self._world = world
        self.rows: dict[Place, dict[bytes, bytes]] = defaultdict(dict)
        self.changelogs = world.changelogs

    async def write(self, table: Any, partition: int, rows: Sequence[Row]) -> None:
        """See PageWriter: first the changelog, then, once it answered, the local rows."""
        if not rows:
            return
        live = cast("list[tuple[bytes, bytes]]", list(rows))

        async def work() -> None:
            self._world.changelogs[table, partition] += live
            if table == "watermark":
                self._world.judge.row_written(partition, WATERMARK_ROW.decode(live[-1][1]))

        await self._world.network.call(table, work)
        self.rows[table, partition].update(live)

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

    def recover(self, *, compacted: bool) -> None:
        """Read the changelogs from their beginning; of a compacted one old rows are gone where newer ones have their key."""
        self.rows.clear()
        for place, log in self.changelogs.items():
            local = self.rows[place]
            cut = max(0, len(log) - _ACTIVE_ROWS) if compacted else 0
            for key, value in [*dict(log[:cut]).items(), *log[cut:]]:
                merge = merge_rows if place[0] == "watermark" else merge_progress
                local[key] = merge(key, local.get(key), value)
