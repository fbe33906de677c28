"""Table `watermarks`: one row a shard, the log's side of W and W_floor (WM-06, WM-15).

The table is behind or equal to the entries in the mailbox, never ahead (ADAPT-05). Gateways follow its changelog.
"""

from __future__ import annotations

from typing import Any, Final

from schemas.errors import RecordError
from schemas.records import WATERMARK_ROW, WatermarkRow
from schemas.watermarks import unpack_w
from tables.pages import PageWriter

__all__ = ["WATERMARK_KEY", "WatermarksTable", "merge_rows", "supersedes"]

# The one key of a partition. Never deleted, so the end of the changelog is always a live row.
WATERMARK_KEY: Final = b"W"


def supersedes(new: WatermarkRow, old: WatermarkRow) -> bool:
    """Whether `new` is to be kept instead of `old`: the larger lease term, then the larger W in every lane.

    A worker that lost its shard may still land one late row behind those of its successor. Its term is smaller, so
    it never wins; nor does it within a term, where W never falls (WM-04).
    """
    if new["lease_term"] != old["lease_term"]:
        return new["lease_term"] > old["lease_term"]
    if new["w"] == old["w"]:
        return new["page_number"] >= old["page_number"]
    pairs = zip(unpack_w(new["w"]), unpack_w(old["w"]), strict=True)
    return all(lane.w >= before.w for lane, before in pairs)


def merge_rows(key: bytes, old: bytes | None, new: bytes) -> bytes:
    """The row that table recovery keeps when it reads the key again; a damaged one stays, for its shard to find."""
    del key
    if old is None:
        return new
    try:
        return new if supersedes(WATERMARK_ROW.decode(new), WATERMARK_ROW.decode(old)) else old
    except RecordError:
        return new


class WatermarksTable:
    """The watermark row of each shard, behind a Faust table of raw bytes.

    The app must recover the table with `merge_rows` (`app.row_merges`).
    """

    __slots__ = ("_table", "_writer")

    def __init__(self, writer: PageWriter, table: Any) -> None:
        self._writer = writer
        self._table = table

    def get(self, shard: int) -> WatermarkRow | None:
        """The row of a shard, None before its first page; raises RecordError on damage (fail closed)."""
        row = self._writer.get(self._table, shard, WATERMARK_KEY)
        return None if row is None else WATERMARK_ROW.decode(row)

    async def catch_up(self, shard: int) -> None:
        """Read what the table lacks of its changelog; see PageWriter.catch_up."""
        await self._writer.catch_up(self._table, shard)

    async def write(self, shard: int, row: WatermarkRow) -> None:
        """Write the row durably; see PageWriter.write for failures."""
        rows = ((WATERMARK_KEY, WATERMARK_ROW.encode(row)),)
        await self._writer.write(self._table, shard, rows)
