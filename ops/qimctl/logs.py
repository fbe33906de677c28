"""Tables as an operator's tool reads and writes them: from their changelogs, in pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas.errors import ServerFault
from schemas.records import WATERMARK_ROW, WatermarkRow
from tables.log_reader import LogReader
from tables.watermarks import WATERMARK_KEY, merge_rows

__all__ = ["LogWriter", "Rows", "read_table", "read_watermark", "tombstones"]

_BATCH_BYTES: Final = 1 << 20
Rows = dict[bytes, bytes]
Record = tuple[bytes, bytes | None]


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
