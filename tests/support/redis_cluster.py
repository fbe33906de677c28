"""A real Redis Cluster of three nodes, for showing that it is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ops.servers.ports import LOOPBACK, free_ports
from ops.servers.process import ManagedProcess
from ops.servers.provision import find_redis_server
from ops.servers.redis import RedisRole, redis_arguments
from schemas.errors import ServerFault
from stores.redis_link import RedisLink

__all__ = ["RedisCluster", "run_cluster"]

_NODES = 3
_SLOTS = 16384
_TAG_OF_FIRST = "{b}"  # slot 3300, in the first third
_LIMIT_S = 20.0
_POLL_S = 0.05


class RedisCluster:
    """Three nodes that share all slots and see each other."""

    def __init__(self, ports: list[int]) -> None:
        self.urls = [_url(port) for port in ports]

    async def dump(self) -> dict[tuple[str, bytes], bytes]:
        """Every key of every node with its value in Redis' own form."""
        found: dict[tuple[str, bytes], bytes] = {}
        for url in self.urls:
            link = RedisLink(url)
            for key in await link.command("KEYS", "*"):
                found[url, key] = await link.command("DUMP", key)
            await link.close()
        return found

    async def plant(self, count: int) -> None:
        """Set some keys on the first node, which owns the slots of their tag."""
        link = RedisLink(self.urls[0])
        for number in range(count):
            await link.command("SET", f"{_TAG_OF_FIRST}:canary:{number}", number)
        await link.close()


def _url(port: int) -> str:
    return f"redis://{LOOPBACK}:{port}/0"


async def _form(ports: list[int], bus_ports: list[int]) -> None:
    links = [RedisLink(_url(port)) for port in ports]
    try:
        for at, link in enumerate(links):
            first, last = _SLOTS * at // _NODES, _SLOTS * (at + 1) // _NODES - 1
            await link.command("CLUSTER", "ADDSLOTSRANGE", first, last)
            await link.command("CLUSTER", "MEET", LOOPBACK, ports[0], bus_ports[0])
        deadline_s = time.monotonic() + _LIMIT_S
        for link in links:
            while True:
                info: bytes = await link.command("CLUSTER", "INFO")
                if b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info:
                    break
                assert time.monotonic() < deadline_s, info
                await asyncio.sleep(_POLL_S)  # nodes gossip; they tell nobody when they agree
    finally:
        for link in links:
            await link.close()


async def _answers(port: int) -> bool:
    link = RedisLink(_url(port))
    try:
        return bool(await link.command("PING") == b"PONG")
    except ServerFault:
        return False
    finally:
        await link.close()


@asynccontextmanager
async def run_cluster(
    folder: Path, role: RedisRole = RedisRole.COMMIT
) -> AsyncIterator[RedisCluster]:
    """Start, form and stop a cluster whose nodes are durable as the role asks: only the mode is wrong."""
    numbers = free_ports(2 * _NODES)
    ports, bus_ports = numbers[:_NODES], numbers[_NODES:]
    processes = []
    try:
        for port, bus_port in zip(ports, bus_ports, strict=True):
            home = folder / str(port)
            home.mkdir(parents=True)
            extra = ["--cluster-enabled", "yes", "--cluster-port", str(bus_port)]
            extra += ["--cluster-node-timeout", "1000"]
            argv = [find_redis_server(), *redis_arguments(role, port, home), *extra]
            process = ManagedProcess(f"node-{port}", argv, home / "redis.log")
            process.spawn()
            processes.append(process)
            await process.wait_ready(lambda port=port: _answers(port), _LIMIT_S)  # type: ignore[misc]
        await _form(ports, bus_ports)
        yield RedisCluster(ports)
    finally:
        for process in processes:
            await process.stop()
