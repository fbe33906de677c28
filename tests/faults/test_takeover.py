"""Shards change hands under load: taken over, woken up too late, handed over in order. Nothing is lost or written twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from clients.client import Client
from ops.plan import StackOptions
from ops.qimctl.slots import move_slot, slot_lines
from ops.qimctl.system import open_system
from ops.stack import Stack
from schemas.constants import SHARD_LEASE_RENEW_MS, SHARD_LEASE_TTL_MS
from stores.leases import RedisShardLeases
from stores.redis_link import RedisLink
from tests.support.traffic import NOTHING_WRONG, Traffic

pytestmark = pytest.mark.fault

_RATE_PER_S = 100
_PAIRS = 20
_LEASE_S = SHARD_LEASE_TTL_MS / 1000
_GATE_S = 20.0  # GATE-06

Damage = Callable[[], Awaitable[None]]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Stack]:
    """Two workers that share the shards."""
    async with Stack(tmp_path / "stack", StackOptions(workers=2)) as running:
        yield running


@pytest.fixture
async def spared(tmp_path: Path) -> AsyncIterator[Stack]:
    """One worker that has them all, and a spare one."""
    async with Stack(tmp_path / "stack", StackOptions(workers=1, spares=1)) as running:
        yield running


async def stats(stack: Stack, name: str) -> dict[str, Any]:
    kind, number = name.split("-")
    url = f"http://{stack.addresses[f'{kind}-web-{number}']}/stats"
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        found: dict[str, Any] = await reply.json(content_type=None)
        return found


async def until_owned(stack: Stack, name: str, slots: set[int], limit_s: float) -> float:
    """Seconds until a worker holds exactly these slots and all their shards run."""
    shards = {s for s in range(stack.plan.shards) if s % stack.plan.slots in slots}
    begin_s = time.monotonic()
    seen: object = None
    while time.monotonic() < begin_s + limit_s:
        try:
            seen = found = await stats(stack, name)
            running = {int(s) for s, line in found["shards"].items() if line["state"] == "running"}
            if set(found["slots"]["owned"]) == slots and running == shards:
                return time.monotonic() - begin_s
        except (aiohttp.ClientError, OSError) as error:
            seen = error
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} does not run {sorted(slots)} after {limit_s} s: {seen}")


async def under_load(stack: Stack, seconds: float, damage: Damage) -> dict[str, int]:
    traffic = Traffic(stack, _PAIRS)
    await traffic.connect()
    try:
        await traffic.run(_RATE_PER_S, seconds, damage)  # type: ignore[arg-type]
        return await traffic.judge()
    finally:
        await traffic.close()


def links_of(stack: Stack) -> list[RedisLink]:
    return [RedisLink(url) for url in stack.settings.mailbox_redis]


async def dump(stack: Stack) -> dict[str, bytes]:
    """Every key of the mailboxes, as bytes.

    Not W: a fanout page that a sleeper had in hand still reaches the log, and dispatches that are known move W, nothing else
    (DISP-07).
    """
    found: dict[str, bytes] = {}
    for link in links_of(stack):
        try:
            for family in ("mailbox", "mbmeta", "mbdays", "mbseqbucket"):
                names = await link.command("KEYS", f"{stack.settings.app_id}:{family}:*")
                for name in names:
                    found[name.decode()] = await link.command("DUMP", name.decode()) or b""
        finally:
            await link.close()
    return found


async def settled_dump(stack: Stack) -> dict[str, bytes]:
    """The same once nothing changes any more, for longer than an idle shard waits to look after its mailbox."""
    before = await dump(stack)
    for _ in range(10):
        await asyncio.sleep(SHARD_LEASE_RENEW_MS / 1000 + 1)
        after = await dump(stack)
        if after == before:
            return after
        before = after
    raise AssertionError("the mailboxes do not come to rest")


async def epochs(stack: Stack) -> list[int]:
    """The newest epoch of each shard."""
    links = links_of(stack)
    try:
        leases = RedisShardLeases(links, stack.settings.app_id)
        return [(await leases.boundaries(shard))[-1][0] for shard in range(stack.plan.shards)]
    finally:
        for link in links:
            await link.close()


@pytest.mark.contract("GATE-06", "TAKE-01", "TAKE-03", "TAKE-04")
async def test_gate_06_a_spare_takes_a_killed_workers_shards_in_20_s(spared: Stack) -> None:
    taken_s = 0.0
    await asyncio.sleep(10)  # a spare that has just started lets others come first

    async def damage() -> None:
        nonlocal taken_s
        await asyncio.sleep(3)
        assert await epochs(spared) == [1] * 8
        spared.kill("worker-0")
        taken_s = await until_owned(spared, "spare-0", {0, 1, 2, 3}, 40)

    assert await under_load(spared, 24, damage) == NOTHING_WRONG
    assert taken_s <= _GATE_S
    assert await epochs(spared) == [2] * 8


@pytest.mark.contract("GATE-06", "TAKE-01", "TAKE-06", "CUR-04")
async def test_gate_06_a_running_worker_takes_orphaned_slots_and_its_own_pause_shortly(
    pair: Stack,
) -> None:
    """Clients that stayed away come back with a cursor of before: CURSOR_REBASED, and nothing twice."""
    await asyncio.sleep(10)
    taken_s = 0.0

    async def damage() -> None:
        nonlocal taken_s
        await asyncio.sleep(3)
        pair.kill("worker-0")
        taken_s = await until_owned(pair, "worker-1", {0, 1, 2, 3}, 40)

    traffic = Traffic(pair, _PAIRS)
    await traffic.connect()
    try:
        await traffic.run(_RATE_PER_S, 24, damage)
        away = [device for person in traffic.people for device in person.devices[:1]]
        await reconnect(away)
        await traffic.run(_RATE_PER_S, 2)
        assert await traffic.judge() == NOTHING_WRONG
    finally:
        await traffic.close()
    assert taken_s <= _GATE_S
    found = await epochs(pair)
    assert [found[shard] for shard in range(8)] == [
        2 if shard % 2 == 0 else 1 for shard in range(8)
    ]
    # The one that died comes back, finds its slots held, and is a spare: nothing is stolen from the other.
    await pair.restart("worker-0")
    again = await stats(pair, "worker-0")
    assert again["slots"]["owned"] == []
    assert again["slots"]["lost"] == {"0": "worker-1", "2": "worker-1"}


async def reconnect(devices: list[Client]) -> None:
    """Log out and in again, with the cursors they have."""
    for device in devices:
        await device.close()
    for device in devices:
        await device.connect()


@pytest.mark.contract("TAKE-01", "ADAPT-01", "TAKE-06")
async def test_a_worker_that_wakes_up_after_its_lease_writes_not_a_byte(spared: Stack) -> None:
    """SIGSTOP past the lease, takeover, SIGCONT: what it had in hand is refused, it says what it lost, and holds nothing."""
    await asyncio.sleep(10)
    pid = spared.processes["worker-0"]

    async def damage() -> None:
        await asyncio.sleep(3)
        os.kill(pid, signal.SIGSTOP)
        try:
            await until_owned(spared, "spare-0", {0, 1, 2, 3}, _GATE_S + 10)
        finally:
            if spared.processes.get("worker-0") != pid:
                raise AssertionError("worker-0 is gone")

    traffic = Traffic(spared, _PAIRS)
    await traffic.connect()
    try:
        await traffic.run(_RATE_PER_S, 22, damage)
        assert await traffic.judge() == NOTHING_WRONG
        # Nothing is on its way any more: every further byte would be the sleeper's.
        before = await settled_dump(spared)
        os.kill(pid, signal.SIGCONT)
        await until_owned(spared, "worker-0", set(), 20)
        await asyncio.sleep(2)
        assert await dump(spared) == before
        woken = await stats(spared, "worker-0")
        assert set(woken["slots"]["lost"].values()) == {"spare-0"}
        await traffic.run(_RATE_PER_S, 2)
        assert await traffic.judge() == NOTHING_WRONG
    finally:
        os.kill(pid, signal.SIGCONT)
        await traffic.close()


@pytest.mark.contract("TAKE-06")
async def test_a_slot_is_handed_over_in_order_without_waiting_for_the_lease(pair: Stack) -> None:
    took: list[float] = []

    async def damage() -> None:
        await asyncio.sleep(2)
        async with open_system(pair.settings) as system:
            took.append(await move_slot(system, 0, "worker-1", 30))
            lines, living = await slot_lines(system)
            assert [line.owners for line in lines] == [
                ["worker-1"],
                ["worker-1"],
                ["worker-0"],
                ["worker-1"],
            ]
            assert living == {"worker-0": [2], "worker-1": [0, 1, 3]}
            took.append(await move_slot(system, 0, "worker-0", 30))

    assert await under_load(pair, 10, damage) == NOTHING_WRONG
    assert max(took) < _LEASE_S / 2
    assert (await epochs(pair))[0] == 3  # each change of owner raised it


@pytest.mark.contract("TAKE-08")
async def test_a_worker_with_64_shards_is_ready_again_in_5_s(tmp_path: Path) -> None:
    async with Stack(tmp_path / "stack", StackOptions(shards=64)) as stack:
        ready_s = 0.0

        async def damage() -> None:
            nonlocal ready_s
            await asyncio.sleep(3)
            begin_s = time.monotonic()
            stack.kill("worker-0")
            await stack.restart("worker-0")
            ready_s = time.monotonic() - begin_s

        assert await under_load(stack, 8, damage) == NOTHING_WRONG
        assert ready_s <= 5.0
        assert await epochs(stack) == [1] * 64  # the same owner: nothing is raised
