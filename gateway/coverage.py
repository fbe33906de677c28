"""Which part of the login interval the client has really been served: pure arithmetic over half-open intervals.

A login owes the client everything in `(start, sync_to]`. Each MAILBOX_BATCH covers `(after, covered_through]`; pulls may be
pipelined and split, so the pieces arrive in any order. SYNC_COMPLETE is true only when they join without a gap (CUR-09).
"""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["Coverage"]


class Coverage:
    """The union of served intervals of one login, kept as disjoint sorted pairs inside `(start_seq, sync_to_seq]`.

    Positions are mailbox_seq values; 0 stands for "before everything" (MBX-53). The number of pieces cannot grow past the
    number of answered pulls that do not touch, and touching pieces are merged at once.
    """

    __slots__ = ("_ends", "_starts", "start_seq", "sync_to_seq")

    def __init__(self, start_seq: int, sync_to_seq: int) -> None:
        self.start_seq = start_seq
        self.sync_to_seq = sync_to_seq
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, after_seq: int, covered_through_seq: int) -> None:
        """Count `(after_seq, covered_through_seq]` as served; parts outside the login's interval are cut away."""
        low = max(after_seq, self.start_seq)
        high = min(covered_through_seq, self.sync_to_seq)
        if low >= high:
            return
        # Half-open pieces that touch (one ends where the next begins) join: the first candidate is the first piece whose end
        # reaches `low`, the last one the last piece whose start is not past `high`.
        first = bisect_left(self._ends, low)
        last = first
        while last < len(self._starts) and self._starts[last] <= high:
            low = min(low, self._starts[last])
            high = max(high, self._ends[last])
            last += 1
        self._starts[first:last] = [low]
        self._ends[first:last] = [high]

    @property
    def pieces(self) -> int:
        """How many intervals with gaps between them are remembered (bounded by the shell's limit)."""
        return len(self._starts)

    @property
    def complete(self) -> bool:
        """True when everything owed was served, also when nothing was owed."""
        if self.start_seq >= self.sync_to_seq:
            return True
        return self._starts == [self.start_seq] and self._ends == [self.sync_to_seq]
