"""LANE-08 and TAKE-10: how long a lane stands still, who is told, and when the shard is handed over."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from schemas.constants import LANE_COUNT, LANE_STALL_ALERT_MS, LANE_STALL_FAILOVER_MS
from streams.acks import AckLedger
from streams.lanes import LaneLedger
from streams.stalls import ALL_LANES, LaneStall, StallAlarm, StallWatch, pending_lanes


@pytest.mark.contract("TAKE-10")
def test_take_10_a_lane_is_stalled_from_when_it_stopped_moving() -> None:
    watch = StallWatch()
    assert watch.update({(1, 5): 70}, 1_000) == []
    assert watch.update({(1, 5): 70, (1, 6): 3}, 4_000) == [LaneStall(1, 5, 3_000)]
    assert watch.update({(1, 5): 70, (1, 6): 3}, 5_000) == [
        LaneStall(1, 5, 4_000),
        LaneStall(1, 6, 1_000),
    ]
    assert watch.update({(1, 5): 71, (1, 6): 3}, 6_000) == [LaneStall(1, 6, 2_000)]  # it moved
    assert watch.update({(1, 6): 3}, 7_000) == [LaneStall(1, 6, 3_000)]  # nothing left to do
    assert watch.update({(1, 5): 71, (1, 6): 3}, 8_000) == [LaneStall(1, 6, 4_000)]  # and new work


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5_000)), max_size=30))
def test_a_stall_is_never_longer_than_the_time_since_the_last_move(
    steps: list[tuple[int, int]],
) -> None:
    watch, now_ms, reached, moved_ms = StallWatch(), 0, -1, 0
    for position, pause_ms in steps:
        now_ms += pause_ms
        if position != reached:
            reached, moved_ms = position, now_ms
        stalls = watch.update({(0, 0): position}, now_ms)
        assert [stall.stalled_ms for stall in stalls] == (
            [now_ms - moved_ms] if now_ms > moved_ms else []
        )


class Alarm:
    """A watched worker: its lanes, the time, who was handed over."""

    def __init__(self) -> None:
        self.pending: dict[tuple[int, int], int] = {}
        self.now_ms = 0
        self.handed_over: list[int] = []
        self.alarm = StallAlarm(
            lambda: self.pending, self.handed_over.append, now_ms=lambda: self.now_ms
        )

    def after(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.alarm.look()


@pytest.mark.contract("LANE-08")
def test_lane_08_alert_after_30_s_and_failover_after_120_s_each_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Alarm()
    worker.pending = {(3, 9): 100, (3, 10): 5, (4, ALL_LANES): 7}
    worker.after(0)
    worker.after(LANE_STALL_ALERT_MS - 1)
    assert (caplog.records, worker.handed_over) == ([], [])
    del worker.pending[3, 10], worker.pending[4, ALL_LANES]
    worker.after(1)
    worker.after(1_000)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    told: Any = caplog.records[0]
    assert (told.shard, told.lane, told.stalled_ms) == (3, 9, LANE_STALL_ALERT_MS)

    worker.after(LANE_STALL_FAILOVER_MS - LANE_STALL_ALERT_MS - 1_001)
    assert worker.handed_over == []
    worker.after(1)
    worker.after(1_000)
    assert worker.handed_over == [3]

    worker.pending[3, 9] = 101
    worker.after(1_000)
    assert caplog.records[-1].message == "a lane moves again"
    assert worker.alarm.stalls == []
    worker.after(LANE_STALL_FAILOVER_MS)  # it stopped again: told and handed over again
    assert worker.handed_over == [3, 3]


async def test_the_watch_looks_by_itself_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.stalls._EVERY_S", 0.001)
    worker = Alarm()
    worker.alarm.start()
    worker.alarm.start()
    worker.pending = {(0, 1): 1}
    async with asyncio.timeout(5):
        while not worker.alarm.stalls:
            worker.now_ms += 10
            await asyncio.sleep(0.001)  # the watch has a clock of its own
    await worker.alarm.stop()
    await worker.alarm.stop()


def test_pending_is_what_the_log_has_and_what_chunks_are_unfinished() -> None:
    tp, idle, unread = TP("dispatch", 2), TP("dispatch", 3), TP("dispatch", 4)
    positions = AckLedger()
    positions.start(tp, 40)
    positions.start(idle, 9)
    ledger = LaneLedger([39] * LANE_COUNT)
    ledger.see(40)
    ledger.open(7, 40, chunks=2)
    free = LaneLedger([8] * LANE_COUNT)
    consumer: Any = SimpleNamespace(
        ledger=positions, inline=SimpleNamespace(ends=lambda: {tp: 44, idle: 9})
    )
    shards: Any = [
        SimpleNamespace(shard=at.partition, tp=at, pipeline=SimpleNamespace(ledger=own))
        for at, own in ((tp, ledger), (idle, free), (unread, free))
    ]
    assert pending_lanes(consumer, shards) == {(2, ALL_LANES): 40, (2, 7): 39}
