"""`overload`: far more than the stack can take, for a while; what it accepted, what it lost, how much memory it took.

Pairs offer `factor` times a base rate in an open loop. The gateway may refuse (RATE_LIMITED) or stop reading; what it does not
accept stays pending with its client, who knows it: nothing may vanish. When the load ends its clients leave, and a fresh pair
tells when the stack answers within the contract's latencies again. At the end every acknowledged message must be in its
recipient's mailbox.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench.ladder import ACK_P99_LIMIT_MS, E2E_P99_LIMIT_MS
from bench.load import LoadOptions, PairLoad, Run
from bench.payload import index_in
from bench.schedule import pair_turn
from bench.target import Target
from clients.client import Client
from clients.config import ClientConfig, Login
from clients.events import Committed, EntriesShown, SessionEvent
from ops.procstat import read_stat
from schemas.entry import decode_entry
from schemas.identifiers import shard_of
from stores.mailbox import ScanRequest, ScanResult
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore

__all__ = ["MemoryWatch", "OverloadOptions", "in_mailboxes", "memory_is_bounded", "run_overload"]

_MIB: Final = 1024 * 1024
_TENANT: Final = 0
_PROBE_EVERY_S: Final = 0.05
_PROBES_IN_A_ROW: Final = 20
_RECOVERY_LIMIT_S: Final = 60.0
_SETTLE_LIMIT_S: Final = 90.0
_LOOK_S: Final = 1.0
_ALL: Final = (1 << 48) | ((1 << 48) - 1)
_GROWTH_ALLOWED: Final = 1.25
_GROWTH_FREE_MB: Final = 64.0


@dataclass(frozen=True, slots=True)
class OverloadOptions:
    """`factor` times `base_per_s` is offered for `seconds` by `pairs` pairs."""

    base_per_s: float = 2000.0
    factor: float = 3.0
    seconds: float = 60.0
    pairs: int = 50
    warmup_s: float = 5.0


class MemoryWatch:
    """Resident memory of every process, once a second, in MiB."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        self._processes = processes
        self.rss_mb: dict[str, list[float]] = {}

    async def run(self, until: asyncio.Event) -> None:
        """Sample until the event is set."""
        while not until.is_set():
            for name, pid in self._processes().items():
                stat = read_stat(pid)
                if stat is not None:
                    self.rss_mb.setdefault(name, []).append(round(stat.rss_bytes / _MIB, 1))
            await asyncio.sleep(_LOOK_S)


def memory_is_bounded(rss_mb: Mapping[str, list[float]]) -> bool:
    """Whether no gateway and no worker kept growing: its last third is not far above its second one.

    Stores and broker grow with what they keep, and are left out.
    """
    for name, samples in rss_mb.items():
        third = len(samples) // 3
        if third and name.startswith(("gateway", "worker")):
            before, after = max(samples[third : 2 * third]), max(samples[2 * third :])
            if after > before * _GROWTH_ALLOWED + _GROWTH_FREE_MB:
                return False
    return True


class _Probe:
    """One message at a time from one user to another, with both latencies."""

    def __init__(self, target: Target) -> None:
        base = secrets.randbits(61) + 1
        self._acked = asyncio.Event()
        self._shown = asyncio.Event()
        self._body = b""
        self._peer = base + 1
        self._clients = [self._client(target, user) for user in (base, base + 1)]

    def _client(self, target: Target, user: int) -> Client:
        device_id = secrets.token_bytes(16)
        login = Login(_TENANT, user, device_id, target.token(user, device_id))

        def listen(event: SessionEvent) -> None:
            if isinstance(event, Committed):
                self._acked.set()
            elif isinstance(event, EntriesShown) and user == self._peer:
                for entry in event.entries:
                    if entry.decode()["event"]["body"] == self._body:
                        self._shown.set()

        config = ClientConfig(keep_timeline=False)
        return Client(target.gateways[0], login, config, on_event=listen)

    async def until_normal(self, limit_s: float) -> float | None:
        """The moment at which a row of probes began that all met both limits; None when there was none in time."""
        row_s, row = time.monotonic(), 0
        try:
            async with asyncio.timeout(limit_s):
                for client in self._clients:
                    await client.connect(limit_s)
                while row < _PROBES_IN_A_ROW:
                    if row == 0:
                        row_s = time.monotonic()
                    row = row + 1 if await self._one() else 0
                    await asyncio.sleep(_PROBE_EVERY_S)
        except TimeoutError:
            return None
        finally:
            await asyncio.gather(*(client.close() for client in self._clients))
        return row_s

    async def _one(self) -> bool:
        self._acked.clear()
        self._shown.clear()
        self._body = secrets.token_bytes(16)
        begin_s = time.monotonic()
        self._clients[0].send(self._peer, self._body)
        await self._acked.wait()
        acked_ms = (time.monotonic() - begin_s) * 1000
        await self._shown.wait()
        shown_ms = (time.monotonic() - begin_s) * 1000
        return acked_ms <= ACK_P99_LIMIT_MS and shown_ms <= E2E_P99_LIMIT_MS


async def in_mailboxes(target: Target, users: Iterable[int], nonce: bytes) -> dict[int, set[int]]:
    """Messages of a run by the user in whose mailbox they are, read from the stores themselves."""
    settings = target.settings
    links = [RedisLink(url) for url in settings.mailbox_redis]
    store = RedisMailboxStore(links, settings.app_id)
    found: dict[int, set[int]] = {}
    try:
        for user in users:
            shard = shard_of(_TENANT, user, settings.mailbox_shard_count)
            found[user], after, more = set(), 0, True
            while more:
                scan = ScanRequest(_TENANT, user, shard, (1,), after, _ALL, 500, _MIB)
                (result,) = await store.range_scan([scan])
                if not isinstance(result, ScanResult):
                    raise result
                bodies = (decode_entry(entry)["event"]["body"] for entry in result.entries)
                indices = (index_in(nonce, body) for body in bodies if body is not None)
                found[user] |= {index for index in indices if index is not None}
                after, more = result.covered_through, result.has_more
    finally:
        for link in links:
            await link.close()
    return found


async def _lost(target: Target, load: PairLoad, run: Run, pairs: int) -> int:
    """Acknowledged messages that are not in their recipient's mailbox, once the pipeline has come to rest."""
    users = load.users
    wanted: dict[int, set[int]] = {user: set() for user in users}
    for index, acked_s in enumerate(run.acked_s):
        if acked_s >= 0:
            wanted[users[pair_turn(index, pairs).recipient]].add(index)
    limit_s = time.monotonic() + _SETTLE_LIMIT_S
    while True:
        found = await in_mailboxes(target, users, run.nonce)
        lost = sum(len(indices - found[user]) for user, indices in wanted.items())
        if not lost or time.monotonic() > limit_s:
            return lost
        await asyncio.sleep(_LOOK_S)


async def run_overload(
    target: Target, options: OverloadOptions, say: Callable[[str], None]
) -> dict[str, Any]:
    """Warm up at half the base rate, overload, recover, judge."""
    load = PairLoad(target.gateways, target.token, LoadOptions(pairs=options.pairs, drain_s=0.0))
    watch, ended = MemoryWatch(target.processes), asyncio.Event()
    await load.log_in()
    watching = asyncio.create_task(watch.run(ended))
    try:
        if options.warmup_s > 0:
            await load.run(options.base_per_s / 2, options.warmup_s)
            load.forget()
        say(f"offering {options.base_per_s * options.factor:g}/s for {options.seconds:g} s")
        run = await load.run(options.base_per_s * options.factor, options.seconds)
        end_s = time.monotonic()
    finally:
        await load.close()
    offered_s = max(run.sent_s - run.begun_s, options.seconds)
    say("the load has ended")
    normal_s = await _Probe(target).until_normal(_RECOVERY_LIMIT_S)
    recovery_s = None if normal_s is None else round(normal_s - end_s, 2)
    lost = await _lost(target, load, run, options.pairs)
    ended.set()
    await watching
    accepted = sum(acked_s >= 0 for acked_s in run.acked_s)
    bounded = memory_is_bounded(watch.rss_mb)
    return {
        "base_per_s": options.base_per_s,
        "factor": options.factor,
        "seconds": options.seconds,
        "pairs": options.pairs,
        "offered_per_s": round(len(run.acked_s) / offered_s, 1),
        "accepted_per_s": round(accepted / offered_s, 1),
        "accepted": accepted,
        "refused": run.failed,
        "left_with_clients": len(run.acked_s) - accepted - run.failed,
        "lost": lost,
        "rss_mb": watch.rss_mb,
        "memory_bounded": bounded,
        "recovery_s": recovery_s,
        "sound": lost == 0 and bounded and recovery_s is not None,
    }
