"""Whether a worker has caught up with what was in the log when it started (TAKE-08)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from faust.types import TP

from schemas.errors import StartRefused

__all__ = ["CatchUp", "check_starts"]


class CatchUp:
    """Targets of one start: readiness waits until every partition is acknowledged up to its target."""

    __slots__ = ("_targets", "started")

    def __init__(self) -> None:
        self._targets: dict[TP, int] = {}
        self.started = False

    def begin(self, starts: Mapping[TP, int], ends: Mapping[TP, int]) -> None:
        """Note where each partition starts and where its log ended at that moment (end: one past the last)."""
        self._targets = {tp: end for tp, end in ends.items() if starts[tp] < end}
        self.started = True

    def remaining(self, position: Callable[[TP], int | None]) -> dict[TP, int]:
        """Records still to be acknowledged, by partition; empty once caught up, and from then on."""
        left = {}
        for tp, target in list(self._targets.items()):
            missing = target - (position(tp) or 0)
            if missing > 0:
                left[tp] = missing
            else:
                del self._targets[tp]
        return left


def check_starts(starts: Mapping[TP, int], first: Mapping[TP, int], ends: Mapping[TP, int]) -> None:
    """Raise StartRefused when a start offset is outside its log (LOG-08).

    Below the log: retention removed records that were never processed. Above: the topic was made anew.
    """
    outside = {
        f"{tp.topic}[{tp.partition}]": (offset, first[tp], ends[tp])
        for tp, offset in starts.items()
        if not first[tp] <= offset <= ends[tp]
    }
    if outside:
        raise StartRefused(f"start offsets outside the log (start, first, end): {outside}")
