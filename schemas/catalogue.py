"""The list of all metrics, read from `metrics.toml` once at import; damage there ends the start."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any, Final

from schemas.errors import Bug

__all__ = ["CATALOGUE", "LABELS", "Kind", "Metric", "read_catalogue"]

# A page takes from 0.2 ms (idle) to some 100 ms (a store that stalls); 10 s is the last limit of any single call. The
# bounds hold the limits of the contract: 150 ms (GATE-01), 2 s (ACC-M1).
_LATENCY_US: Final = (
    *(100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 150_000, 250_000),
    *(500_000, 1_000_000, 2_000_000, 10_000_000),
)
# A shard has three histograms and a worker many shards: fewer bounds keep the page small.
_SEGMENT_US: Final = (
    *(1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000),
    *(500_000, 2_000_000, 10_000_000),
)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_PROCESSES: Final = ("gateway", "worker", "both")
_UNITS: Final = {"us": "µs", "ms": "ms", "bytes": "bytes", "seconds": "s", "records": "records"}


class Kind(Enum):
    """What the value of a metric does."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `process` is "gateway", "worker" or "both"; `bounds` are a histogram's upper bounds in its unit.

    `alarm` is the rule that wakes somebody, "" where the metric only explains others. An `always_zero` counter that is not
    zero turns /healthz to 503 (OBS-02, OBS-03).
    """

    name: str
    kind: Kind
    process: str
    meaning: str
    labels: tuple[str, ...] = ()
    alarm: str = ""
    bounds: tuple[int, ...] = ()
    always_zero: bool = False

    @property
    def unit(self) -> str:
        """The unit, as the ending of the name says."""
        return _UNITS.get(self.name.removesuffix("_total").rpartition("_")[2], "count")


# kind in the file -> kind, bounds, always zero
_KINDS: Final[Mapping[str, tuple[Kind, tuple[int, ...], bool]]] = {
    "counter": (Kind.COUNTER, (), False),
    "always_zero": (Kind.COUNTER, (), True),
    "gauge": (Kind.GAUGE, (), False),
    "latency": (Kind.HISTOGRAM, _LATENCY_US, False),
    "segment": (Kind.HISTOGRAM, _SEGMENT_US, False),
    "sizes": (Kind.HISTOGRAM, _SIZES, False),
}


def read_catalogue(text: str) -> tuple[dict[str, str], dict[str, Metric]]:
    """Labels (name -> what bounds its values) and metrics (name -> metric) of a catalogue file; raises Bug on damage."""
    try:
        document: dict[str, Any] = tomllib.loads(text)
        labels: dict[str, str] = document["labels"]
        metrics = {name: _metric(name, entry) for name, entry in document["metrics"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise Bug(f"metrics.toml: {error!r}") from error
    for metric in metrics.values():
        _check(metric, labels)
    return labels, metrics


def _metric(name: str, entry: dict[str, Any]) -> Metric:
    kind, bounds, always_zero = _KINDS[entry.pop("kind")]
    labels = tuple(entry.pop("labels", ()))
    return Metric(
        name=name, kind=kind, bounds=bounds, always_zero=always_zero, labels=labels, **entry
    )


def _check(metric: Metric, labels: Mapping[str, str]) -> None:
    """OBS-01: prefix and labels; and the endings that Prometheus goes by."""
    wrong = (
        not metric.name.startswith("qim_")
        or metric.process not in _PROCESSES
        or not set(metric.labels) <= labels.keys()
        or (metric.kind is Kind.COUNTER) != metric.name.endswith("_total")
    )
    if wrong:
        raise Bug(f"metrics.toml: {metric.name} breaks a rule of names, labels or processes")


LABELS, CATALOGUE = read_catalogue(files("schemas").joinpath("metrics.toml").read_text("utf-8"))
