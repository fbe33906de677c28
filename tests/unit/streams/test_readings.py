"""What a worker's metrics page reads from its parts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust.types import TP

from schemas.catalogue import CATALOGUE
from schemas.constants import LANE_STALL_ALERT_MS
from schemas.metrics import MetricsPage, Reading
from streams.acks import AckLedger
from streams.gates import Gates, Reason
from streams.readings import PipelineReadings, consumer_readings
from streams.stalls import ALL_LANES, LaneStall

Found = dict[tuple[str, tuple[str, ...]], float]


class State(Enum):
    RUNNING = "running"
    FAILED = "failed"


@dataclass
class Shard:
    shard: int
    state: State = State.RUNNING
    depth: int = 0
    restarts: int = 0


def values(readings: Any) -> Found:
    """(name, labels) -> value; every reading must be one that the catalogue lists, with as many labels."""
    found: Found = {}
    for reading in readings:
        assert isinstance(reading, Reading)
        assert len(reading.labels) == len(CATALOGUE[reading.name].labels)
        assert (reading.name, reading.labels) not in found
        found[reading.name, reading.labels] = cast("float", reading.value)
    return found


def pipeline(*shards: Shard, stalls: tuple[LaneStall, ...] = ()) -> PipelineReadings:
    return PipelineReadings(
        shards=lambda: shards,
        lane_stalls=lambda: stalls,
        pushes_dropped=lambda: 5,
        stopped_partitions=lambda: {TP("outbox", 1): "why"},
    )


@pytest.mark.contract("OBS-06", "OBS-07", "QUOTA-05")
def test_obs_07_shards_are_shown_by_depth_state_and_restarts() -> None:
    found = values(pipeline(Shard(0, depth=3), Shard(5, State.FAILED, restarts=2), Shard(6))())
    assert found["qim_shard_queue_depth", ("0",)] == 3
    assert found["qim_shard_restarts_total", ("5",)] == 2
    assert found["qim_shards", ("running",)] == 2
    assert found["qim_shards", ("failed",)] == 1
    assert found["qim_push_dropped_total", ()] == 5
    assert found["qim_fanout_stopped_partitions", ()] == 1
    assert not any(name.startswith("qim_lane") for name, _ in found)


@pytest.mark.contract("LANE-08", "TAKE-10")
def test_take_10_stalled_lanes_are_shown_and_counted_from_the_alert_on() -> None:
    stalls = (
        LaneStall(2, 7, LANE_STALL_ALERT_MS),
        LaneStall(2, 8, LANE_STALL_ALERT_MS - 1),
        LaneStall(3, ALL_LANES, 10),
    )
    found = values(pipeline(Shard(2), Shard(3), stalls=stalls)())
    assert found["qim_lane_watermark_stall_ms", ("2", "7")] == 30_000
    assert found["qim_lane_watermark_stall_ms", ("3", "all")] == 10
    assert found["qim_lanes_stalled", ("2",)] == 1
    assert found["qim_lanes_stalled", ("3",)] == 0
    text = MetricsPage("worker", [pipeline(Shard(2), stalls=stalls)]).render()
    assert b'qim_lane_watermark_stall_ms{lane="7",shard="2"} 30000.0' in text


def app_of(ends: dict[TP, int]) -> Any:
    """A worker's app as far as the readings look into it."""
    ledger, gates = AckLedger(), Gates()
    ledger.start(TP("dispatch", 1), 40)
    gates.close([TP("dispatch", 1)], Reason.HOLD)
    queue = SimpleNamespace(qsize=lambda: 2)
    actor = SimpleNamespace(stream=SimpleNamespace(channel=SimpleNamespace(_queue=queue)))
    unread = SimpleNamespace(stream=SimpleNamespace(channel=SimpleNamespace(_queue=None)))
    channel = SimpleNamespace(get_topic_name=lambda: "dispatch")
    batches = {TP("push", 0): deque([b"a", b"b"]), TP("push", 1): deque([b"c"])}
    accumulator = SimpleNamespace(_batches=batches)
    left = {TP("log", 0): 8, TP("log", 1): -1}
    recovery = SimpleNamespace(in_recovery=True, active_remaining=lambda: left)
    return SimpleNamespace(
        qim_consumer=SimpleNamespace(
            ledger=ledger, gates=gates, inline=SimpleNamespace(ends=lambda: ends)
        ),
        agents={"a": SimpleNamespace(_actors=[actor, unread], channel=channel)},
        producer=SimpleNamespace(_producer=SimpleNamespace(_message_accumulator=accumulator)),
        tables=SimpleNamespace(recovery=recovery),
    )


@pytest.mark.contract("OBS-07")
def test_obs_07_lag_and_the_queues_between_broker_and_shards_are_shown() -> None:
    ends = {TP("dispatch", 1): 47, TP("log", 0): 9}
    found = values(consumer_readings(app_of(ends)))
    assert found["qim_consumer_lag_records", ("dispatch", "1")] == 7
    assert ("qim_consumer_lag_records", ("log", "0")) not in found  # no stream, a changelog
    assert found["qim_partitions_closed", ("hold",)] == 1
    assert found["qim_partitions_closed", ("buffer",)] == 0
    assert found["qim_agent_queue_depth", ("dispatch",)] == 2
    assert found["qim_producer_pending_batches", ()] == 3
    assert found["qim_table_recovery_remaining_records", ()] == 8


def test_a_worker_that_has_not_started_shows_zeros() -> None:
    app = app_of({})
    app.producer._producer = None
    app.tables.recovery.in_recovery = False
    found = values(consumer_readings(app))
    assert found["qim_producer_pending_batches", ()] == 0
    assert found["qim_table_recovery_remaining_records", ()] == 0
    assert not any(name == "qim_consumer_lag_records" for name, _ in found)
