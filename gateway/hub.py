"""What the connections of one gateway share: services, limits, and the two queues between them and the loop.

Answers and pushes that become ready in one loop pass leave in one `write` per connection. Connections that wait for commit
capacity stand in one line, so that a busy one cannot keep the others out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gateway.connections import ConnectionRegistry
from gateway.limits import GatewayLimits
from gateway.login import LoginDesk
from gateway.mailbox import MailboxReader
from gateway.metrics import GatewayMetrics
from gateway.ports import Committer

__all__ = ["Hub", "Socket", "monotonic_us"]


def monotonic_us() -> int:
    """The clock of heartbeats and round trips, microseconds."""
    return time.monotonic_ns() // 1000


class Socket(Protocol):
    """A connection as the hub sees it."""

    def write_out(self) -> None:
        """Write once."""

    def go_on(self) -> None:
        """Act on what waited for commit capacity."""

    def check(self, now_ms: int) -> None:
        """Judge the passing of time."""

    def drain(self) -> None:
        """Let answers in flight leave, take nothing new."""

    def abort(self) -> None:
        """Tear down."""


class Hub:
    """Shared by all connections of a process; bound to the running loop at construction."""

    def __init__(
        self,
        *,
        limits: GatewayLimits,
        committer: Committer,
        desk: LoginDesk,
        reader: MailboxReader,
        registry: ConnectionRegistry,
        metrics: GatewayMetrics,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self.limits = limits
        self.committer = committer
        self.desk = desk
        self.reader = reader
        self.registry = registry
        self.metrics = metrics
        self.now_us = now_us
        self.connections: set[Socket] = set()
        self.blocked = 0  # connections whose peer does not take bytes now
        self.draining = False
        self._dirty: set[Socket] = set()
        self._starved: deque[Socket] = deque()
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """The same clock in milliseconds."""
        return self.now_us() // 1000

    def schedule_write(self, connection: Socket) -> None:
        """Have `connection` write once at the end of this loop pass."""
        if not self._dirty:
            self._loop.call_soon(self._write_all)
        self._dirty.add(connection)

    def _write_all(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for connection in dirty:
            connection.write_out()

    def starve(self, connection: Socket) -> None:
        """Put `connection` at the end of the line for commit capacity."""
        self._starved.append(connection)

    def feed_starved(self) -> None:
        """Capacity came back: serve the line in order, each connection until it or the capacity is used up."""
        for _ in range(len(self._starved)):
            if not self.committer.has_capacity:
                return
            self._starved.popleft().go_on()

    @property
    def starved(self) -> int:
        """Connections that wait for commit capacity."""
        return len(self._starved)
