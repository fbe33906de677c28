"""Table `progress`: one row for each dispatch_id, written a page at a time (DP-10, DP-11).

A row says that the dispatch was materialized, from which record, and with which digest; a later record with the same
id is judged against it. Rows live in the partition of their shard.

Beside them an index by log offset: one row for each block of 64 records, with the dispatch_id of every record that was
seen, duplicates included. So W can be computed anew from a few blocks, without reading the whole table (TAKE-01 T3), and
what a block ends at depends on the log alone, not on how it was cut into pages.

A worker that lost its shard may still land rows behind those of its successor. When a table is recovered, two rows of one
key are therefore joined (`merge_progress`): what was finished stays finished, what was seen stays seen.

One more row keeps the shard's epoch boundaries and its last owner, so that an epoch never goes back when Redis loses its
end (TAKE-04).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from schemas.errors import Bug, RecordError
from schemas.records import DISPATCH_PROGRESS, SHARD_EPOCHS, DispatchProgress, ShardEpochs
from tables.pages import PageWriter

__all__ = [
    "BLOCK_RECORDS",
    "EPOCHS_KEY",
    "OffsetBlock",
    "OffsetIndex",
    "ProgressTable",
    "is_dispatch_row",
    "merge_progress",
]

BLOCK_RECORDS: Final = 64
_ID_BYTES: Final = 16
_OFFSET_BYTES: Final = 8
_BLOCK_KEY: Final = b"\x00block"
EPOCHS_KEY: Final = b"\x00epochs"


def is_dispatch_row(key: bytes) -> bool:
    """Whether a key of the table is a dispatch_id; else the row belongs to the index or to the epochs."""
    return len(key) == _ID_BYTES


class OffsetBlock(NamedTuple):
    """Consecutive records of one block: `ids` are the dispatch ids of records `first`, `first` + 1, ..."""

    first: int
    ids: list[bytes]


def _block_key(offset: int) -> bytes:
    return _BLOCK_KEY + (offset // BLOCK_RECORDS).to_bytes(6, "big")


def _decode_block(row: bytes) -> OffsetBlock:
    ids = [row[at : at + _ID_BYTES] for at in range(_OFFSET_BYTES, len(row), _ID_BYTES)]
    if (len(row) - _OFFSET_BYTES) % _ID_BYTES or not 1 <= len(ids) <= BLOCK_RECORDS:
        raise RecordError(f"progress: block of {len(row)} bytes")
    return OffsetBlock(int.from_bytes(row[:_OFFSET_BYTES], "big"), ids)


def _encode_block(block: OffsetBlock) -> bytes:
    return block.first.to_bytes(_OFFSET_BYTES, "big") + b"".join(block.ids)


def merge_progress(key: bytes, old: bytes | None, new: bytes) -> bytes:
    """The row that table recovery keeps when it reads a key again.

    Rows of another log (other ids at the same offsets, another digest) are not joined: the new one counts. So it does where
    one of them is damaged: whoever reads a damaged row refuses to go on with it, alone.
    """
    if old is None or old == new:
        return new
    try:
        if key == EPOCHS_KEY:
            return max(old, new, key=lambda row: _newest_epoch(SHARD_EPOCHS.decode(row)))
        if is_dispatch_row(key):
            joined = _join_rows(DISPATCH_PROGRESS.decode(old), DISPATCH_PROGRESS.decode(new))
            return DISPATCH_PROGRESS.encode(joined)
        return _encode_block(_join_blocks(_decode_block(old), _decode_block(new)))
    except RecordError:
        return new


def _newest_epoch(row: ShardEpochs) -> tuple[int, int]:
    return max((b["epoch"] for b in row["boundaries"]), default=0), row["lease_term"]


def _join_rows(old: DispatchProgress, new: DispatchProgress) -> DispatchProgress:
    same = ("payload_digest", "canonical_log_offset")
    if any(old[name] != new[name] for name in same):  # type: ignore[literal-required]
        return new
    joined = new.copy()
    joined["max_observed_offset"] = max(old["max_observed_offset"], new["max_observed_offset"])
    joined["last_seen_ms"] = max(old["last_seen_ms"], new["last_seen_ms"])
    joined["done"] = max(old["done"], new["done"])
    joined["unfinished_lanes"] = sorted({*old["unfinished_lanes"]} & {*new["unfinished_lanes"]})
    return joined


def _join_blocks(old: OffsetBlock, new: OffsetBlock) -> OffsetBlock:
    """Both as one where they overlap or touch and agree; else the new one."""
    low, high = sorted((old, new), key=lambda block: block.first)
    behind = low.ids[high.first - low.first :]
    common = min(len(behind), len(high.ids))
    if high.first > low.first + len(low.ids) or behind[:common] != high.ids[:common]:
        return new
    return OffsetBlock(low.first, low.ids + high.ids[len(behind) :])


class OffsetIndex:
    """Collects the dispatch ids of consecutive records and says which index rows change.

    `next_offset` is the first record that will be added, `block` the stored block that it falls into, if any.
    """

    __slots__ = ("_first", "_ids", "_next")

    def __init__(self, next_offset: int, block: OffsetBlock | None = None) -> None:
        self._next = next_offset
        self._first = next_offset
        self._ids: list[bytes] = []
        if block is not None and block.first <= next_offset <= block.first + len(block.ids):
            self._first, self._ids = block.first, block.ids[: next_offset - block.first]

    def add(self, records: Iterable[tuple[int, bytes]]) -> list[tuple[bytes, bytes]]:
        """Take (offset, dispatch_id) of the records that follow; returns the rows to write, ascending."""
        changed: dict[bytes, bytes] = {}
        for offset, dispatch_id in records:
            if offset != self._next:
                raise Bug(f"record {offset} follows {self._next - 1}")
            if offset % BLOCK_RECORDS == 0 and self._ids:
                changed[_block_key(self._first)] = self._row()
                self._first, self._ids = offset, []
            self._ids.append(dispatch_id)
            self._next += 1
        if self._ids:
            changed[_block_key(self._first)] = self._row()
        return list(changed.items())

    def _row(self) -> bytes:
        return _encode_block(OffsetBlock(self._first, self._ids))


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

    def known(self, shard: int, ids: Sequence[bytes]) -> Mapping[bytes, DispatchProgress | None]:
        """The same, with None for a row that cannot be decoded."""
        found: dict[bytes, DispatchProgress | None] = {}
        for dispatch_id, row in zip(
            ids, self._writer.get_many(self._table, shard, ids), strict=True
        ):
            if row is not None:
                try:
                    found[dispatch_id] = DISPATCH_PROGRESS.decode(row)
                except RecordError:
                    found[dispatch_id] = None
        return found

    def blocks(self, shard: int, offset: int) -> Iterator[OffsetBlock]:
        """The index from the block of record `offset` on; raises RecordError on damage."""
        rows = self._writer.scan(self._table, shard, _BLOCK_KEY, _block_key(offset))
        return (_decode_block(row) for _, row in rows)

    def block(self, shard: int, offset: int) -> OffsetBlock | None:
        """The block that record `offset` falls into."""
        row = self._writer.get(self._table, shard, _block_key(offset))
        return None if row is None else _decode_block(row)

    def epochs(self, shard: int) -> ShardEpochs | None:
        """Boundaries and last owner as the log has them, None before the first start; raises RecordError on damage."""
        row = self._writer.get(self._table, shard, EPOCHS_KEY)
        return None if row is None else SHARD_EPOCHS.decode(row)

    async def catch_up(self, shard: int) -> None:
        """Read what the table lacks of its changelog; see PageWriter.catch_up."""
        await self._writer.catch_up(self._table, shard)

    async def write_epochs(self, shard: int, row: ShardEpochs) -> None:
        """Write them durably; see PageWriter.write for failures."""
        await self._writer.write(self._table, shard, ((EPOCHS_KEY, SHARD_EPOCHS.encode(row)),))

    async def write(self, shard: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write (dispatch_id, encoded row) durably; see PageWriter.write for failures."""
        await self._writer.write(self._table, shard, rows)

    def scan(self, shard: int) -> dict[bytes, DispatchProgress]:
        """All dispatch rows of a shard by dispatch_id."""
        rows = self._writer.scan(self._table, shard)
        return {key: DISPATCH_PROGRESS.decode(row) for key, row in rows if is_dispatch_row(key)}
