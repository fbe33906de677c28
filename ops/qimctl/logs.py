"""Topic partitions as an operator's tool reads and writes them: whole, in order, in pages, without a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.errors import ServerFault
from schemas.records import WATERMARK_ROW, WatermarkRow
from tables.watermarks import WATERMARK_KEY, merge_rows

__all__ = ["LogReader", "LogWriter", "Rows", "read_table", "read_watermark", "tombstones"]

_WAIT_MS: Final = 500
_BATCH_BYTES: Final = 1 << 20
Rows = dict[bytes, bytes]
Record = tuple[bytes, bytes | None]


class LogReader:
    """Reads ranges of partitions, one after the other; use it in `async with`.

    One connection a topic: a consumer that changes topics waits for new metadata each time.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._consumers: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        """Connections are made as topics are asked for."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close all connections."""
        for consumer in self._consumers.values():
            await consumer.stop()

    async def _consumer(self, topic: str) -> Any:
        consumer = self._consumers.get(topic)
        if consumer is None:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._broker,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                # A poll in flight delays the next assignment, and ranges are read to a known end.
                fetch_max_wait_ms=5,
                max_partition_fetch_bytes=4 * _BATCH_BYTES,
            )
            self._consumers[topic] = consumer
            try:
                await consumer.start()
            except KafkaError as error:
                raise ServerFault(f"broker {self._broker}: {error!r}") from error
        return consumer

    async def ranges(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """(first, end) offset of each of these partitions."""
        consumer = await self._consumer(topic)
        tps = [TopicPartition(topic, p) for p in partitions]
        first = await consumer.beginning_offsets(tps)
        end = await consumer.end_offsets(tps)
        return {tp.partition: (first[tp], end[tp]) for tp in tps}

    async def pages(
        self, topic: str, partition: int, first: int, end: int, limit: int
    ) -> AsyncIterator[list[Any]]:
        """Records of [first, end) in offset order, at most `limit` in a page; holes of compaction are passed over."""
        if first >= end:
            return
        consumer = await self._consumer(topic)
        tp = TopicPartition(topic, partition)
        consumer.assign([tp])
        consumer.seek(tp, first)
        while await consumer.position(tp) < end:
            fetched = await consumer.getmany(tp, timeout_ms=_WAIT_MS, max_records=limit)
            records = [record for record in fetched.get(tp, ()) if record.offset < end]
            if records:
                yield records


class LogWriter:
    """Writes record batches with acks=all; use it in `async with`."""

    def __init__(self, broker: str) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=broker, acks="all", max_batch_size=_BATCH_BYTES
        )

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._producer.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close."""
        await self._producer.stop()

    async def write(self, topic: str, partition: int, rows: Sequence[Record]) -> None:
        """Write rows in order and wait for every acknowledgement; raises ServerFault without one."""
        pending = []
        try:
            batch = self._producer.create_batch()
            for key, value in rows:
                if batch.append(key=key, value=value, timestamp=None) is None:
                    pending.append(
                        await self._producer.send_batch(batch, topic, partition=partition)
                    )
                    batch = self._producer.create_batch()
                    batch.append(key=key, value=value, timestamp=None)
            if batch.record_count():
                pending.append(await self._producer.send_batch(batch, topic, partition=partition))
            for acknowledged in pending:
                await acknowledged
        except KafkaError as error:
            raise ServerFault(f"write to {topic}[{partition}] failed: {error!r}") from error


async def read_table(reader: LogReader, topic: str, partition: int, limit: int) -> Rows:
    """The rows of a table's partition, from its changelog."""
    first, end = (await reader.ranges(topic, [partition]))[partition]
    rows: Rows = {}
    async for records in reader.pages(topic, partition, first, end, limit):
        for record in records:
            if record.value is None:
                rows.pop(record.key, None)
            else:
                rows[record.key] = record.value
    return rows


async def read_watermark(
    reader: LogReader, topic: str, partition: int, limit: int
) -> WatermarkRow | None:
    """The watermark row of a shard, chosen as table recovery chooses it (tables/watermarks.py)."""
    first, end = (await reader.ranges(topic, [partition]))[partition]
    best: bytes | None = None
    async for records in reader.pages(topic, partition, first, end, limit):
        for record in records:
            if record.value is not None:
                best = merge_rows(WATERMARK_KEY, best, record.value)
    return None if best is None else WATERMARK_ROW.decode(best)


def tombstones(rows: Mapping[bytes, bytes]) -> list[Record]:
    """What deletes these rows."""
    return [(key, None) for key in rows]
