"""Lanes whose W stands still although work for them is known: measured, told, and handed over (LANE-08, TAKE-10).

    below 30 s   only `qim_lane_watermark_stall_ms` shows it
    from 30 s    an error is logged once, and once more when it is over (lane_stall_alert)
    from 120 s   `on_failover` gets the shard, once (lane_stall_failover): it has to take itself over

A lane is stalled as a part of its shard (chunks of it are unfinished) or with the whole shard (records of the log are not
processed); the second is told as one, not as 64.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from schemas.background import Background
from schemas.constants import LANE_STALL_ALERT_MS, LANE_STALL_FAILOVER_MS
from schemas.metrics import now_us
from streams.shard import ShardTask
from streams.transport import QimConsumer

__all__ = ["ALL_LANES", "LaneStall", "StallAlarm", "StallWatch", "pending_lanes"]

_log = logging.getLogger(__name__)
_EVERY_S: Final = 1.0
ALL_LANES: Final = -1

Pending = Mapping[tuple[int, int], int]
"""(shard, lane or ALL_LANES) that has unfinished work -> how far it is: its W, or the acknowledged position of the shard."""


class LaneStall(NamedTuple):
    """A lane that stands still, and for how long."""

    shard: int
    lane: int
    stalled_ms: int


class StallWatch:
    """Since when each place stands still. Pure: the time is handed in, milliseconds of any monotonic clock."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[tuple[int, int], tuple[int, int]] = {}

    def update(self, pending: Pending, now_ms: int) -> list[LaneStall]:
        """The places that are where they were at the last update, longest first; what has no work is forgotten."""
        before, self._since = self._since, {}
        for place, reached in pending.items():
            seen = before.get(place)
            stands = seen is not None and seen[0] == reached
            self._since[place] = seen if stands and seen is not None else (reached, now_ms)
        stalls = [
            LaneStall(*place, now_ms - since)
            for place, (_, since) in self._since.items()
            if since < now_ms
        ]
        return sorted(stalls, key=lambda stall: -stall.stalled_ms)


class StallAlarm(Background):
    """Watches a worker's lanes once a second; `stalls` is what it saw last."""

    def __init__(
        self,
        pending: Callable[[], Pending],
        on_failover: Callable[[int], None] | None = None,
        now_ms: Callable[[], int] = lambda: int(now_us() // 1000),
    ) -> None:
        self._pending = pending
        self._on_failover = on_failover
        self._now_ms = now_ms
        self._watch = StallWatch()
        self._told: set[tuple[int, int]] = set()
        self._handed_over: set[int] = set()
        super().__init__("lane-stalls", self._run)
        self.stalls: list[LaneStall] = []

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            self.look()

    def look(self) -> None:
        """Judge the lanes once."""
        self.stalls = self._watch.update(self._pending(), self._now_ms())
        alarming = {s[:2]: s for s in self.stalls if s.stalled_ms >= LANE_STALL_ALERT_MS}
        for place, stall in alarming.items():
            if place not in self._told:
                _log.error("a lane stands still", extra=_context(*stall))
        for shard, lane in self._told - alarming.keys():
            _log.warning("a lane moves again", extra=_context(shard, lane))
        self._told = set(alarming)
        late = {s.shard for s in self.stalls if s.stalled_ms >= LANE_STALL_FAILOVER_MS}
        for shard in sorted(late - self._handed_over):
            _log.critical("a shard stands still for too long", extra={"shard": shard})
            if self._on_failover is not None:
                self._on_failover(shard)
        self._handed_over = late


def _context(shard: int, lane: int, stalled_ms: int = 0) -> dict[str, object]:
    return {
        "shard": shard,
        "lane": "all" if lane == ALL_LANES else lane,
        "stalled_ms": stalled_ms,
    }


def pending_lanes(consumer: QimConsumer, shards: Iterable[ShardTask]) -> dict[tuple[int, int], int]:
    """What the shards of a worker have still to do, as far as it is known here."""
    ends = consumer.inline.ends()
    pending: dict[tuple[int, int], int] = {}
    for shard in shards:
        done = consumer.ledger.position(shard.tp)
        if done is not None and done < ends.get(shard.tp, done):
            pending[shard.shard, ALL_LANES] = done
        ledger = shard.pipeline.ledger
        for lane in ledger.blocked:
            pending[shard.shard, lane] = ledger.w(lane)
    return pending
