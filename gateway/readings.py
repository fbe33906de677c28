"""What is read from the living parts of a gateway when its metrics page is asked for: depths, lags, states (OBS-07)."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.connections import ConnectionRegistry
from gateway.follower import Follower
from gateway.hub import Hub
from gateway.login import LoginDesk
from gateway.mailbox import MailboxReader
from gateway.pushes import PushRouter
from gateway.writer import ConversationWriter
from schemas.metrics import Reading

__all__ = ["GatewayReadings"]


class GatewayReadings:
    """A source of the metrics page; `hub` is None until the gateway listens."""

    def __init__(
        self,
        *,
        writer: ConversationWriter,
        follower: Follower,
        registry: ConnectionRegistry,
        router: PushRouter,
        reader: MailboxReader,
        desk: LoginDesk,
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._registry = registry
        self._router = router
        self._reader = reader
        self._desk = desk
        self.hub: Hub | None = None

    def __call__(self) -> Iterator[Reading]:
        """The values of this moment."""
        hub, writer = self.hub, self._writer
        yield Reading("qim_gateway_connections", len(hub.connections) if hub else 0)
        yield Reading("qim_gateway_starved_connections", hub.starved if hub else 0)
        yield Reading("qim_gateway_blocked_connections", hub.blocked if hub else 0)
        yield Reading("qim_gateway_devices", len(self._registry))
        yield Reading("qim_gateway_backend_queue_depth", writer.queue_depth)
        yield Reading("qim_writer_requests_inflight", writer.inflight)
        yield Reading("qim_gateway_commits_recovered_total", writer.recovered)
        yield Reading("qim_producer_pending_batches", writer.pending_batches)
        yield Reading("qim_gateway_pull_queue_depth", self._reader.depth)
        yield Reading("qim_gateway_login_queue_depth", self._desk.depth)
        yield Reading("qim_gateway_held_pushes", self._router.held)
        yield Reading("qim_gateway_held_pushes_dropped_total", self._router.dropped)
        yield Reading("qim_gateway_bad_records_total", self._follower.bad_records)
        for partition, lag in self._follower.lags():
            labels = (partition.topic, str(partition.partition))
            yield Reading("qim_consumer_lag_records", lag, labels)
