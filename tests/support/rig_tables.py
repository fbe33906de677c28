"""Tables of a WorkerRig: rows in memory, durable once their write returned, with a changelog that recovery reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast

from tables.joining import RowMerge
from tables.pages import ChangelogSource, PageProducer, PageWriter
from tables.progress import EPOCHS_KEY, merge_progress
from tables.watermarks import merge_rows
from tests.support.hooks import Hooks

__all__ = ["MERGES", "PROGRESS", "WATERMARK", "RigTables"]


class _Table(str):
    """A table that is nothing but its name."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """See faust.Table."""
        return str(self)

    changelog_topic_name = name


PROGRESS = _Table("progress")
WATERMARK = _Table("watermark")
MERGES: dict[str, RowMerge] = {"progress": merge_progress, "watermark": merge_rows}


class RigTables(PageWriter):
    """Tables by name; a row is durable once its write returned, local state and changelog agree."""

    def __init__(self, hooks: Hooks) -> None:
        super().__init__(PageProducer(lambda: None), cast("ChangelogSource", None))
        self._hooks = hooks
        self.rows: dict[tuple[str, int], dict[bytes, bytes]] = defaultdict(dict)
        self.changelogs: dict[tuple[str, int], list[tuple[bytes, bytes]]] = defaultdict(list)

    async def write(
        self, table: Any, partition: int, rows: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        """See PageWriter."""

        async def work() -> None:
            for key, value in rows:
                assert value is not None
                self.rows[table, partition][key] = value
                self.changelogs[table, partition].append((key, value))

        if rows:
            await self._hooks.call("epochs" if rows[0][0] == EPOCHS_KEY else table, work)

    async def catch_up(self, table: Any, partition: int) -> None:
        """See PageWriter; these rows lack nothing."""

    def get(self, table: Any, partition: int, key: bytes) -> bytes | None:
        """See PageWriter."""
        return self.rows[table, partition].get(key)

    def get_many(self, table: Any, partition: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """See PageWriter."""
        return [self.rows[table, partition].get(key) for key in keys]

    def scan(
        self, table: Any, partition: int, prefix: bytes = b"", start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """See PageWriter."""
        rows = sorted(self.rows[table, partition].items())
        return iter([row for row in rows if row[0].startswith(prefix) and row[0] >= start])

    def rebuild(self) -> None:
        """The local tables are gone; they come back from their changelogs, as recovery reads them."""
        self.rows.clear()
        for (table, partition), log in self.changelogs.items():
            local = self.rows[table, partition]
            for key, value in log:
                local[key] = MERGES[table](key, local.get(key), value)
