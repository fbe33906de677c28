"""Counters of one gateway process in Prometheus text (OBS-01, OBS-02); labels never name users or messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

__all__ = ["ALWAYS_ZERO", "GatewayMetrics", "Histogram"]

ALWAYS_ZERO: Final = ("qim_gateway_backend_dropped_total",)
"""Metrics that stop a release when they are not zero (OBS-04, REG-17)."""

_BOUNDS_US: Final = (
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    150_000,
    250_000,
    1_000_000,
)


class Histogram:
    """Cumulative histogram over fixed upper bounds in microseconds."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_US) + 1)
        self.total_us = 0

    def observe(self, value_us: int) -> None:
        """Count one value."""
        self.counts[bisect_left(_BOUNDS_US, value_us)] += 1
        self.total_us += value_us

    def render(self, name: str) -> list[str]:
        """Prometheus lines of this histogram."""
        lines, seen = [f"# TYPE {name} histogram"], 0
        for bound, count in zip((*_BOUNDS_US, "+Inf"), self.counts, strict=True):
            seen += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {seen}')
        return [*lines, f"{name}_sum {self.total_us}", f"{name}_count {seen}"]


class GatewayMetrics:
    """Everything a gateway counts; gauges are read when the page is rendered."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refused_connections = 0
        self.logins = 0
        self.sends = 0
        self.acks = 0
        self.send_errors = 0
        self.pulls = 0
        self.batches = 0
        self.pushed_events = 0
        self.pushes_dropped = 0
        self.kicked = 0
        self.closed_by_error = 0
        self.reading_paused = 0
        self.backend_dropped = 0
        self.send_round_trip = Histogram()
        self.runtime_lag = Histogram()
        self.gauges: dict[str, Callable[[], int]] = {}

    def counters(self) -> dict[str, int]:
        """Counter values by metric name."""
        return {
            "qim_gateway_connections_accepted_total": self.accepted,
            "qim_gateway_connections_refused_total": self.refused_connections,
            "qim_gateway_logins_total": self.logins,
            "qim_gateway_sends_total": self.sends,
            "qim_gateway_acks_total": self.acks,
            "qim_gateway_send_errors_total": self.send_errors,
            "qim_gateway_pulls_total": self.pulls,
            "qim_gateway_batches_total": self.batches,
            "qim_gateway_pushed_events_total": self.pushed_events,
            "qim_gateway_pushes_dropped_total": self.pushes_dropped,
            "qim_gateway_kicked_total": self.kicked,
            "qim_gateway_closed_by_error_total": self.closed_by_error,
            "qim_gateway_reading_paused_total": self.reading_paused,
            "qim_gateway_backend_dropped_total": self.backend_dropped,
        }

    def broken_promises(self) -> list[str]:
        """Always-zero metrics that are not zero (OBS-03)."""
        values = self.counters()
        return [name for name in ALWAYS_ZERO if values[name]]

    def render(self) -> str:
        """The page for /metrics."""
        lines: list[str] = []
        for name, value in self.counters().items():
            lines += [f"# TYPE {name} counter", f"{name} {value}"]
        for name, read in self.gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {read()}"]
        lines += self.send_round_trip.render("qim_gateway_send_round_trip_us")
        lines += self.runtime_lag.render("qim_runtime_lag_us")
        return "\n".join(lines) + "\n"
