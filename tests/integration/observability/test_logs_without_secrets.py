"""OBS-10 on a real gateway and a real worker: whatever goes wrong, no log file tells a secret or a body.

Both processes log everything there is (DEBUG). The conversation carries markers in every place where a client or a broken record
can put them; then the log files of the stack are searched for each of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from clients.client import Client
from clients.config import Login
from ops.stack import Stack
from schemas.frames import Opcode
from schemas.topics import dispatch_topic, outbox_topic
from tests.support.local_gateway import TcpPeer
from tests.support.traffic import login_of
from tests.support.web_pages import fetch, metrics_of

StartStack = Callable[..., Awaitable[Stack]]

BODY = b"marker-body: meet at the old mill"
CUSTOM_TYPE = "marker-custom-type"
BAD_CURSOR = b"marker-cursor" + bytes(range(128, 240))
_LIMIT_S = 20.0


@pytest.fixture
async def stack(start_stack: StartStack) -> Stack:
    verbose = {"QIM_LOG_LEVEL": "DEBUG", "QIM_LOG_FORMAT": "json"}
    return await start_stack(environment=verbose)


def _address(stack: Stack) -> tuple[str, int]:
    host, _, port = stack.addresses["gateway-0"].partition(":")
    return host, int(port)


async def _talk(stack: Stack, one: Login, two: Login) -> None:
    """A message there, seen by the other device, which then pulls; a message that is refused."""
    alice, bob = Client(_address(stack), one), Client(_address(stack), two)
    await alice.connect()
    await bob.connect()
    await alice.committed(alice.send(two.user, BODY, custom_type=CUSTOM_TYPE))
    async with asyncio.timeout(_LIMIT_S):
        while not bob.timeline.entries:
            bob.pull()
            await asyncio.sleep(0.05)  # what another process does cannot be awaited
    alice.send(two.user, BODY, custom_type=CUSTOM_TYPE * 10)  # PAYLOAD_TOO_LARGE
    await alice.close()
    await bob.close()


async def _knock(stack: Stack, login: Login, **fields: object) -> None:
    """An AUTH that is refused."""
    peer = TcpPeer(*await asyncio.open_connection(*_address(stack)))
    auth = {
        "access_token": login.access_token,
        "device_id": login.device_id,
        "cursor_kind": 0,
        "cursor": b"",
        "foreground": True,
    }
    peer.send(Opcode.AUTH, auth | fields)
    await peer.refused()
    await peer.close()


async def _poison(stack: Stack, topic: str) -> None:
    """A record that nobody can read, with a body in it, in every partition."""
    producer = AIOKafkaProducer(bootstrap_servers=stack.settings.broker, acks="all")
    await producer.start()
    try:
        for partition in await producer.partitions_for(topic):
            await producer.send_and_wait(topic, b"\x01" + BODY, partition=partition)
    finally:
        await producer.stop()


async def _fall_over(stack: Stack) -> None:
    """Every shard and every outbox partition stops at its poison record, loudly."""
    app_id, web = stack.settings.app_id, stack.addresses["worker-web-0"]
    await _poison(stack, dispatch_topic(app_id))
    await _poison(stack, outbox_topic(app_id))
    async with asyncio.timeout(_LIMIT_S):
        while True:
            worker = await metrics_of(web)
            stopped = worker.value("qim_fanout_stopped_partitions")
            states = {dict(has)["state"] for name, has in worker.samples if name == "qim_shards"}
            if stopped == stack.settings.outbox_partitions and states == {"failed"}:
                break
            await asyncio.sleep(0.1)  # what another process does cannot be awaited
    assert (await fetch(web, "/ready"))[0] == 503


def _events(log: Path) -> Iterator[dict[str, object]]:
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            yield json.loads(line)


@pytest.mark.contract("OBS-10")
async def test_obs_10_no_log_tells_a_secret_or_a_body(stack: Stack) -> None:
    one, two = login_of(stack, 1, 1), login_of(stack, 2, 1)
    forged = one.access_token[:-8] + "marker00"
    await _talk(stack, one, two)
    await _knock(stack, one, access_token=forged)
    await _knock(stack, one, access_token="marker-plain-token")
    await _knock(stack, one, cursor_kind=2, cursor=BAD_CURSOR)
    await _knock(stack, replace(one, device_id=b"marker-device-id"))
    await _fall_over(stack)
    await stack.stop()

    logs = {log.name: log.read_text() for log in stack.folder.rglob("*.log")}
    assert {"gateway.log", "worker.log"} <= logs.keys()
    settings = stack.settings
    forbidden = {
        "a body": "marker-body",
        "words of a body": "the old mill",
        "a custom type": CUSTOM_TYPE,
        "a token": one.access_token,
        "the claims of a token": one.access_token.split(".")[1],
        "a signature": two.access_token.split(".")[2],
        "a forged signature": "marker00",
        "what was no token": "marker-plain-token",
        "a cursor": "marker-cursor",
        "the key of tokens": settings.token_secret.get_secret_value(),
        "the key of cursors": settings.cursor_secret.get_secret_value(),
    }
    told = {
        (name, what) for name, text in logs.items() for what, m in forbidden.items() if m in text
    }
    assert told == set()


@pytest.mark.contract("OBS-10", "FAN-04")
async def test_failures_are_logged_as_events_with_their_cause(stack: Stack) -> None:
    await _fall_over(stack)
    await stack.stop()
    worker = list(_events(stack.folder / "worker-0" / "worker.log"))
    loud = [event for event in worker if event["level"] == "CRITICAL"]
    loggers = {event["logger"] for event in loud}
    assert {"streams.fanout", "streams.shard"} <= loggers
    assert all(event["process"] == "worker-0" for event in worker)
    assert any("RecordError" in str(event.get("error", "")) for event in loud)
