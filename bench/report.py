"""The shape of a benchmark's JSON, and the check that what is written has it.

Whoever compares runs reads these files, so a field is never dropped silently: a figure that could not be taken is null, and
`check_report` refuses a report with a field missing, of the wrong kind, or negative.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypedDict

from bench.latency import LatencySummary

__all__ = ["BenchConfig", "PairReport", "check_report", "write_report"]

CPU_GROUPS: Final = ("gateway", "worker", "redis", "broker")


class BenchConfig(TypedDict):
    """What was measured: without it no figure means anything."""

    versions: dict[str, str]
    shards: int
    processes: dict[str, int]
    fsync: dict[str, str]
    cpus: int
    pairs: int
    rate_per_s: float
    seconds: float
    warmup_s: float
    body_bytes: int
    pull_debounce_s: float


class PairReport(TypedDict):
    """One run of `qim bench pair`. Latencies count from when a message was due; CPU is of the measured window.

    `pushed_share` is how much of what was delivered came by push rather than by the pull that follows it. `foreign_cpu_s` is
    what everything else on the machine used meanwhile: a run beside other work says little about latency (LOAD-06).
    `late_ms` is how late the generator itself was, which the two latencies contain.
    """

    target_per_s: float
    offered_per_s: float
    delivered_share: float
    acked_share: float
    pushed_share: float
    failed: int
    duplicates: int
    order_breaks: int
    strangers: int
    acked_not_delivered: int
    ack_ms: LatencySummary
    e2e_ms: LatencySummary
    late_ms: LatencySummary
    server_cpu_ms_per_message: float | None
    server_cpu_s: dict[str, float]
    client_cpu_s: float
    foreign_cpu_s: float
    evalsha_per_dispatch: float | None
    dispatches: int
    redis_bytes_per_message: float | None
    page_records: dict[str, float]
    pages: dict[str, int]
    window_s: float
    config: BenchConfig


_COUNTS: Final = (
    "failed",
    "duplicates",
    "order_breaks",
    "strangers",
    "acked_not_delivered",
    "dispatches",
)
_NUMBERS: Final = (
    "target_per_s",
    "offered_per_s",
    "delivered_share",
    "acked_share",
    "pushed_share",
    "client_cpu_s",
    "foreign_cpu_s",
    "window_s",
)
_MAYBE: Final = ("server_cpu_ms_per_message", "evalsha_per_dispatch", "redis_bytes_per_message")
_BY_NAME: Final = ("server_cpu_s", "page_records", "pages")
_LATENCIES: Final = ("ack_ms", "e2e_ms", "late_ms")


def check_report(report: Mapping[str, object]) -> list[str]:
    """Return what is wrong with a pair report; empty when nothing is."""
    wrong = [
        f"missing {name}" for name in PairReport.__annotations__ if name not in report
    ]  # every field of the type, so that adding one there is enough
    wrong += [f"{name} is not a count" for name in _COUNTS if not _is_count(report.get(name))]
    wrong += [f"{name} is not a number" for name in _NUMBERS if not _is_number(report.get(name))]
    wrong += [
        f"{name} is neither a number nor null"
        for name in _MAYBE
        if report.get(name) is not None and not _is_number(report[name], negative=True)
    ]
    for name in _BY_NAME:
        values = report.get(name)
        if not isinstance(values, dict) or not all(map(_is_number, values.values())):
            wrong.append(f"{name} is not numbers by name")
    for name in _LATENCIES:
        wrong += _check_latency(name, report.get(name))
    return wrong


def _check_latency(name: str, value: object) -> list[str]:
    if not isinstance(value, dict) or set(value) != set(LatencySummary.__annotations__):
        return [f"{name} does not have exactly p50, p95, p99, max"]
    figures = [value[key] for key in ("p50", "p95", "p99", "max")]
    if all(figure is None for figure in figures):
        return []
    if not all(map(_is_number, figures)):
        return [f"{name} holds something that is no number"]
    return [] if figures == sorted(figures) else [f"{name} does not grow from p50 to max"]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object, *, negative: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    return negative or value >= 0


def write_report(path: Path, report: Mapping[str, object]) -> None:
    """Write a report as JSON, creating its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
