"""Small benchmark runs on a real stack: every figure is there, and nothing is lost, doubled or out of order."""

from __future__ import annotations

import pytest

from bench.load import LoadOptions
from bench.offline import OfflineOptions, run_offline
from bench.pair import PairOptions, run_pair
from bench.report import check_report
from bench.target import target_of
from tests.conftest import StartStack


def silent(_text: str) -> None:
    """No progress."""


@pytest.mark.contract("LOAD-01", "LOAD-03", "REG-38")
async def test_pair_and_offline_runs_on_one_stack(start_stack: StartStack) -> None:
    stack = await start_stack()
    target = target_of(stack)
    options = PairOptions(100.0, 2.0, 1.0, LoadOptions(pairs=4, drain_s=20.0))
    for _ in range(2):  # the second run meets a store that is not empty
        report = await run_pair(target, options, silent)
        assert check_report(report) == []
        assert report["delivered_share"] == 1.0
        assert report["acked_share"] == 1.0
        assert (report["duplicates"], report["order_breaks"], report["strangers"]) == (0, 0, 0)
        assert report["dispatches"] >= 200
        assert {"gateway", "worker"} <= set(report["server_cpu_s"])
        assert {"fanout", "mailbox.append", "commit.reserve"} <= set(report["page_records"])
        assert report["evalsha_per_dispatch"] is not None
    offline = await run_offline(target, OfflineOptions(messages=300, repeats=2), silent)
    assert (offline["missing"], offline["duplicates"], offline["order_breaks"]) == (0, 0, 0)
    assert offline["messages_per_s"] > 0
