from __future__ import annotations

import copy

import pytest

from bench.ladder import LadderOptions, climb, shortfalls
from bench.latency import LatencySummary
from bench.report import PairReport
from tests.support.bench_reports import make_report


def with_p99(report: PairReport, name: str, p99: float) -> PairReport:
    changed = copy.deepcopy(report)
    latency: LatencySummary = {"p50": 1.0, "p95": 2.0, "p99": p99, "max": p99}
    if name == "ack_ms":
        changed["ack_ms"] = latency
    else:
        changed["e2e_ms"] = latency
    return changed


def test_run_within_every_limit_passes() -> None:
    assert shortfalls(make_report()) == []


def judged_around(name: str, limit: float) -> None:
    assert shortfalls(with_p99(make_report(), name, limit)) == []
    (short,) = shortfalls(with_p99(make_report(), name, limit + 0.1))
    assert short.startswith(name)


@pytest.mark.contract("GATE-01")
def test_gate_01_ack_p99_above_150_ms_is_no_pass() -> None:
    judged_around("ack_ms", 150.0)


@pytest.mark.contract("GATE-02")
def test_gate_02_e2e_p99_above_300_ms_is_no_pass() -> None:
    judged_around("e2e_ms", 300.0)


@pytest.mark.contract("LOAD-05")
def test_rate_that_was_not_offered_fails_whatever_the_latency() -> None:
    report = make_report()
    report["offered_per_s"] = 98.9
    assert [short.split()[0] for short in shortfalls(report)] == ["offered_per_s"]


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("delivered_share", 0.98, "delivered_share"),
        ("duplicates", 1, "duplicates"),
        ("order_breaks", 1, "order_breaks"),
        ("strangers", 1, "strangers"),
        ("ack_ms", {"p50": None, "p95": None, "p99": None, "max": None}, "ack_ms"),
    ],
)
def test_each_fault_is_named(field: str, value: object, named: str) -> None:
    report = make_report()
    report[field] = value  # type: ignore[literal-required]
    assert [short.split()[0] for short in shortfalls(report)] == [named]


def test_run_of_less_than_twenty_seconds_is_no_pass() -> None:
    report = make_report()
    report["config"]["seconds"] = 10.0
    assert [short.split()[0] for short in shortfalls(report)] == ["seconds"]


class Machine:
    """A stack that carries `limit` messages a second, and the rates it was asked for."""

    def __init__(self, limit: float, flukes: int = 0) -> None:
        self.limit = limit
        self.flukes = flukes
        self.asked: list[float] = []

    async def measure(self, rate: float) -> PairReport:
        self.asked.append(rate)
        report = make_report(rate)
        if self.flukes:
            self.flukes -= 1
            return with_p99(report, "e2e_ms", 999.0)
        return report if rate <= self.limit else with_p99(report, "ack_ms", 999.0)


def silent(_text: str) -> None:
    """No progress."""


async def test_climb_stops_above_the_limit_and_tries_half_a_step() -> None:
    machine = Machine(1800.0)
    result = await climb(LadderOptions(500, 500, 5000), machine.measure, silent)
    assert result["top_per_s"] == 1750.0
    assert machine.asked == [500, 1000, 1500, 2000, 2000, 1750]
    assert [step["rate_per_s"] for step in result["steps"]] == machine.asked
    assert [bool(step["short_of"]) for step in result["steps"]] == [0, 0, 0, 1, 1, 0]


async def test_one_fluke_does_not_end_the_climb() -> None:
    machine = Machine(1000.0, flukes=1)
    result = await climb(LadderOptions(500, 500, 1000), machine.measure, silent)
    assert result["top_per_s"] == 1000.0
    assert machine.asked == [500, 500, 1000]


async def test_stack_that_carries_nothing_has_no_top() -> None:
    result = await climb(LadderOptions(500, 500, 1000), Machine(0.0).measure, silent)
    assert result["top_per_s"] == 0.0


async def test_climb_ends_at_its_own_maximum() -> None:
    machine = Machine(1e9)
    result = await climb(LadderOptions(500, 500, 1200), machine.measure, silent)
    assert result["top_per_s"] == 1000.0
