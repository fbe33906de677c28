"""Is the connection alive, and when to dial the next one? Pure: time is passed in.

A PING is due when the server's interval has passed (GW-08) or when a message is overdue (GW-09); its PONG must come within
what is left of the detection limit, so that a dead path is known at most `detection_limit_s` after the message was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from clients.config import ClientConfig

__all__ = ["Dialling", "Liveness"]


class Liveness:
    """Deadlines of one connection; `inf` where nothing is awaited."""

    __slots__ = ("_config", "_login_limit_s", "_ping_due_s", "_pong_limit_s")

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.connection_lost()

    def connection_lost(self) -> None:
        """Nothing is awaited any more."""
        self._login_limit_s = self._ping_due_s = self._pong_limit_s = inf

    def connection_made(self, now_s: float) -> None:
        """The login begins; each of its answers must come within the detection limit."""
        self._login_limit_s = now_s + self._config.detection_limit_s

    def login_answered(self, now_s: float) -> None:
        """The login goes on."""
        if self._login_limit_s < inf:
            self.connection_made(now_s)

    def online(self) -> None:
        """The login is over."""
        self._login_limit_s = inf

    def ping_in(self, now_s: float, interval_ms: int) -> None:
        """The server named the interval to its next PING."""
        self._ping_due_s = now_s + interval_ms / 1000.0

    def take_ping(self, now_s: float, *, probe: bool) -> bool:
        """Whether to send a PING now; while one is in flight, its PONG answers the probe as well."""
        if not probe and self._ping_due_s > now_s:
            return False
        self._ping_due_s = inf
        if self._pong_limit_s < inf:
            return False
        self._pong_limit_s = now_s + self._config.detection_limit_s - self._config.ack_timeout_s
        return True

    def pong(self) -> None:
        """The PONG came."""
        self._pong_limit_s = inf

    def given_up(self, now_s: float) -> bool:
        """Whether an answer is too late."""
        return min(self._login_limit_s, self._pong_limit_s) <= now_s

    def deadline_s(self) -> float:
        """Return when `take_ping` or `given_up` would answer differently."""
        return min(self._login_limit_s, self._ping_due_s, self._pong_limit_s)


class Dialling:
    """When to dial: at once for the first time, after each failure later, up to the longest pause."""

    __slots__ = ("_delays_s", "_failures", "due_s")

    def __init__(self, delays_s: Sequence[float]) -> None:
        self.due_s = inf
        self._delays_s = delays_s
        self._failures = 0

    def at(self, moment_s: float) -> None:
        """Dial at this moment."""
        self.due_s = moment_s

    def cancel(self) -> None:
        """Do not dial: it is being done, or nobody wants it any more."""
        self.due_s = inf

    def failed(self, now_s: float) -> None:
        """A dial or a connection failed; the next one comes after a pause."""
        self.due_s = now_s + self._delays_s[min(self._failures, len(self._delays_s) - 1)]
        self._failures += 1

    def succeeded(self) -> None:
        """A login came through: pauses begin short again."""
        self._failures = 0
