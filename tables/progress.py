"""Table `progress`: one row for each dispatch_id, written a page at a time (DP-10, DP-11).

A row says that the dispatch was materialized, from which record, and with which digest; a later record with the same
id is judged against it. Rows live in the partition of their shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas.records import DISPATCH_PROGRESS, DispatchProgress
from tables.pages import PageWriter

__all__ = ["ProgressTable"]


class ProgressTable:
    """Rows of dispatch progress behind a Faust table of raw bytes."""

    __slots__ = ("_table", "_writer")

    def __init__(self, writer: PageWriter, table: Any) -> None:
        self._writer = writer
        self._table = table

    def get_many(self, shard: int, ids: Sequence[bytes]) -> dict[bytes, DispatchProgress]:
        """The rows of those dispatch ids (16 bytes each) that were seen; raises RecordError on damage."""
        rows = self._writer.get_many(self._table, shard, ids)
        return {
            dispatch_id: DISPATCH_PROGRESS.decode(row)
            for dispatch_id, row in zip(ids, rows, strict=True)
            if row is not None
        }

    async def write(self, shard: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write (dispatch_id, encoded row) durably; see PageWriter.write for failures."""
        await self._writer.write(self._table, shard, rows)

    def scan(self, shard: int) -> dict[bytes, DispatchProgress]:
        """All rows of a shard by dispatch_id, for recomputing W at takeover (TAKE-01 T3)."""
        rows = self._writer.scan(self._table, shard)
        return {dispatch_id: DISPATCH_PROGRESS.decode(row) for dispatch_id, row in rows}
