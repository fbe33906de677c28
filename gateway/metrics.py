"""What one gateway counts itself (OBS-05); what is read from its parts instead stands in gateway/readings.py.

Counters are plain attributes: `hub.metrics.sends += 1` is the cheapest way to count there is, and a gateway counts some of
them for every message (docs/decisions/0010-metrics.md). Names, labels and meanings stand in schemas/metrics.toml.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schemas.metrics import Histogram, Reading

__all__ = ["GatewayMetrics"]

_COUNTERS: Final = {
    "accepted": "qim_gateway_connections_accepted_total",
    "acks": "qim_gateway_acks_total",
    "batches": "qim_gateway_batches_total",
    "closed_by_error": "qim_gateway_closed_by_error_total",
    "kicked": "qim_gateway_kicked_total",
    "logins": "qim_gateway_logins_total",
    "pulls": "qim_gateway_pulls_total",
    "pushed_events": "qim_gateway_pushed_events_total",
    "pushes_dropped": "qim_gateway_pushes_dropped_total",
    "reading_paused": "qim_gateway_reading_paused_total",
    "refused_connections": "qim_gateway_connections_refused_total",
    "send_errors": "qim_gateway_send_errors_total",
    "sends": "qim_gateway_sends_total",
}


class GatewayMetrics:
    """Counters and histograms of one gateway."""

    __slots__ = (*_COUNTERS, "permit_wait", "send_ack_latency")

    accepted: int
    acks: int
    batches: int
    closed_by_error: int
    kicked: int
    logins: int
    pulls: int
    pushed_events: int
    pushes_dropped: int
    reading_paused: int
    refused_connections: int
    send_errors: int
    sends: int

    def __init__(self) -> None:
        for attribute in _COUNTERS:
            setattr(self, attribute, 0)
        self.send_ack_latency = Histogram.of("qim_send_ack_latency_us")
        self.permit_wait = Histogram.of("qim_writer_request_permit_wait_us")

    def readings(self) -> Iterator[Reading]:
        """A source of the metrics page."""
        for attribute, name in _COUNTERS.items():
            yield Reading(name, getattr(self, attribute))
        yield Reading("qim_send_ack_latency_us", self.send_ack_latency)
        yield Reading("qim_writer_request_permit_wait_us", self.permit_wait)
