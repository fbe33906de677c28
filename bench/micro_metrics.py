"""What counting costs: one operation, one message of a gateway, one page of a stage, the lag probe, and a metrics page.

    python -m bench.micro_metrics

Shares are of the CPU that a message costs its process (design §2), the budget is 2 % (docs/decisions/0010-metrics.md).
"""

from __future__ import annotations

import argparse
import asyncio
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import prometheus_client
import uvloop

from gateway.metrics import GatewayMetrics
from schemas.metrics import Counter, Histogram, MetricsPage, Reading, now_us
from schemas.runtime_lag import RuntimeLag
from stores.paging import PagedStage

__all__ = ["main"]

_CALLS: Final = 100_000
_REPEATS: Final = 7
_GATEWAY_US: Final = 110.0  # CPU of one message, design §2
_SHARDS: Final = 64
_PROBE_S: Final = 2.0


def _cost_us(call: Callable[[], object]) -> float:
    """Cost of one call, the least disturbed run counts; without the cost of calling nothing."""
    empty = min(timeit.repeat(lambda: None, number=_CALLS, repeat=_REPEATS))
    taken = min(timeit.repeat(call, number=_CALLS, repeat=_REPEATS))
    return (taken - empty) / _CALLS * 1e6


def _operations() -> dict[str, float]:
    registry = prometheus_client.CollectorRegistry()
    theirs = prometheus_client.Counter("a", "a", registry=registry)
    bounds = Histogram.of("qim_runtime_lag_us").bounds
    their_histogram = prometheus_client.Histogram("b", "b", registry=registry, buckets=bounds)
    ours, our_histogram = Counter(), Histogram(bounds)
    return {
        "counter, prometheus_client": _cost_us(theirs.inc),
        "counter, ours": _cost_us(ours.add),
        "histogram, prometheus_client": _cost_us(lambda: their_histogram.observe(3_000)),
        "histogram, ours": _cost_us(lambda: our_histogram.observe(3_000)),
        "clock": _cost_us(now_us),
    }


def _message_us() -> float:
    """What a gateway does for one message: three counters, one latency, one more look at the clock."""
    metrics = GatewayMetrics()

    def count() -> None:
        metrics.sends += 1
        metrics.acks += 1
        metrics.pushed_events += 1
        metrics.send_ack_latency.observe(now_us() - 1e9)

    return _cost_us(count)


def _page_us() -> float:
    """What a stage does for one page: the clock three times and two histograms."""
    stage: PagedStage[int] = PagedStage("bench", _nothing, max_records=1)
    counter = stage.counter

    def count() -> None:
        begin_us = now_us()
        counter.wait.observe(begin_us - now_us())
        counter.process.observe(now_us() - begin_us)

    return _cost_us(count)


async def _nothing(page: list[int]) -> None:
    del page


async def _probe_share() -> float:
    """Share of a core that the runtime lag probe takes."""
    probe = RuntimeLag()
    begin_s = time.process_time()
    probe.start()
    await asyncio.sleep(_PROBE_S)
    probe.stop()
    return (time.process_time() - begin_s) / _PROBE_S


def _worker_page_ms() -> float:
    """A metrics page of a worker with many shards."""
    bounds = Histogram.of("qim_send_ack_latency_us").bounds[:10]
    cells = [Histogram(bounds) for _ in range(3 * _SHARDS)]
    names = (
        "qim_mailbox_dispatch_broker_to_enqueue_us",
        "qim_mailbox_dispatch_fifo_wait_us",
        "qim_mailbox_materialize_us",
    )

    def source() -> Iterator[Reading]:
        for at, cell in enumerate(cells):
            yield Reading(names[at % 3], cell, (str(at // 3),))
        for shard in range(_SHARDS):
            yield Reading("qim_consumer_lag_records", 0, ("qim.dispatch.v1", str(shard)))

    page = MetricsPage("worker", [source])
    return min(timeit.repeat(page.render, number=1, repeat=20)) * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; takes half a minute."""
    argparse.ArgumentParser(prog="bench.micro_metrics", description=__doc__).parse_args(argv)
    for name, cost_us in _operations().items():
        print(f"{name:30} {cost_us:7.3f} us")
    message_us, page_us = _message_us(), _page_us()
    share = message_us / _GATEWAY_US
    print(f"{'a message in a gateway':30} {message_us:7.3f} us, {share:.2%} of {_GATEWAY_US:g} us")
    print(f"{'a page in a stage':30} {page_us:7.3f} us")
    print(f"{'runtime lag probe':30} {uvloop.run(_probe_share()):7.2%} of a core")
    print(f"{f'metrics page of {_SHARDS} shards':30} {_worker_page_ms():7.1f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
