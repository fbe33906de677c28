"""Latency figures: percentiles by nearest rank over samples that were counted from when each message was due.

Pure arithmetic: no clock, no I/O. Seconds come in, milliseconds go out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

__all__ = ["LatencySummary", "percentile", "summarize_s"]


class LatencySummary(TypedDict):
    """Milliseconds; every field is None where there was not one sample (a zero would look like a good result)."""

    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of samples already in ascending order.

    Nearest rank never interpolates, so the answer is always a latency that some message really had.

    Raises ValueError for no samples or a share outside (0, 1].
    """
    if not ordered:
        raise ValueError("no samples")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share {share} is outside (0, 1]")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize_s(samples_s: Sequence[float]) -> LatencySummary:
    """Summarize latencies given in seconds, in any order, as milliseconds rounded to a microsecond."""
    if not samples_s:
        return {"p50": None, "p95": None, "p99": None, "max": None}
    ordered = sorted(samples_s)

    def ms(share: float) -> float:
        return round(percentile(ordered, share) * 1000.0, 3)

    return {"p50": ms(0.50), "p95": ms(0.95), "p99": ms(0.99), "max": ms(1.0)}
