"""What is read from the living parts of a worker when its metrics page is asked for: depths, lags, states (OBS-07).

`consumer_readings` belongs to every worker app; `PipelineReadings` to the one that qim.py assembles.
"""

# ruff: noqa: SLF001  # queues of Faust and aiokafka have no public size

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

from schemas.constants import LANE_STALL_ALERT_MS
from schemas.metrics import Reading
from streams.gates import Reason

if TYPE_CHECKING:
    from enum import Enum

    from streams.app import QimApp
    from streams.recovery import BatchTableManager
    from streams.stalls import LaneStall

__all__ = ["PipelineReadings", "WatchedShard", "consumer_readings"]


class WatchedShard(Protocol):
    """What is read from a shard task."""

    shard: int
    restarts: int

    @property
    def state(self) -> Enum:
        """One of a few states."""

    @property
    def depth(self) -> int:
        """Queued pages."""


class PipelineReadings:
    """A source of the metrics page.

    `shards` gives the shard tasks of now; `lane_stalls` the lanes that are stalled now, a longer list only while something
    is wrong; `pushes_dropped` the pushes that were not written; `stopped_partitions` those of the outbox that fan-out gave up.
    """

    def __init__(
        self,
        *,
        shards: Callable[[], Iterable[WatchedShard]],
        lane_stalls: Callable[[], Iterable[LaneStall]],
        pushes_dropped: Callable[[], int],
        stopped_partitions: Callable[[], Collection[object]],
    ) -> None:
        self._shards = shards
        self._lane_stalls = lane_stalls
        self._pushes_dropped = pushes_dropped
        self._stopped_partitions = stopped_partitions

    def __call__(self) -> Iterator[Reading]:
        """The values of this moment."""
        yield Reading("qim_push_dropped_total", self._pushes_dropped())
        yield Reading("qim_fanout_stopped_partitions", len(self._stopped_partitions()))
        states: Counter[str] = Counter()
        for shard in self._shards():
            name = str(shard.shard)
            states[shard.state.value] += 1
            yield Reading("qim_shard_queue_depth", shard.depth, (name,))
            yield Reading("qim_shard_restarts_total", shard.restarts, (name,))
        for state, count in states.items():
            yield Reading("qim_shards", count, (state,))
        yield from self._stalls()

    def _stalls(self) -> Iterator[Reading]:
        alarms: Counter[int] = Counter()
        for shard, lane, stalled_ms in self._lane_stalls():
            name = str(lane) if lane >= 0 else "all"
            yield Reading("qim_lane_watermark_stall_ms", stalled_ms, (str(shard), name))
            alarms[shard] += stalled_ms >= LANE_STALL_ALERT_MS
        for shard, lanes in alarms.items():
            yield Reading("qim_lanes_stalled", lanes, (str(shard),))


def consumer_readings(app: QimApp) -> Iterator[Reading]:
    """Lag of every consumed partition, and the queues between broker and shards."""
    consumer = app.qim_consumer
    for tp, end in consumer.inline.ends().items():
        done = consumer.ledger.position(tp)
        if done is not None:
            labels = (tp.topic, str(tp.partition))
            yield Reading("qim_consumer_lag_records", max(0, end - done), labels)
    for reason in Reason:
        closed = len(consumer.gates.closed_for(reason))
        yield Reading("qim_partitions_closed", closed, (reason.name.lower(),))
    for topic, depth in _agent_queues(app):
        yield Reading("qim_agent_queue_depth", depth, (topic,))
    yield Reading("qim_producer_pending_batches", _pending_batches(app))
    recovery = cast("BatchTableManager", app.tables).recovery
    left = recovery.active_remaining() if recovery.in_recovery else {}
    remaining = sum(count for count in left.values() if count > 0)
    yield Reading("qim_table_recovery_remaining_records", remaining)


def _agent_queues(app: QimApp) -> Iterator[tuple[str, int]]:
    for agent in app.agents.values():
        depth = sum(
            channel._queue.qsize()
            for actor in agent._actors
            if (channel := actor.stream.channel)._queue is not None
        )
        yield agent.channel.get_topic_name(), depth


def _pending_batches(app: QimApp) -> int:
    producer: Any = app.producer
    if producer._producer is None:
        return 0
    return sum(map(len, producer._producer._message_accumulator._batches.values()))
