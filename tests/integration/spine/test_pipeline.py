"""The assembled pipeline on real servers: replay, backlog, and records that nobody can read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer

from ops.stack import Stack
from schemas.identifiers import shard_of
from schemas.topics import dispatch_topic, outbox_partition_of, outbox_topic
from schemas.watermarks import unpack_w
from stores.redis_link import RedisLink
from tests.conftest import StartStack
from tests.support.traffic import NOTHING_WRONG, TENANT, Traffic

_BACKLOG_LIMIT_S = 5.0  # GATE-11


async def _dump(stack: Stack, families: tuple[str, ...]) -> dict[bytes, tuple[bytes, int]]:
    """Every key of these families with its serialized value and its expiry, over all mailbox instances."""
    found: dict[bytes, tuple[bytes, int]] = {}
    for url in stack.servers.mailbox_redis:
        link = RedisLink(url)
        for family in families:
            for key in await link.command("KEYS", f"{stack.settings.app_id}:{family}:*"):
                expiry = await link.command("EXPIRETIME", key)
                found[key] = (await link.command("DUMP", key), expiry)
        await link.close()
    return found


async def _store_w(stack: Stack) -> dict[bytes, list[int]]:
    """W of every lane of every shard, as the mailbox instances hold it."""
    found: dict[bytes, list[int]] = {}
    for url in stack.servers.mailbox_redis:
        link = RedisLink(url)
        for key in await link.command("KEYS", f"{stack.settings.app_id}:wm:*"):
            blob = await link.command("HGET", key, "wm_blob")
            found[key] = [lane.w for lane in unpack_w(blob)]
        await link.close()
    return found


async def _forget_watermarks(stack: Stack) -> None:
    """Delete the store's W, as a mailbox Redis without it would look: everything is replayed from offset 0."""
    for url in stack.servers.mailbox_redis:
        link = RedisLink(url)
        for key in await link.command("KEYS", f"{stack.settings.app_id}:wm:*"):
            await link.command("DEL", key)
        await link.close()


def _stats(stack: Stack) -> dict[str, Any]:
    with urlopen(f"http://{stack.addresses['worker-web-0']}/stats") as page:
        found: dict[str, Any] = json.load(page)
    return found


async def _until(what: Callable[[], bool], limit_s: float) -> float:
    """Wait for a state of another process; returns how long it took."""
    started_s = time.monotonic()
    while not what():
        assert time.monotonic() - started_s < limit_s, "did not come about in time"
        await asyncio.sleep(0.02)  # another process's state; it tells nobody when it changes
    return time.monotonic() - started_s


async def _write(stack: Stack, topic: str, partition: int, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=stack.servers.broker, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait(topic, value, partition=partition)
    finally:
        await producer.stop()


@pytest.mark.contract("TAKE-09", "EVT-12", "MBX-20", "MBX-31", "DISP-07")
async def test_replayed_dispatch_log_writes_byte_identical_entries(start_stack: StartStack) -> None:
    stack = await start_stack(mailbox_redis=2, commit_redis=2)
    traffic = Traffic(stack, 10)
    await traffic.connect()
    await traffic.run(100, 2.0)
    assert await traffic.judge() == NOTHING_WRONG
    await traffic.close()
    families = ("mailbox", "mbmeta", "mbdays", "mbseqbucket")
    before, w_before = await _dump(stack, families), await _store_w(stack)
    assert any(b":mailbox:" in key for key in before)

    stack.kill("worker-0")
    await _forget_watermarks(stack)
    await stack.restart("worker-0")

    assert await _dump(stack, families) == before
    # Not equal: fanout repeats what it had not committed when it was killed, which moves W and adds no entry (DISP-07).
    w_after = await _store_w(stack)
    assert all(
        new >= old
        for shard, lanes in w_before.items()
        for old, new in zip(lanes, w_after[shard], strict=True)
    )
    assert all(shard["restarts"] == 0 for shard in _stats(stack)["shards"].values())


@pytest.mark.contract("GATE-11", "REG-14", "LOG-10")
async def test_gate_11_backlog_of_24_outbox_records_is_dispatched_in_5_s(
    start_stack: StartStack,
) -> None:
    stack = await start_stack(mailbox_redis=2, commit_redis=2)
    stack.kill("worker-0")
    traffic = Traffic(stack, 4)
    await traffic.connect()
    await traffic.run(100, 0.24)
    assert sum(len(person.sent) for person in traffic.people) == 24
    await stack.restart("worker-0")  # returns when it has caught up with the log (TAKE-08)

    assert _stats(stack)["pages"]["fanout"]["records"] == 24
    took_s = await _until(
        lambda: sum(shard["next_offset"] for shard in _stats(stack)["shards"].values()) >= 24,
        _BACKLOG_LIMIT_S,
    )
    assert took_s < _BACKLOG_LIMIT_S
    assert await traffic.judge() == NOTHING_WRONG
    await traffic.close()


@pytest.mark.contract("FAN-04", "FAN-02")
async def test_unreadable_outbox_record_stops_its_partition_alone_and_loses_nothing(
    start_stack: StartStack,
) -> None:
    stack = await start_stack(mailbox_redis=2, commit_redis=2)
    settings = stack.settings
    traffic = Traffic(stack, 12)
    await traffic.connect()
    stopped = outbox_partition_of(TENANT, traffic.conversation(0), settings.outbox_partitions)
    await _write(stack, outbox_topic(settings.app_id), stopped, b"\x01not an outbox record")
    await _until(lambda: str(stopped) in _stats(stack)["failed_outbox_partitions"], 10)

    await traffic.run(100, 0.5)

    others = [
        pair
        for pair in range(12)
        if outbox_partition_of(TENANT, traffic.conversation(pair), settings.outbox_partitions)
        != stopped
    ]
    assert others
    assert await traffic.judge(others) == NOTHING_WRONG
    assert "outbox" in str(_stats(stack)["failed_outbox_partitions"][str(stopped)])
    await traffic.close()


@pytest.mark.contract("DISP-08", "DISP-12", "FAN-09")
async def test_unreadable_dispatch_stops_its_shard_alone(start_stack: StartStack) -> None:
    stack = await start_stack(mailbox_redis=2, commit_redis=2)
    settings = stack.settings
    shards = settings.mailbox_shard_count
    traffic = Traffic(stack, 12)
    await traffic.connect()
    stopped = shard_of(TENANT, traffic.pairs[0][0].user, shards)
    await _write(stack, dispatch_topic(settings.app_id), stopped, b"\x01not a dispatch")
    await _until(lambda: _stats(stack)["shards"][str(stopped)]["state"] == "failed", 10)

    await traffic.run(100, 0.5)

    others = [
        number
        for number, (one, two) in enumerate(traffic.pairs)
        if stopped not in {shard_of(TENANT, person.user, shards) for person in (one, two)}
    ]
    assert others
    assert await traffic.judge(others) == NOTHING_WRONG
    states = {shard: found["state"] for shard, found in _stats(stack)["shards"].items()}
    assert states == {str(n): "failed" if n == stopped else "running" for n in range(shards)}
    await traffic.close()
