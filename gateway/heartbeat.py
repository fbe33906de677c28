"""The adaptive heartbeat of one connection (GW-08): pure, time is passed in.

The interval starts at 60 s. Each PING that arrives in time shows that the path keeps idle connections at least that long, so
the next interval doubles, up to 120 s in the foreground and 240 s in the background; coming to the foreground lowers it at
once. Any frame is a sign of life; silence beyond the timeout of the last PONG closes the connection.
"""

from __future__ import annotations

from typing import Final

from schemas.constants import (
    HEARTBEAT_BACKGROUND_CAP_S,
    HEARTBEAT_FOREGROUND_CAP_S,
    HEARTBEAT_START_S,
)

__all__ = ["GRACE_MS", "Heartbeat"]

GRACE_MS: Final = 30_000
"""Silence allowed past a due PING. Shorter cuts off phones whose radio sleeps through one PING; longer keeps dead sockets."""


class Heartbeat:
    """Interval and deadline of one connection. All times are milliseconds of one monotonic clock."""

    __slots__ = ("heard_ms", "interval_ms")

    def __init__(self, now_ms: int) -> None:
        self.interval_ms = HEARTBEAT_START_S * 1000
        self.heard_ms = now_ms

    @property
    def timeout_ms(self) -> int:
        """How long the server waits for any frame before it closes; told to the client in PONG."""
        return self.interval_ms + GRACE_MS

    @property
    def deadline_ms(self) -> int:
        """The moment from which silence counts as death."""
        return self.heard_ms + self.timeout_ms

    def ping(self, now_ms: int, *, foreground: bool) -> None:
        """Take one PING: sign of life, and a longer interval within the cap of the client's mode."""
        self.heard_ms = now_ms
        cap_s = HEARTBEAT_FOREGROUND_CAP_S if foreground else HEARTBEAT_BACKGROUND_CAP_S
        self.interval_ms = min(self.interval_ms * 2, cap_s * 1000)
