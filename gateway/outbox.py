"""Publishes outbox records: one record batch per partition and page, acks=all, idempotent producer (LOG-03).

The idempotent producer covers the protocol retries of this one producer; what it cannot cover, a duplicate after an
unknown outcome, is absorbed by dispatch_id and payload_digest (LOG-04, COM-08).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder

from schemas.errors import Bug, StoreUnknownOutcome

__all__ = ["OutboxPublisher"]

_log = logging.getLogger(__name__)
_MAX_BATCH_BYTES = 1024 * 1024
_REQUEST_TIMEOUT_MS = 10_000


class OutboxPublisher:
    """Owns the gateway's producer; a producer that met a fatal error is replaced, not reused."""

    def __init__(self, broker: str, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """Connect, and get the producer id and the topic's leaders now, so that the first message does not pay (REG-44)."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self._broker,
            acks="all",
            enable_idempotence=True,
            max_batch_size=_MAX_BATCH_BYTES,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            linger_ms=0,
        )
        await producer.start()
        try:
            await producer.partitions_for(self._topic)
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    @property
    def pending_batches(self) -> int:
        """Record batches that are not sent yet (OBS-07)."""
        if self._producer is None:
            return 0
        waiting = self._producer._message_accumulator._batches  # noqa: SLF001 - no public count
        return sum(map(len, waiting.values()))

    async def stop(self) -> None:
        """Flush and close."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await producer.stop()

    async def ready(self) -> int:
        """Partitions of the outbox topic as the broker reports them now; raises when it does not answer (COM-19)."""
        if self._producer is None:
            raise StoreUnknownOutcome("outbox producer is not running")
        await self._producer.client.force_metadata_update()
        return len(await self._producer.partitions_for(self._topic))

    async def publish(
        self, pages: Mapping[int, Sequence[tuple[bytes, bytes]]]
    ) -> dict[int, list[int] | StoreUnknownOutcome]:
        """Partition -> (key, value) pairs in order; returns partition -> offsets, or why it is not known to be durable."""
        if self._producer is None:
            try:
                await self.start()
            except (KafkaError, OSError, TimeoutError) as error:
                _log.error("outbox producer: %r", error)
                return {p: StoreUnknownOutcome(f"outbox: {type(error).__name__}") for p in pages}
        results = await asyncio.gather(
            *(self._publish_partition(p, records) for p, records in pages.items()),
            return_exceptions=True,
        )
        out: dict[int, list[int] | StoreUnknownOutcome] = {}
        broken = False
        for partition, result in zip(pages, results, strict=True):
            if isinstance(result, BaseException):
                if not isinstance(result, KafkaError | OSError | TimeoutError):
                    raise result
                _log.error("outbox partition %d: %r", partition, result)
                out[partition] = StoreUnknownOutcome(f"outbox: {type(result).__name__}")
                broken = True
            else:
                out[partition] = result
        if broken:
            await self._replace()
        return out

    async def _publish_partition(
        self, partition: int, records: Sequence[tuple[bytes, bytes]]
    ) -> list[int]:
        offsets: list[int] = []
        at = 0
        while at < len(records):
            producer = self._producer
            if producer is None:
                raise StoreUnknownOutcome("outbox producer was stopped")
            batch: BatchBuilder = producer.create_batch()
            first = at
            while at < len(records):
                key, value = records[at]
                if batch.append(key=key, value=value, timestamp=None) is None:
                    break
                at += 1
            if at == first:
                raise Bug(f"outbox record of {len(records[at][1])} bytes exceeds a batch")
            sent = await producer.send_batch(batch, self._topic, partition=partition)
            metadata = await sent
            offsets.extend(range(metadata.offset, metadata.offset + at - first))
        return offsets

    async def _replace(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await asyncio.wait_for(producer.stop(), 5)
            except (KafkaError, OSError, TimeoutError) as error:
                _log.warning("closing the failed outbox producer: %r", error)
        try:
            await self.start()
        except (KafkaError, OSError, TimeoutError) as error:
            _log.warning("outbox broker is not reachable yet: %r", error)
