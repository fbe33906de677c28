"""What the agents declare to write is what the real worker writes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from typing import cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.config import Settings, child_environment
from schemas.identifiers import direct_conversation_id, shard_of
from schemas.records import EVENT_COMMON, MESSAGE_RECORD, OUTBOX_RECORD, MessageRecord
from schemas.topics import outbox_topic, push_topic
from tests.support.samples import sample

ALICE, BOB = 1001, 2002


def committed_message(settings: Settings) -> bytes:
    """An outbox record of a direct message."""
    message = sample("message_record")
    message["tenant_id"] = bytes(16)
    message["event"] = message["event"] | {
        "sender_id": ALICE,
        "conversation_id": bytes(direct_conversation_id(0, ALICE, BOB)),
        "message_type": 1,
        "custom_type": "",
        "body": b"hello",
    }
    message["mentions"] = []
    shards = {shard_of(0, user, settings.mailbox_shard_count) for user in (ALICE, BOB)}
    return OUTBOX_RECORD.encode(
        {
            "tenant_id": bytes(16),
            "message_id": message["event"]["message_id"],
            "sender_id": ALICE,
            "recipients": [ALICE, BOB],
            "membership_version": None,
            "target_shards": sorted(shards),
            "event_bytes": len(EVENT_COMMON.encode(message["event"])) - 1,
            "record": MESSAGE_RECORD.encode(cast("MessageRecord", message)),
        }
    )


async def first_push(settings: Settings) -> None:
    """Wait for the last thing a message causes."""
    topic = push_topic(settings.app_id)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.broker, auto_offset_reset="earliest", group_id=None
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, p) for p in range(settings.push_partitions)])
        await consumer.getone()
    finally:
        await consumer.stop()


async def test_declared_writes_are_the_writes_really_seen(settings: Settings) -> None:
    values = {
        "QIM_APP_ID": settings.app_id,
        "QIM_BROKER": settings.broker,
        "QIM_MAILBOX_REDIS": ",".join(settings.mailbox_redis),
        "QIM_COMMIT_REDIS": ",".join(settings.commit_redis),
        "QIM_DATA_DIR": str(settings.data_dir),
        "QIM_WEB_PORT": "0",
    }
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.recording_worker",
        stdout=PIPE,
        env=child_environment(values),
    )
    try:
        producer = AIOKafkaProducer(bootstrap_servers=settings.broker, acks="all")
        await producer.start()
        try:
            value = committed_message(settings)
            await producer.send_and_wait(outbox_topic(settings.app_id), value, partition=0)
        finally:
            await producer.stop()
        async with asyncio.timeout(30):
            await first_push(settings)
        worker.send_signal(signal.SIGTERM)
        printed, _ = await worker.communicate()
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()

    report = json.loads(printed[printed.index(b"{") :])
    assert report["seen"] == report["declared"]
    assert all(report["seen"])
