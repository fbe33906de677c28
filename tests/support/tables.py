"""A table without a broker: a real RocksDB store behind the parts of Faust that page writes touch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aiokafka.errors import KafkaTimeoutError
from faust.stores.rocksdb import Store
from rocksdict import Options, Rdict

from tables.joining import LogRow, RowMerge
from tables.pages import PageProducer, PageWriter
from tests.support.records import FakeRecord

__all__ = ["FakeKafkaProducer", "FakeTable", "bare_store", "page_writer"]

Row = tuple[bytes | None, bytes | None]


class _Batch:
    """Takes rows until it is full."""

    def __init__(self, limit: int) -> None:
        self.rows: list[Row] = []
        self._left = limit

    def append(self, *, key: bytes | None, value: bytes | None, timestamp: None) -> object | None:
        del timestamp
        self._left -= len(key or b"") + len(value or b"")
        if self._left < 0:
            return None
        self.rows.append((key, value))
        return object()


class _Metadata:
    def __init__(self, offset: int) -> None:
        self.offset = offset


class FakeKafkaProducer:
    """A log in memory. `fail_next` lets one batch reach the log unacknowledged; `gate` holds acknowledgements back.

    `sent` is set by each batch.
    """

    def __init__(self, batch_limit: int = 1 << 20, first_offset: int = 0) -> None:
        self.batches: list[tuple[str, int, list[Row]]] = []
        self.fail_next = False
        self.sent = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self._limit = batch_limit
        self.first = first_offset
        self._ends: dict[tuple[str, int], int] = {}

    def create_batch(self) -> _Batch:
        return _Batch(self._limit)

    async def send_batch(self, batch: _Batch, topic: str, *, partition: int) -> asyncio.Task[Any]:
        offset = self.end(topic, partition)
        self._ends[topic, partition] = offset + len(batch.rows)
        self.batches.append((topic, partition, batch.rows))
        self.sent.set()
        failing, self.fail_next = self.fail_next, False

        async def acknowledge() -> _Metadata:
            if self.gate is not None:
                await self.gate.wait()
            if failing:
                raise KafkaTimeoutError
            return _Metadata(offset)

        return asyncio.create_task(acknowledge())

    def end(self, topic: str, partition: int) -> int:
        """The offset behind the last record."""
        return self._ends.get((topic, partition), self.first)

    def write_as_another(self, topic: str, partition: int, rows: Sequence[Row]) -> None:
        """Rows of another worker."""
        self._ends[topic, partition] = self.end(topic, partition) + len(rows)
        self.batches.append((topic, partition, list(rows)))

    def rows(self, topic: str, partition: int) -> list[Row]:
        """Everything in the log of a partition."""
        return [r for t, p, rows in self.batches if (t, p) == (topic, partition) for r in rows]


class FakeTable:
    """What a page write needs of a Faust table; partitions 0 and 1."""

    def __init__(self, folder: Path, name: str = "table") -> None:
        self.name = name
        self.changelog_topic_name = f"app-{name}-changelog"
        self.data = bare_store(folder, partitions=(0, 1))


def bare_store(folder: Path, partitions: Sequence[int] = (0,)) -> Store:
    """Faust's RocksDB store with open partitions and no app."""
    store = Store.__new__(Store)
    store.use_rocksdict = True
    store._dbs = {p: Rdict(str(folder / str(p)), Options(raw_mode=True)) for p in partitions}
    return store


class FakeSource:
    """Reads the fake producer's log."""

    def __init__(self, producer: FakeKafkaProducer) -> None:
        self._producer = producer

    async def end(self, topic: str, partition: int) -> int:
        return self._producer.end(topic, partition)

    async def records(self, topic: str, partition: int, first: int, end: int) -> list[LogRow]:
        rows = enumerate(self._producer.rows(topic, partition), self._producer.first)
        return [FakeRecord(offset, *row) for offset, row in rows if first <= offset < end]


def page_writer(
    producer: FakeKafkaProducer, merges: Mapping[str, RowMerge] = MappingProxyType({})
) -> PageWriter:
    """A writer through the fake producer."""

    class FaustProducer:
        _producer = producer

    return PageWriter(PageProducer(FaustProducer), FakeSource(producer), merges)
