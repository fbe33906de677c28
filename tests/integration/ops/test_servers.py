"""Real servers: killed and started again on the same data, nothing that they confirmed is lost."""

from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from redis.asyncio import Redis

from ops.servers.kafka import KafkaServer
from ops.servers.ports import free_ports
from ops.servers.redis import RedisRole, RedisServer
from ops.topics import create_topics
from schemas.topics import TopicSpec

TOPIC = TopicSpec("t.events", 1, "delete", -1)


@pytest.mark.parametrize("role", list(RedisRole))
async def test_redis_killed_keeps_what_it_confirmed(role: RedisRole, tmp_path: Path) -> None:
    server = RedisServer("redis", role, free_ports(1)[0], tmp_path / "redis")
    await server.start()
    try:
        async with Redis.from_url(server.url) as client:
            await client.set("k", "v")
            server.kill()
            await server.start()
            assert await client.get("k") == b"v"
            config = await client.config_get("appendfsync", "maxmemory-policy")
            assert config == {"appendfsync": role.value, "maxmemory-policy": "noeviction"}
    finally:
        await server.stop()


async def last_value(address: str) -> bytes | None:
    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(TOPIC.name, 0)])
        value: bytes | None = (await consumer.getone()).value
        return value
    finally:
        await consumer.stop()


@pytest.mark.fault
async def test_kafka_killed_keeps_what_it_confirmed(tmp_path: Path) -> None:
    port, controller_port = free_ports(2)
    server = KafkaServer("kafka", port, controller_port, tmp_path / "kafka")
    await server.start()
    try:
        await create_topics(server.address, [TOPIC])
        producer = AIOKafkaProducer(bootstrap_servers=server.address, acks="all")
        await producer.start()
        await producer.send_and_wait(TOPIC.name, b"kept", partition=0)
        await producer.stop()
        server.kill()
        await server.start()
        await create_topics(server.address, [TOPIC])  # waits for the leader
        assert await last_value(server.address) == b"kept"
    finally:
        await server.stop()
