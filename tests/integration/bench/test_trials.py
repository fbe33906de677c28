"""Small trials on a real stack: lanes beside a wide dispatch, faults with their histories, overload with its judgement."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.checker import FAULTS
from bench.faults import FaultOptions, run_faults
from bench.history import read_histories
from bench.lanes import LaneOptions, run_lanes
from bench.overload import OverloadOptions, run_overload
from bench.target import target_of
from tests.conftest import StartStack

W_ADVANCE_P99_LIMIT_MS = 2000.0  # lane_watermark_advance_p99


def silent(_text: str) -> None:
    """No progress."""


@pytest.mark.contract("ACC-M1", "LANE-03", "LANE-04", "LANE-09", "LANE-10", "DP-02")
async def test_acc_m1_direct_messages_pass_a_dispatch_of_20_000_on_their_shard(
    start_stack: StartStack,
) -> None:
    target = target_of(await start_stack())
    report = await run_lanes(target, LaneOptions(20_000, repeats=2, quiet_s=1.0), silent)
    assert report["sound"], report  # every recipient has its entry, every direct message arrived
    assert report["light_messages"] >= 10  # there was something to wait for, and they did not
    assert report["light_w_advance_ms"]["p99"] <= W_ADVANCE_P99_LIMIT_MS
    assert report["light_w_advance_ms"]["p99"] < min(report["wide_dispatches_s"]) * 1000


@pytest.mark.contract("GATE-22", "GATE-06")
async def test_gate_22_a_short_fault_run_leaves_histories_that_prove_it_sound(
    start_stack: StartStack, tmp_path: Path
) -> None:
    stack = await start_stack()
    options = FaultOptions(seconds=20.0, seed=15, rate_per_s=60.0, pairs=6)
    report = await run_faults(stack, options, tmp_path, silent)
    assert report["sound"], report
    assert {name: report[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert report["sent"] == report["acknowledged"] == 1200
    assert report["kills"] == {"gateway-0": 2, "worker-0": 1}  # what this seed does to these names
    assert report["wiped"] == {"worker-0": 1}
    histories = list(read_histories(tmp_path))
    assert len(histories) == 6 * 3
    shown = sum(event["kind"] == "show" for history in histories for event in history)
    assert shown == 3 * 1200  # both devices of the one side, and the other side


@pytest.mark.contract("COM-17", "REG-16")
async def test_overload_loses_nothing_that_was_accepted_and_passes(start_stack: StartStack) -> None:
    target = target_of(await start_stack())
    options = OverloadOptions(base_per_s=1000.0, seconds=4.0, pairs=10, warmup_s=1.0)
    report = await run_overload(target, options, silent)
    assert report["sound"], {name: report[name] for name in report if name != "rss_mb"}
    offered = round(options.base_per_s * options.factor * options.seconds)
    assert report["accepted"] + report["refused"] + report["left_with_clients"] == offered
    assert {"gateway-0", "worker-0"} <= set(report["rss_mb"])
