"""`takeover`: a worker is killed under load. How long until another one serves its shards, and how long until a restarted one does.

Both are counted from the kill to the moment at which W of every shard that the worker owned moves again, read from the
watermarks changelog; messages flow to users of all shards meanwhile, and none of them may be lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from bench.checker import FAULTS, check_histories
from bench.faults import FaultOptions, FaultTraffic
from bench.history import read_histories
from ops.stack import Stack
from schemas.topics import WATERMARKS_TABLE, changelog_topic

__all__ = ["TakeoverOptions", "WatermarkWatch", "run_takeover"]

_WARM_S: Final = 4.0
_LIMIT_S: Final = 60.0
_LOOK_S: Final = 0.02
_VICTIM: Final = "worker-0"


@dataclass(frozen=True, slots=True)
class TakeoverOptions:
    """Enough pairs that every shard gets a message every few moments."""

    rate_per_s: float = 200.0
    pairs: int = 100


class WatermarkWatch:
    """When watermark rows of each shard were written, on this process's monotonic clock."""

    def __init__(self, stack: Stack) -> None:
        settings = stack.settings
        topic = changelog_topic(settings.app_id, WATERMARKS_TABLE)
        self._broker = settings.broker
        self._parts = [
            TopicPartition(topic, shard) for shard in range(settings.mailbox_shard_count)
        ]
        self.moves_s: dict[int, list[float]] = defaultdict(list)

    async def run(self, until: asyncio.Event) -> None:
        """Follow the changelog from its present end."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._broker, fetch_max_wait_ms=20)
        await consumer.start()
        try:
            consumer.assign(self._parts)
            await consumer.seek_to_end(*self._parts)
            while not until.is_set():
                fetched = await consumer.getmany(timeout_ms=50)
                now_s = time.monotonic()
                for tp, records in fetched.items():
                    if records:
                        self.moves_s[tp.partition].append(now_s)
        finally:
            await consumer.stop()

    async def moving(self, shards: set[int], since_s: float, limit_s: float) -> float | None:
        """Seconds from `since_s` until every one of `shards` has moved after it; None when that took too long."""
        while time.monotonic() < since_s + limit_s:
            found = [self._first(shard, since_s) for shard in shards]
            if None not in found:
                return max((at for at in found if at is not None), default=since_s) - since_s
            await asyncio.sleep(_LOOK_S)
        return None

    def _first(self, shard: int, since_s: float) -> float | None:
        return next((at for at in self.moves_s[shard] if at > since_s), None)


async def run_takeover(
    stack: Stack, options: TakeoverOptions, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """First the restart of the same worker, then its death for good; the traffic never stops."""
    settings = stack.settings
    slots = set(stack.plan.slots_of(0))
    shards = {s for s in range(settings.mailbox_shard_count) if s % settings.slot_count in slots}
    traffic = FaultTraffic(stack, FaultOptions(pairs=options.pairs), folder)
    watch, ended = WatermarkWatch(stack), asyncio.Event()
    watching = asyncio.create_task(watch.run(ended))
    await traffic.connect()
    sending = asyncio.create_task(traffic.run(options.rate_per_s, 3600.0))
    try:
        await asyncio.sleep(_WARM_S)
        seen = shards & watch.moves_s.keys()
        say(f"{len(seen)} of {len(shards)} shards of {_VICTIM} have traffic")
        killed_s = time.monotonic()
        stack.kill(_VICTIM)
        await stack.restart(_VICTIM)
        ready_s = time.monotonic() - killed_s
        restart_s = await watch.moving(seen, killed_s + ready_s / 2, _LIMIT_S)
        say(f"restarted and ready after {ready_s:.1f} s")
        await asyncio.sleep(_WARM_S)
        killed_s = time.monotonic()
        stack.kill(_VICTIM)
        takeover_s = await watch.moving(
            seen, killed_s + 1.0, _LIMIT_S
        )  # what was in flight has landed by then
        say(f"taken over: {takeover_s}")
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await traffic.rest()
        await traffic.close()
        ended.set()
        await watching
    counts = check_histories(0, list(read_histories(folder)))
    return {
        "shards": settings.mailbox_shard_count,
        "victim_shards": len(shards),
        "watched_shards": len(seen),
        "rate_per_s": options.rate_per_s,
        "restart_s": round(ready_s, 2),
        "restart_w_s": None if restart_s is None else round(restart_s + ready_s / 2, 2),
        "takeover_s": None if takeover_s is None else round(takeover_s + 1.0, 2),
        **counts,
        "sound": takeover_s is not None
        and not any(counts[name] for name in (*FAULTS, "refused", "unsettled")),
    }
