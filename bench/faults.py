"""`faults`: hurt processes at random under traffic of pairs, record what every client saw, judge it afterwards.

The first user of each pair has two devices. Histories (bench/history.py) go to a folder beside the report, the judgement is
bench/checker.py's. Whatever a seed did can be done again with it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.checker import FAULTS, check_histories, check_watermarks
from bench.fault_plan import Fault, FaultKind, plan_faults
from bench.history import Device, HistoryWriter, body_of, read_histories
from bench.target import target_of
from clients.client import Client
from clients.config import ClientConfig, Login
from ops.servers.process import ProcessFailedError
from ops.stack import Stack
from schemas.records import WATERMARK_ROW, WatermarkRow
from schemas.topics import WATERMARKS_TABLE, changelog_topic

__all__ = [
    "FaultOptions",
    "FaultTraffic",
    "Killer",
    "read_watermark_rows",
    "run_faults",
    "tear_aof",
]

_TENANT: Final = 0
_LOGIN_LIMIT_S: Final = 60.0
_STARTS: Final = 5
_LOOK_S: Final = 0.1
_TORN_BYTES: Final = 200_000  # what a second of the bench's traffic writes to one instance, roughly
_REST_LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """`pairs` of users exchange `rate_per_s` messages for `seconds` while faults of `seed` happen."""

    seconds: float = 600.0
    seed: int = 1
    rate_per_s: float = 200.0
    pairs: int = 20


@dataclass(slots=True)
class _Phone:
    client: Client
    history: HistoryWriter
    shown: int = 0


class FaultTraffic:
    """The clients of a run. Every message is written by the first device of its user."""

    def __init__(self, stack: Stack, options: FaultOptions, folder: Path) -> None:
        target = target_of(stack)
        base = secrets.randbits(40) + 1
        self._numbers: Counter[int] = Counter()
        self.phones: dict[tuple[int, int], _Phone] = {}
        self.pairs: list[tuple[int, int]] = []
        self._wanted: Counter[tuple[int, int]] = Counter()
        for pair in range(options.pairs):
            one, two = base + 2 * pair, base + 2 * pair + 1
            self.pairs.append((one, two))
            gateway = target.gateways[pair % len(target.gateways)]
            for user, number, peer in ((one, 1, two), (one, 2, two), (two, 1, one)):
                device_id = secrets.token_bytes(16)
                login = Login(_TENANT, user, device_id, target.token(user, device_id))
                config = ClientConfig(pull_debounce_s=0.5, keep_timeline=False)
                client = Client(gateway, login, config)
                history = HistoryWriter(folder, Device(user, number, peer))
                client.listen(history.listen)
                self.phones[user, number] = _Phone(client, history)

    async def connect(self) -> None:
        """Log every device in."""
        phones = self.phones.values()
        await asyncio.gather(*(phone.client.connect(_LOGIN_LIMIT_S) for phone in phones))

    async def run(self, rate_per_s: float, seconds: float) -> int:
        """Write messages at an even rate; returns how many."""
        begin_s = time.monotonic()
        count = int(rate_per_s * seconds)
        for index in range(count):
            await asyncio.sleep(max(0.0, begin_s + index / rate_per_s - time.monotonic()))
            lap, pair = divmod(index, len(self.pairs))
            one, two = self.pairs[pair]
            self.send(*((one, two) if lap % 2 == 0 else (two, one)))
        return count

    def send(self, user: int, peer: int) -> None:
        """Write the next message of a user."""
        number = self._numbers[user]
        self._numbers[user] += 1
        phone = self.phones[user, 1]
        message = phone.client.send(peer, body_of(user, number), tag=number)
        phone.history.sent(number, message)

    async def rest(self, quiet_s: float = 3.0) -> None:
        """Wait until nothing is pending and nobody has been shown anything new for a while, at most two minutes."""
        limit_s = time.monotonic() + _REST_LIMIT_S
        still_since_s, last = time.monotonic(), -1
        while time.monotonic() < limit_s:
            pending = sum(len(p.client.session.pending.by_cmid) for p in self.phones.values())
            progress = sum(p.history.path.stat().st_size for p in self.phones.values())
            if pending or progress != last:
                still_since_s, last = time.monotonic(), progress
            elif time.monotonic() - still_since_s > quiet_s:
                return
            for phone in self.phones.values():
                phone.client.pull()
                phone.history.flush()
            await asyncio.sleep(_LOOK_S * 10)

    async def close(self) -> None:
        """Log everybody out and end the histories."""
        await asyncio.gather(*(phone.client.close() for phone in self.phones.values()))
        for phone in self.phones.values():
            phone.history.close()


def tear_aof(folder: Path, lost_bytes: int) -> int:
    """Cut the end off the AOF of a dead Redis; returns how many bytes are gone."""
    files = sorted((folder / "appendonlydir").glob("*.incr.aof"))
    if not files:
        return 0
    size = files[-1].stat().st_size
    lost = min(size, lost_bytes)
    os.truncate(files[-1], size - lost)
    return lost


class Killer:
    """Carries a plan out on the processes of one stack, which are all our own children."""

    def __init__(self, stack: Stack, say: Callable[[str], None], seed: int) -> None:
        self._stack = stack
        self._say = say
        self.kills: Counter[str] = Counter()
        self.pauses: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.wiped: Counter[str] = Counter()
        self.torn_bytes: Counter[str] = Counter()
        self.ended_alone: Counter[str] = Counter()
        self._random = Random(seed)

    async def run(self, plan: Sequence[Fault]) -> None:
        """Every fault at its time; what ended by itself meanwhile is counted and started again."""
        begin_s = time.monotonic()
        for fault in plan:
            while (left_s := begin_s + fault.at_s - time.monotonic()) > 0:
                await self._revive()
                await asyncio.sleep(min(1.0, left_s))
            self._say(f"{fault.kind.value} {' and '.join(fault.targets)} for {fault.down_s:g} s")
            await asyncio.gather(*(self._hurt(fault, name) for name in fault.targets))
        await self._revive()

    async def _revive(self) -> None:
        for name in self._stack.crashed():
            self.ended_alone[name] += 1
            self._say(f"{name} ended by itself")
            await self._start(name)

    async def _hurt(self, fault: Fault, name: str) -> None:
        pid = self._stack.processes.get(name)
        if pid is None:  # ended by itself a moment ago
            await self._start(name)
            return
        if fault.kind is FaultKind.PAUSE:
            self.pauses[name] += 1
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.down_s)
            finally:
                os.kill(pid, signal.SIGCONT)
            return
        if fault.kind is FaultKind.STOP:
            self.stops[name] += 1
            await self._stack.stop_one(name)
        else:
            self.kills[name] += 1
            self._stack.kill(name)
            self._damage(fault.kind, name)
        await asyncio.sleep(fault.down_s)
        await self._start(name)

    def _damage(self, kind: FaultKind, name: str) -> None:
        """What a dead process finds when it comes back."""
        if kind is FaultKind.WIPE:
            self.wiped[name] += 1
            shutil.rmtree(self._stack.folder / name / "tables", ignore_errors=True)
        elif kind is FaultKind.TEAR:
            lost = tear_aof(self._stack.folder / name, self._random.randrange(1, _TORN_BYTES))
            self.torn_bytes[name] += lost

    async def _start(self, name: str) -> None:
        """A start may fail while something it needs is down as well; whoever watches over it tries again."""
        for attempt in range(1, _STARTS + 1):
            try:
                await self._stack.restart(name)
                return
            except ProcessFailedError as problem:
                self._say(f"{name} did not start ({attempt}): {str(problem).splitlines()[0]}")
                if attempt == _STARTS:
                    raise


async def read_watermark_rows(stack: Stack) -> dict[int, list[WatermarkRow]]:
    """The watermarks changelog of every shard, as far as compaction has left it."""
    settings = stack.settings
    topic = changelog_topic(settings.app_id, WATERMARKS_TABLE)
    parts = [TopicPartition(topic, shard) for shard in range(settings.mailbox_shard_count)]
    rows: dict[int, list[WatermarkRow]] = {tp.partition: [] for tp in parts}
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.broker, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        while any([await consumer.position(tp) < ends[tp] for tp in parts]):
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                rows[tp.partition] += [WATERMARK_ROW.decode(record.value) for record in records]
    finally:
        await consumer.stop()
    return rows


async def run_faults(
    stack: Stack, options: FaultOptions, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Traffic and faults side by side, then rest, then judgement."""
    names = sorted(stack.processes)
    plan = list(plan_faults(options.seed, names, options.seconds))
    traffic = FaultTraffic(stack, options, folder)
    killer = Killer(stack, say, options.seed)
    begin_s = time.monotonic()
    await traffic.connect()
    try:
        sending = asyncio.create_task(traffic.run(options.rate_per_s, options.seconds))
        await killer.run(plan)
        await sending
        sent_s = time.monotonic()
        await traffic.rest()
    finally:
        await traffic.close()
    rows = await read_watermark_rows(stack)
    counts = check_histories(_TENANT, list(read_histories(folder)))
    counts["watermark_regressions"] += sum(map(check_watermarks, rows.values()))
    return {
        "seed": options.seed,
        "seconds": options.seconds,
        "rate_per_s": options.rate_per_s,
        "pairs": options.pairs,
        **counts,
        "kills": dict(killer.kills),
        "pauses": dict(killer.pauses),
        "stops": dict(killer.stops),
        "wiped": dict(killer.wiped),
        "torn_bytes": dict(killer.torn_bytes),
        "ended_alone": dict(killer.ended_alone),
        "watermark_rows": sum(map(len, rows.values())),
        "rest_s": round(time.monotonic() - sent_s, 1),
        "took_s": round(time.monotonic() - begin_s, 1),
        "sound": not any(counts[name] for name in (*FAULTS, "unsettled", "refused")),
    }
