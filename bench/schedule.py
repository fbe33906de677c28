"""The open-loop schedule: when each message is due and who sends it, fixed before the run begins.

A server that stalls does not slow the schedule down. What could not be sent in time is still counted from the moment it
was due, so a stall shows in the latencies instead of hiding in a lower rate (coordinated omission).
Pure: the caller passes the time in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["OpenLoopSchedule", "PairTurn", "pair_turn"]


class PairTurn(NamedTuple):
    """Who sends message number `index`: the client numbers of both ends (pair k holds clients 2k and 2k+1)."""

    sender: int
    recipient: int


def pair_turn(index: int, pairs: int) -> PairTurn:
    """Spread messages over the pairs in turn; each pair's two ends take turns as the sender (LOAD-01: both send)."""
    if pairs < 1:
        raise ValueError(f"{pairs} pairs")
    lap, pair = divmod(index, pairs)
    first, second = 2 * pair, 2 * pair + 1
    return PairTurn(first, second) if lap % 2 == 0 else PairTurn(second, first)


@dataclass(slots=True)
class OpenLoopSchedule:
    """Messages 0..count-1 at an even `rate_per_s`, the first one due at `start_s` (any monotonic clock).

    `take_due(now)` hands out every message that has become due since the last call, each index once.
    """

    rate_per_s: float
    count: int
    start_s: float
    next_index: int = 0

    def __post_init__(self) -> None:
        if self.rate_per_s <= 0 or self.count < 0:
            raise ValueError(f"rate {self.rate_per_s}/s, count {self.count}")

    @classmethod
    def for_seconds(cls, rate_per_s: float, seconds: float, start_s: float) -> OpenLoopSchedule:
        """Return the schedule that offers `rate_per_s` for `seconds`."""
        return cls(rate_per_s, round(rate_per_s * seconds), start_s)

    @property
    def finished(self) -> bool:
        """Whether every message has been handed out."""
        return self.next_index >= self.count

    def due_at(self, index: int) -> float:
        """Return the moment message `index` is due; a multiplication, so long runs do not drift."""
        return self.start_s + index / self.rate_per_s

    def take_due(self, now_s: float) -> range:
        """Return the indices that became due up to and including `now_s`."""
        first = self.next_index
        reached = int((now_s - self.start_s) * self.rate_per_s) + 1 if now_s >= self.start_s else 0
        self.next_index = max(first, min(self.count, reached))
        return range(first, self.next_index)
