"""What the stream tests do to the broker directly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import OffsetAndMetadata

from ops.topics import create_topics
from schemas.topics import TopicSpec
from tests.support.page_app import changelog_of, topic_of

__all__ = [
    "commit",
    "commit_offsets",
    "committed",
    "fill",
    "make_anew",
    "make_topics",
    "read_changelog",
    "trim",
    "trim_topic",
]

_BATCH_RECORDS = 500
_GONE_S = 20.0


async def make_topics(broker: str, app_id: str, partitions: int) -> None:
    """The topics of a page app."""
    changelogs = [changelog_of(app_id, table) for table in ("seen", "marks")]
    await create_topics(
        broker,
        [
            TopicSpec(topic_of(app_id), partitions, "delete", -1),
            *(TopicSpec(name, partitions, "compact", -1) for name in changelogs),
        ],
    )


async def make_anew(broker: str, spec: TopicSpec) -> None:
    """Delete a topic and create it again under its old name, empty."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        await admin.delete_topics([spec.name])
        deadline_s = time.monotonic() + _GONE_S
        while spec.name in await admin.list_topics():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)  # the broker tells nobody when a topic is gone
    finally:
        await admin.close()
    await create_topics(broker, [spec])


async def fill(
    broker: str, app_id: str, counts: Mapping[int, int], value: bytes = b"x" * 100
) -> None:
    """Write so many records to each partition of the input topic."""
    producer = AIOKafkaProducer(bootstrap_servers=broker, acks="all", max_batch_size=1 << 20)
    await producer.start()
    try:
        for partition, count in counts.items():
            for start in range(0, count, _BATCH_RECORDS):
                batch = producer.create_batch()
                for _ in range(start, min(count, start + _BATCH_RECORDS)):
                    assert batch.append(key=None, value=value, timestamp=None) is not None
                done = await producer.send_batch(batch, topic_of(app_id), partition=partition)
                await done
    finally:
        await producer.stop()


async def commit(broker: str, app_id: str, offsets: Mapping[int, int]) -> None:
    """Overwrite the committed offsets of the application's group, by partition of its input topic."""
    tps = {TopicPartition(topic_of(app_id), p): o for p, o in offsets.items()}
    await commit_offsets(broker, app_id, tps)


async def commit_offsets(broker: str, app_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """The same for any topics."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, group_id=app_id, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(list(offsets))
        await consumer.commit({tp: OffsetAndMetadata(o, "") for tp, o in offsets.items()})
    finally:
        await consumer.stop()


async def committed(broker: str, app_id: str) -> dict[int, int]:
    """Committed offsets of the application's group on the input topic, by partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        found = await admin.list_consumer_group_offsets(app_id)
    finally:
        await admin.close()
    return {tp.partition: o.offset for tp, o in found.items() if tp.topic == topic_of(app_id)}


async def trim(broker: str, app_id: str, partition: int, before: int) -> None:
    """Delete the records of an input partition below `before`, as retention would."""
    await trim_topic(broker, topic_of(app_id), partition, before)


async def trim_topic(broker: str, topic: str, partition: int, before: int) -> None:
    """Delete the records of any partition below `before`."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        target = {TopicPartition(topic, partition): RecordsToDelete(before_offset=before)}
        await admin.delete_records(target)
    finally:
        await admin.close()


async def read_changelog(
    broker: str, app_id: str, table: str, partition: int
) -> list[tuple[bytes, bytes | None]]:
    """All rows of a changelog partition in log order."""
    tp = TopicPartition(changelog_of(app_id, table), partition)
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        rows: list[tuple[bytes, bytes | None]] = []
        while await consumer.position(tp) < end:
            fetched = await consumer.getmany(tp, timeout_ms=1000)
            rows.extend((record.key, record.value) for record in fetched.get(tp, []))
        return rows
    finally:
        await consumer.stop()
