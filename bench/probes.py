"""Figures of the servers: CPU, pages, Redis, the dispatch log. Each is a snapshot; a figure is the difference of two.

The page counters come from the HTTP port of every worker and gateway: `GET /stats` answers JSON
`{"pages": {stage: {"pages": n, "records": m}}, ...}`, counted since the process began. A stage that several processes have is
added up; a process that was restarted between two snapshots counts from its start.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from redis.asyncio import Redis

from bench.target import Target, group_of
from ops.procstat import read_stat
from schemas.topics import dispatch_topic

__all__ = [
    "Figures",
    "Snapshot",
    "busy_s",
    "compare",
    "describe",
    "http_json",
    "stages_in",
    "take_snapshot",
]

_TIMEOUT_S: Final = 5.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
Stages = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at one moment."""

    cpu_s: dict[str, float]  # by process name
    machine_s: float  # of all processes of the machine, the host's share in it included
    stages: list[Stages]  # one a web port
    evalsha_calls: int
    redis_bytes: int
    dispatches: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened between two snapshots."""

    server_cpu_s: dict[str, float]  # by group
    machine_cpu_s: float
    page_records: dict[str, float]  # mean by stage
    pages: dict[str, int]
    evalsha_calls: int
    redis_bytes: int
    dispatches: int


async def take_snapshot(target: Target) -> Snapshot:
    """Read every counter; takes some milliseconds of the servers' time."""
    redis, dispatches, stages = await asyncio.gather(
        _read_redis(_instances(target)), _end_offsets(target), _read_stages(target)
    )
    stats = {name: read_stat(pid) for name, pid in target.processes().items()}
    return Snapshot(
        {name: stat.cpu_s for name, stat in stats.items() if stat is not None},
        _machine_s(),
        stages,
        sum(calls for calls, _ in redis),
        sum(used for _, used in redis),
        dispatches,
    )


def compare(begin: Snapshot, end: Snapshot) -> Figures:
    """Return the difference of two snapshots."""
    cpu_s: dict[str, float] = {}
    for name, used_s in end.cpu_s.items():
        earlier_s = begin.cpu_s.get(name, 0.0)
        group = group_of(name)
        cpu_s[group] = cpu_s.get(group, 0.0) + _grown(earlier_s, used_s)
    pages: dict[str, int] = {}
    records: dict[str, int] = {}
    for before, after in zip(begin.stages, end.stages, strict=True):
        for stage, counts in after.items():
            earlier = before.get(stage, {"pages": 0, "records": 0})
            if counts["pages"] < earlier["pages"]:  # restarted
                earlier = {"pages": 0, "records": 0}
            pages[stage] = pages.get(stage, 0) + counts["pages"] - earlier["pages"]
            records[stage] = records.get(stage, 0) + counts["records"] - earlier["records"]
    return Figures(
        {group: round(used_s, 3) for group, used_s in sorted(cpu_s.items())},
        end.machine_s - begin.machine_s,
        {stage: round(records[stage] / n, 2) for stage, n in sorted(pages.items()) if n},
        {stage: n for stage, n in sorted(pages.items()) if n},
        end.evalsha_calls - begin.evalsha_calls,
        end.redis_bytes - begin.redis_bytes,
        end.dispatches - begin.dispatches,
    )


def _machine_s() -> float:
    return busy_s(Path("/proc/stat").read_text())


def busy_s(stat: str) -> float:
    """Return the CPU seconds in the first line of /proc/stat that were not idle, steal by the host included."""
    ticks = [int(field) for field in stat.partition("\n")[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks[:8]
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _grown(earlier_s: float, later_s: float) -> float:
    return later_s - earlier_s if later_s >= earlier_s else later_s


def _instances(target: Target) -> Sequence[str]:
    """Every Redis once: mailbox and commit may share an instance."""
    return sorted({*target.settings.mailbox_redis, *target.settings.commit_redis})


async def _read_redis(urls: Sequence[str]) -> list[tuple[int, int]]:
    return list(await asyncio.gather(*(_read_one(url) for url in urls)))


async def _read_one(url: str) -> tuple[int, int]:
    async with Redis.from_url(url) as client:
        commands: dict[str, Any] = await client.info("commandstats")
        memory: dict[str, Any] = await client.info("memory")
    calls = sum(int(commands.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in _SCRIPTS)
    return calls, int(memory["used_memory"])


_SCRIPTS: Final = ("evalsha", "eval", "fcall")  # a script by any other name would cost as much


async def _end_offsets(target: Target) -> int:
    settings = target.settings
    topic = dispatch_topic(settings.app_id)
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.broker)
    await consumer.start()
    try:
        parts = [TopicPartition(topic, n) for n in range(settings.mailbox_shard_count)]
        ends: Mapping[TopicPartition, int] = await consumer.end_offsets(parts)
        return sum(ends.values())
    finally:
        await consumer.stop()


async def _read_stages(target: Target) -> list[Stages]:
    return list(await asyncio.gather(*(_stages_of(host, port) for host, port in target.web)))


async def _stages_of(host: str, port: int) -> Stages:
    return stages_in(await http_json(host, port, "/stats"))


def stages_in(reply: Mapping[str, Any]) -> Stages:
    """Return the page counters of a /stats reply; what else it tells is left out."""
    stages: Stages = reply.get("pages", {})
    return stages


async def http_json(host: str, port: int, path: str) -> dict[str, Any]:
    """GET a JSON object; an empty one from a port that does not serve it.

    Raises OSError or TimeoutError when nobody answers.
    """
    async with asyncio.timeout(_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    if b" 200 " not in head.partition(b"\r\n")[0]:
        return {}
    found: dict[str, Any] = json.loads(body)
    return found


async def describe(target: Target) -> tuple[dict[str, str], dict[str, str]]:
    """Return versions of everything that takes part, and the fsync policy of every Redis by role."""
    fsync: dict[str, str] = {}
    redis_version = ""
    for role, urls in (
        ("mailbox", target.settings.mailbox_redis),
        ("commit", target.settings.commit_redis),
    ):
        for index, url in enumerate(urls):
            async with Redis.from_url(url) as client:
                config: dict[str, str] = await client.config_get("append*")
                redis_version = str((await client.info("server"))["redis_version"])
            policy = (
                config.get("appendfsync", "?") if config.get("appendonly") == "yes" else "no AOF"
            )
            fsync[f"{role}-{index}"] = policy
    packages = ("faust-streaming", "aiokafka", "redis", "fastavro", "uvloop")
    versions = {name: version(name) for name in packages}
    versions |= {"python": python_version(), "redis-server": redis_version, **target.versions}
    return versions, fsync
