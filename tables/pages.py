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
from typing import Any, cast

from aiokafka.errors import KafkaError
from rocksdict import WriteBatch

from schemas.errors import ServerFault
from schemas.metrics import histogram, now_us

__all__ = ["PageProducer", "PageWriter", "WriteObserver"]

Row = tuple[bytes, bytes | None]
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


class PageWriter:
    """Writes and reads the partitions of changelog-backed tables, always by explicit partition.

    Legal anywhere in the worker's loop, inside or outside of a stream. Never mix it with `table[key] = value`.
    """

    def __init__(self, producer: PageProducer) -> None:
        self._producer = producer
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}
        self._torn: set[tuple[str, int]] = set()

    async def write(self, table: Any, partition: int, rows: Sequence[Row]) -> None:
        """Write rows (value None deletes) durably, in order.

        The last row must be a live one: the end of a compacted changelog must never vanish. Raises ValueError when
        it is not, ServerFault when the changelog did not acknowledge; then the same rows have to be written again.
        """
        if not rows:
            return
        if rows[-1][1] is None:
            raise ValueError("the last row of a page must be live")
        if self._producer.observer is not None:
            self._producer.observer("table", table.name)
        begin_us = now_us()
        place = (table.name, partition)
        lock = self._locks.get(place)
        if lock is None:
            lock = self._locks[place] = asyncio.Lock()
        async with lock:
            # Until both steps are done the changelog may hold rows that RocksDB lacks. If this write fails or is
            # cancelled, later ones must not move the offset past them: the next start then reads them again.
            torn = place in self._torn
            self._torn.add(place)
            offsets = await self._producer.append(table.changelog_topic_name, partition, rows)
            _apply(table.data, partition, rows, None if torn else offsets[-1])
            if not torn:
                self._torn.discard(place)
        histogram("qim_table_write_us", table.name).observe(now_us() - begin_us)

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


def _apply(store: Any, partition: int, rows: Sequence[Row], offset: int | None) -> None:
    """One RocksDB write of the rows and, unless None, of the changelog offset that they end at."""
    batch = WriteBatch(raw_mode=True)
    for key, value in rows:
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    if offset is not None:
        batch.put(store.offset_key, b"%d" % offset)
    store._db_for_partition(partition).write(batch)
