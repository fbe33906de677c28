from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.judge import Verdict
from bench.probes import Figures
from bench.report import PairReport, check_report, write_report
from tests.support.bench_reports import make_report

ISSUE_FIELDS = {
    "offered_per_s",
    "delivered_share",
    "duplicates",
    "order_breaks",
    "ack_ms",
    "e2e_ms",
    "server_cpu_ms_per_message",
    "server_cpu_s",
    "client_cpu_s",
    "evalsha_per_dispatch",
    "redis_bytes_per_message",
    "page_records",
    "config",
}


def test_report_has_every_promised_field_and_nothing_wrong() -> None:
    report = make_report()
    assert set(report) >= ISSUE_FIELDS
    assert check_report(report) == []


def test_figures_are_divided_by_what_they_belong_to() -> None:
    report = make_report()
    assert report["offered_per_s"] == 100.0
    assert report["server_cpu_ms_per_message"] == 0.5  # 1 s of CPU, 2000 messages
    assert report["evalsha_per_dispatch"] == 0.1
    assert report["redis_bytes_per_message"] == 1000.0
    assert report["pushed_share"] == 0.995
    assert report["foreign_cpu_s"] == 0.75  # 3 s of the machine, 1 s of servers, 1.25 s of ours
    assert report["ack_ms"]["p99"] == 10.0
    assert report["late_ms"]["max"] == 3.0


def test_run_without_deliveries_is_null_and_not_zero() -> None:
    nothing = Figures({}, 0.0, {}, {}, 0, 0, 0)
    report = make_report(verdict=Verdict(offered=2000), figures=nothing)
    assert check_report(report) == []
    assert report["delivered_share"] == 0.0
    assert report["server_cpu_ms_per_message"] is None
    assert report["evalsha_per_dispatch"] is None
    assert report["ack_ms"]["p99"] is None


@pytest.mark.parametrize("field", sorted(PairReport.__annotations__))
def test_missing_field_is_found(field: str) -> None:
    report: dict[str, Any] = dict(make_report())
    del report[field]
    assert f"missing {field}" in check_report(report)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("duplicates", -1),
        ("duplicates", 1.5),
        ("order_breaks", True),
        ("offered_per_s", "100"),
        ("offered_per_s", float("nan")),
        ("delivered_share", -0.1),
        ("client_cpu_s", None),
        ("evalsha_per_dispatch", "few"),
        ("server_cpu_s", {"gateway": "much"}),
        ("page_records", None),
        ("ack_ms", {"p50": 1.0, "p95": 2.0, "p99": 3.0}),
        ("ack_ms", {"p50": 3.0, "p95": 2.0, "p99": 3.0, "max": 4.0}),
        ("e2e_ms", {"p50": "fast", "p95": 2.0, "p99": 3.0, "max": 4.0}),
        ("e2e_ms", {"p50": None, "p95": 2.0, "p99": 3.0, "max": 4.0}),
    ],
)
def test_field_of_the_wrong_kind_is_found(field: str, value: object) -> None:
    report: dict[str, Any] = dict(make_report())
    report[field] = value
    assert any(wrong.startswith(field) for wrong in check_report(report))


def test_report_is_written_as_json_in_a_new_folder(tmp_path: Path) -> None:
    report = make_report()
    path = tmp_path / "results" / "pair.json"
    write_report(path, report)
    assert json.loads(path.read_text()) == json.loads(json.dumps(report))
