"""`pair`: one rate for some seconds, measured at the clients and at the servers."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.judge import Verdict
from bench.latency import summarize_s
from bench.load import LoadOptions, PairLoad, Run
from bench.probes import Figures, compare, describe, take_snapshot
from bench.report import BenchConfig, PairReport
from bench.target import Target

__all__ = ["PairOptions", "build_report", "run_pair"]


@dataclass(frozen=True, slots=True)
class PairOptions:
    """One measured run: `warmup_s` at the same rate come before and are not counted."""

    rate_per_s: float
    seconds: float
    warmup_s: float = 5.0
    load: LoadOptions = LoadOptions()  # noqa: RUF009 - frozen


async def run_pair(target: Target, options: PairOptions, say: Callable[[str], None]) -> PairReport:
    """Log in, warm up, measure, judge. The servers' figures cover the measured schedule and its draining."""
    load = PairLoad(target.gateways, target.token, options.load)
    try:
        begun_s = time.perf_counter()
        await load.log_in()
        clients = 2 * options.load.pairs
        say(f"{clients} clients online after {time.perf_counter() - begun_s:.1f} s")
        if options.warmup_s > 0:
            await load.run(options.rate_per_s, options.warmup_s)
            load.forget()
        begin = await take_snapshot(target)
        client_begin_s = time.process_time()
        gc.collect()
        gc.disable()  # a pause of ours would count as theirs
        try:
            run = await load.run(options.rate_per_s, options.seconds)
        finally:
            gc.enable()
        client_cpu_s = time.process_time() - client_begin_s
        end = await take_snapshot(target)
        versions, fsync = await describe(target)
        config: BenchConfig = {
            "versions": versions,
            "shards": target.settings.mailbox_shard_count,
            "processes": dict(target.counts),
            "fsync": fsync,
            "cpus": os.cpu_count() or 0,
            "pairs": options.load.pairs,
            "rate_per_s": options.rate_per_s,
            "seconds": options.seconds,
            "warmup_s": options.warmup_s,
            "body_bytes": options.load.body_bytes,
            "pull_debounce_s": options.load.pull_debounce_s,
        }
        return build_report(run, load.judge(run), compare(begin, end), client_cpu_s, config)
    finally:
        await load.close()


def build_report(
    run: Run, verdict: Verdict, figures: Figures, client_cpu_s: float, config: BenchConfig
) -> PairReport:
    """Put a run's figures together; divisions by nothing are null."""
    cpu_s = sum(figures.server_cpu_s.values())
    delivered, offered = verdict.delivered, verdict.offered
    sending_s = max(run.sent_s - run.begun_s, 1e-9)
    return {
        "target_per_s": config["rate_per_s"],
        "offered_per_s": round(offered / max(sending_s, config["seconds"]), 2),
        "delivered_share": round(verdict.delivered_share, 6),
        "acked_share": round(verdict.acked / offered, 6) if offered else 0.0,
        "pushed_share": round(verdict.pushed / delivered, 6) if delivered else 0.0,
        "failed": run.failed,
        "duplicates": verdict.duplicates,
        "order_breaks": verdict.order_breaks,
        "strangers": verdict.strangers,
        "acked_not_delivered": len(verdict.acked_not_delivered),
        "ack_ms": summarize_s(verdict.ack_s),
        "e2e_ms": summarize_s(verdict.e2e_s),
        "late_ms": summarize_s(run.late_s),
        "server_cpu_ms_per_message": (
            round(cpu_s * 1000.0 / delivered, 4) if delivered and figures.server_cpu_s else None
        ),
        "server_cpu_s": figures.server_cpu_s,
        "client_cpu_s": round(client_cpu_s, 3),
        "foreign_cpu_s": round(max(0.0, figures.machine_cpu_s - cpu_s - client_cpu_s), 3),
        "evalsha_per_dispatch": (
            round(figures.evalsha_calls / figures.dispatches, 4) if figures.dispatches else None
        ),
        "dispatches": figures.dispatches,
        "redis_bytes_per_message": (
            round(figures.redis_bytes / delivered, 1) if delivered else None
        ),
        "page_records": figures.page_records,
        "pages": figures.pages,
        "window_s": round(run.ended_s - run.begun_s, 3),
        "config": config,
    }
