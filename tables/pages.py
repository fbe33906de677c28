"""Page writes: many rows, or many records, for the price of one produce request.

Written this way a row costs 2-4 us where Faust's own table write costs more than 100, and the write is awaited, which
Faust's is not: an offset may be committed only after this returned (ADAPT-06).

PageWriter.write, in this order:
1. all rows as record batches to the changelog partition, and all acknowledgements awaited;
2. one RocksDB write batch with the rows and the changelog offset that it covers.
So the local state is never ahead of the changelog, and what the changelog holds is what Faust's recovery expects.
"""

# ruff: noqa: SLF001  # producer and stores are private parts of Faust

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, cast

from aiokafka.errors import KafkaError
from faust.types import TP
from rocksdict import WriteBatch

from schemas.errors import ErrorCode, ServerFault, StoreFault
from schemas.metrics import counter, histogram, now_us
from tables.joining import LogRow, RowMerge, join_rows

__all__ = ["ChangelogSource", "PageProducer", "PageWriter", "WriteObserver"]

Row = tuple[bytes, bytes | None]
Place = tuple[str, int]  # name of a table, partition
# Called with "topic" or "table" and its name, for each page that is written.
WriteObserver = Callable[[str, str], None]


class PageProducer:
    """Writes pages of records through the worker's one aiokafka producer (acks=all).

    `producer` returns Faust's producer; it is asked at each use, because Faust makes it at the start.
    """

    def __init__(self, producer: Callable[[], Any]) -> None:
        self._producer = producer
        self.observer: WriteObserver | None = None

    async def produce_pages(
        self, topic: str, pages: Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]
    ) -> dict[int, list[int]]:
        """Write `pages` (partition -> (key, value) in order) and return the offset of each record.

        One record batch a partition, more where a page exceeds the batch size; order inside a partition is kept. All
        acknowledgements are awaited. Raises ServerFault when a batch was not acknowledged: any part of the pages may
        then be in the log, and the caller has to write the same again.
        """
        if self.observer is not None:
            self.observer("topic", topic)
        filled = [p for p, records in pages.items() if records]
        if len(filled) == 1:
            return {filled[0]: await self.append(topic, filled[0], pages[filled[0]])}
        written = await asyncio.gather(*(self.append(topic, p, pages[p]) for p in filled))
        return dict(zip(filled, written, strict=True))

    async def append(
        self, topic: str, partition: int, records: Sequence[tuple[bytes | None, bytes | None]]
    ) -> list[int]:
        """Write records to one partition and return their offsets; see produce_pages."""
        producer = self._producer()._producer
        if producer is None:
            raise ServerFault("the producer is not running")
        try:
            batches = list(_fill_batches(producer, records))
            pending = [
                (await producer.send_batch(batch, topic, partition=partition), count)
                for batch, count in batches
            ]
            offsets: list[int] = []
            for acknowledged, count in pending:
                first = (await acknowledged).offset
                offsets.extend(range(first, first + count))
        except (KafkaError, ValueError) as error:
            raise ServerFault(f"write to {topic}[{partition}] failed: {error!r}") from error
        return offsets


def _fill_batches(
    producer: Any, records: Sequence[tuple[bytes | None, bytes | None]]
) -> Iterator[tuple[Any, int]]:
    """Record batches and their record counts, each as full as the producer allows."""
    batch, count = producer.create_batch(), 0
    for key, value in records:
        if batch.append(key=key, value=value, timestamp=None) is None:
            if count == 0:
                raise ValueError("one record is larger than a batch")
            yield batch, count
            batch, count = producer.create_batch(), 0
            if batch.append(key=key, value=value, timestamp=None) is None:
                raise ValueError("one record is larger than a batch")
        count += 1
    if count:
        yield batch, count


class ChangelogSource(Protocol):
    """Where a writer reads what its tables lack."""

    async def end(self, topic: str, partition: int) -> int:
        """The offset behind the last record."""

    async def records(self, topic: str, partition: int, first: int, end: int) -> list[LogRow]:
        """The records of [first, end) that compaction left, in order."""


class PageWriter:
    """Writes and reads the partitions of changelog-backed tables, always by explicit partition.

    Legal anywhere in the worker's loop, inside or outside of a stream. Never mix it with `table[key] = value`.

    The offset beside the rows never moves past a changelog record that the rows lack: one whose acknowledgement was lost,
    or one of another worker, which may write late what it had on its way when it lost the partition. A write that meets such
    records fails, and so does every later one until `catch_up` has read them. `merges` says by table how rows of two writers
    are joined.
    """

    def __init__(
        self,
        producer: PageProducer,
        source: ChangelogSource,
        merges: Mapping[str, RowMerge] = MappingProxyType({}),
    ) -> None:
        self._producer = producer
        self._source = source
        self._merges = merges
        self._locks: dict[Place, asyncio.Lock] = {}
        self._next: dict[Place, int] = {}  # where the next own row must land; absent: unknown
        self._worse: dict[Place, set[bytes]] = (
            {}
        )  # keys whose last row in the changelog is not the best

    async def write(self, table: Any, partition: int, rows: Sequence[Row]) -> None:
        """Write rows (value None deletes) durably, in order.

        The last row must be a live one: the end of a compacted changelog must never vanish. Raises ValueError when
        it is not, ServerFault when the changelog did not acknowledge or holds records that the table lacks; then
        `catch_up` comes first, and the same rows have to be written again.
        """
        if not rows:
            return
        if rows[-1][1] is None:
            raise ValueError("the last row of a page must be live")
        async with self._lock(table, partition):
            await self._write(table, partition, rows)

    async def _write(self, table: Any, partition: int, rows: Sequence[Row]) -> None:
        if self._producer.observer is not None:
            self._producer.observer("table", table.name)
        begin_us = now_us()
        place = (table.name, partition)
        expected = self._next.pop(place, None)
        if expected is None:
            held = self.held_offset(table, partition)
            expected = None if held is None else held + 1
        offsets = await self._producer.append(table.changelog_topic_name, partition, rows)
        first = offsets[0] if expected is None else expected
        if (offsets[0], offsets[-1]) != (first, first + len(rows) - 1):
            raise ServerFault(
                f"{table.name}[{partition}] lacks records of its changelog at {first}"
            )
        self.apply(table, partition, rows, offsets[-1])
        self._next[place] = offsets[-1] + 1
        histogram("qim_table_write_us", table.name).observe(now_us() - begin_us)

    async def catch_up(self, table: Any, partition: int) -> None:
        """Read what the table lacks of its changelog, and write again the rows that compaction must not lose.

        To be called by whoever owns the partition from now on, once nobody else may. Raises ServerFault as `write` does, with
        INTERNAL where the changelog lost its end: no replay mends that, a rebuild of the table does.
        """
        async with self._lock(table, partition):
            place = (table.name, partition)
            self._next.pop(place, None)
            topic = table.changelog_topic_name
            held = self.held_offset(table, partition)
            end = await self._source.end(topic, partition)
            first = 0 if held is None else held + 1
            if first > end:
                raise StoreFault(
                    f"{topic}[{partition}] ends at {end}, the table holds it up to {first}",
                    ErrorCode.INTERNAL,
                )
            if first < end:
                records = await self._source.records(topic, partition, first, end)
                self.take_records(table, partition, records, end - 1)
                counter("qim_table_caught_up_rows_total", table.name).add(len(records))
            self._next[place] = end
            if worse := self._worse.get(place):
                rows = [(key, self.get(table, partition, key)) for key in sorted(worse)]
                await self._write(table, partition, rows)
                del self._worse[place]

    def take_records(
        self, table: Any, partition: int, records: Sequence[LogRow], last: int
    ) -> None:
        """Put changelog records into the table, in one RocksDB write with the offset `last` that they end at."""
        merge = self._merges.get(table.name)
        if merge is None:
            rows: list[Row] = [(cast("bytes", r.key), r.value) for r in records]
        else:
            joined = join_rows(partial(self.get, table, partition), records, merge)
            rows = list(joined.rows.items())
            worse = self._worse.setdefault((table.name, partition), set())
            worse.difference_update(joined.rows)
            worse.update(joined.worse)
        self.apply(table, partition, rows, last)

    def lacks(self, table: Any, partition: int, end: int) -> bool:
        """Whether a changelog that ends at `end` holds records of somebody else; False while a write is on its way."""
        return end > self._next.get((table.name, partition), end)

    def _lock(self, table: Any, partition: int) -> asyncio.Lock:
        return self._locks.setdefault((table.name, partition), asyncio.Lock())

    def get(self, table: Any, partition: int, key: bytes) -> bytes | None:
        """The row of a key, or None."""
        return cast("bytes | None", table.data._db_for_partition(partition).get(key))

    def get_many(self, table: Any, partition: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of several keys in their order, None for each that is absent."""
        if not keys:
            return []
        found = table.data._db_for_partition(partition).get(list(keys))
        return cast("list[bytes | None]", found)

    def scan(
        self, table: Any, partition: int, prefix: bytes = b"", start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose key starts with `prefix` and is not below `start`, in key order."""
        store = table.data
        rows = store._db_for_partition(partition).iter()
        rows.seek(max(prefix, start))
        while rows.valid():
            key = rows.key()
            if not key.startswith(prefix):
                return
            if key != store.offset_key:
                yield key, rows.value()
            rows.next()

    # --- the local rows: one RocksDB a partition ---------------------------------------------------------------
    def held_offset(self, table: Any, partition: int) -> int | None:
        """The last changelog record that the table holds, None for none."""
        topic = table.changelog_topic_name
        return cast("int | None", table.data.persisted_offset(TP(topic, partition)))

    def apply(self, table: Any, partition: int, rows: Sequence[Row], offset: int) -> None:
        """One RocksDB write of the rows and of the changelog offset that they end at."""
        store = table.data
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(store.offset_key, b"%d" % offset)
        store._db_for_partition(partition).write(batch)
