"""Ranges of partitions read whole and in order, without a group: what a table lacks, what an operator's tool replays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from schemas.errors import ServerFault

__all__ = ["LogReader"]

_WAIT_MS: Final = 500
_FETCH_BYTES: Final = 4 << 20


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
                max_partition_fetch_bytes=_FETCH_BYTES,
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
