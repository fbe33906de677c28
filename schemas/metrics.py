"""What hot paths count in, and the page that Prometheus reads (OBS-01, OBS-02).

Counting is ours, showing is `prometheus_client`'s: its cells lock at each use and cost seven times as much as the two
classes here (docs/decisions/0010-metrics.md). A cell belongs to the process and is fetched once, at import or
construction; what can be read from a live object at any time is not counted at all but read by a source when the page is
asked for. Everything runs on the one event loop of a process, so nothing is locked.

    _DROPPED = counter("qim_push_dropped_total")          _WRITE = histogram("qim_table_write_us", "progress")
    _DROPPED.add(3)                                       _WRITE.observe(microseconds)
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from schemas.catalogue import CATALOGUE, Kind, Metric
from schemas.errors import Bug

__all__ = [
    "CONTENT_TYPE",
    "Counter",
    "Histogram",
    "MetricsPage",
    "Reading",
    "Source",
    "counter",
    "histogram",
    "now_us",
]

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Counter:
    """Grows only."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Count."""
        self.value += amount


class Histogram:
    """Counts by upper bound (inclusive), and the sum; observed once a page wherever possible."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @classmethod
    def of(cls, name: str) -> Histogram:
        """A histogram with the bounds that the catalogue has for `name`, known to nobody else."""
        return cls(_listed(name, Kind.HISTOGRAM, 0).bounds)

    def observe(self, value: float) -> None:
        """Count one value, in the unit of the metric's name."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound as text, values up to it), as Prometheus wants them."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class Reading(NamedTuple):
    """One value of one metric at the moment of the page; `labels` are values in the catalogue's order."""

    name: str
    value: float | Histogram
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Reading]]
"""Reads live objects when the page is asked for. Must be cheap and must not suspend."""

_counters: dict[tuple[str, tuple[str, ...]], Counter] = {}
_histograms: dict[tuple[str, tuple[str, ...]], Histogram] = {}


def now_us() -> float:
    """The clock of durations, microseconds. An event loop's own clock may have a resolution of 1 ms."""
    return time.perf_counter() * 1e6


def counter(name: str, *labels: str) -> Counter:
    """The process's counter of this name and these label values; raises Bug when the catalogue does not list it."""
    _listed(name, Kind.COUNTER, len(labels))
    return _counters.setdefault((name, labels), Counter())


def histogram(name: str, *labels: str) -> Histogram:
    """The process's histogram of this name and these label values; raises Bug when the catalogue does not list it."""
    metric = _listed(name, Kind.HISTOGRAM, len(labels))
    return _histograms.setdefault((name, labels), Histogram(metric.bounds))


def _listed(name: str, kind: Kind, labels: int | None) -> Metric:
    metric = CATALOGUE.get(name)
    if metric is None or metric.kind is not kind or len(metric.labels) != labels:
        raise Bug(f"{name} with {labels} labels is no {kind.value} of the catalogue")
    return metric


def _cells() -> Iterator[Reading]:
    for (name, labels), cell in _counters.items():
        yield Reading(name, cell.value, labels)
    for (name, labels), cells in _histograms.items():
        yield Reading(name, cells, labels)


class MetricsPage:
    """The page of one process (`process`: "gateway" or "worker"): its cells and what its sources read.

    Counters without labels are on the page from the start, so that an alarm on an always-zero metric has something to watch.
    """

    def __init__(self, process: str, sources: Iterable[Source] = ()) -> None:
        self.sources = [_cells, *sources]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace="qim", registry=self._registry)
        self._resting = tuple(
            metric.name
            for metric in CATALOGUE.values()
            if metric.process in (process, "both")
            and metric.kind is Kind.COUNTER
            and not metric.labels
            and not metric.name.startswith("qim_process_")
        )

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self._registry)

    def broken_promises(self) -> list[str]:
        """Always-zero metrics that are not zero (OBS-03); /healthz is 503 while there are any."""
        return sorted(
            {name for name, value in self._numbers() if CATALOGUE[name].always_zero and value}
        )

    def _numbers(self) -> Iterator[tuple[str, float]]:
        for source in self.sources:
            for name, value, _ in source():
                if not isinstance(value, Histogram):
                    yield name, value

    def collect(self) -> Iterator[_Family]:
        """Families for the registry; the interface of `prometheus_client`'s collectors."""
        found: dict[str, dict[tuple[str, ...], Reading]] = {
            name: {(): Reading(name, 0)} for name in self._resting
        }
        for source in self.sources:
            for reading in source():
                found.setdefault(reading.name, {})[reading.labels] = reading
        for name, series in found.items():
            yield _family(CATALOGUE[name], series.values())


def _family(metric: Metric, series: Iterable[Reading]) -> _Family:
    """One metric with all its series."""
    if metric.kind is Kind.HISTOGRAM:
        histograms = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for _, value, labels in series:
            if isinstance(value, Histogram):
                histograms.add_metric(labels, value.cumulative(), value.total)
        return histograms
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for _, value, labels in series:
        if not isinstance(value, Histogram):
            family.add_metric(labels, value)
    return family
