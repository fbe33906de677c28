"""Which partitions may be fetched: one is open only while nothing keeps it closed.

Several parts stop the flow of a partition for reasons of their own (its start offset is not known yet, Faust pauses it
while it recovers tables, a shard's queue is full). Each closes and opens in its own name, so that none of them can
open what another one still holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from faust.types import TP

__all__ = ["Gates", "Reason"]


class Reason(Enum):
    """Why a partition is not fetched."""

    START = "its start offset is not known yet"  # TAKE-07: nothing may pass before the seek
    FAUST = "paused by Faust"
    BUFFER = "the agent's queue is full"
    HOLD = "its shard holds it"  # FAN-10
    SEEK = "it is being repositioned"
    PACE = "the next page is not due yet"
    GATHER = "what follows from the last page is being written"


class Gates:
    """The closed partitions and their reasons. Pure bookkeeping; the caller pauses and resumes fetching."""

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed: dict[TP, set[Reason]] = {}

    def close(self, partitions: Iterable[TP], reason: Reason) -> list[TP]:
        """Add a reason; return the partitions that were open before."""
        shut = []
        for tp in partitions:
            reasons = self._closed.get(tp)
            if reasons is None:
                self._closed[tp] = {reason}
                shut.append(tp)
            else:
                reasons.add(reason)
        return shut

    def open(self, partitions: Iterable[TP], reason: Reason) -> list[TP]:
        """Take a reason back; return the partitions that nothing keeps closed any more."""
        opened = []
        for tp in partitions:
            reasons = self._closed.get(tp)
            if reasons is None:
                continue
            reasons.discard(reason)
            if not reasons:
                del self._closed[tp]
                opened.append(tp)
        return opened

    def is_open(self, tp: TP) -> bool:
        """Whether nothing keeps this partition closed."""
        return tp not in self._closed

    def closed_for(self, reason: Reason) -> set[TP]:
        """The partitions that are closed for this reason, alone or among others."""
        return {tp for tp, reasons in self._closed.items() if reason in reasons}

    def forget(self, partitions: Iterable[TP]) -> None:
        """Drop all reasons of partitions that are owned no longer."""
        for tp in partitions:
            self._closed.pop(tp, None)
