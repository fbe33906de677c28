"""A benchmark report that passes every limit, for tests that spoil it."""

from bench.judge import Verdict
from bench.load import Run
from bench.pair import build_report
from bench.probes import Figures
from bench.report import BenchConfig, PairReport
from bench.schedule import OpenLoopSchedule

__all__ = ["FIGURES", "make_report"]

FIGURES = Figures(
    server_cpu_s={"gateway": 0.6, "worker": 0.4},
    machine_cpu_s=3.0,
    page_records={"fanout": 2.5},
    pages={"fanout": 10},
    evalsha_calls=300,
    redis_bytes=2_000_000,
    dispatches=3000,
)


def make_report(
    rate_per_s: float = 100.0, verdict: Verdict | None = None, figures: Figures = FIGURES
) -> PairReport:
    """The report of a run of 20 s; without `verdict` everything arrived within 20 ms."""
    count = round(rate_per_s * 20)
    schedule = OpenLoopSchedule(rate_per_s, count, 0.0)
    run = Run(b"n" * 16, schedule, [0.0] * count, begun_s=0.0, sent_s=20.0, ended_s=20.5)
    run.late_s = [0.001, 0.003]
    whole = Verdict(
        offered=count,
        acked=count,
        delivered=count,
        pushed=count - count // 200,
        ack_s=[0.01],
        e2e_s=[0.02],
    )
    config: BenchConfig = {
        "versions": {"python": "3.11"},
        "shards": 8,
        "processes": {"gateway": 1},
        "fsync": {"commit-0": "always"},
        "cpus": 2,
        "pairs": 50,
        "rate_per_s": rate_per_s,
        "seconds": 20.0,
        "warmup_s": 5.0,
        "body_bytes": 64,
        "pull_debounce_s": 1.0,
    }
    return build_report(run, verdict or whole, figures, 1.25, config)
