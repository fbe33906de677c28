"""The plan of one mailbox pull: which intervals to ask for, and how far the answers reach without a gap.

A login owes the device `(after_seq, up_to_seq]`. With a window of 4 (CUR-08) four equal parts of it are asked for at
once; each part that did not fit in one batch is continued from where its batch ended. Batches of later parts may arrive
first: they are kept back until everything before them is there, so that what is handed out is in mailbox_seq order and
the cursor it carries never jumps a gap (CUR-02, CUR-09). Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from schemas.constants import LOG_OFFSET_BITS
from schemas.errors import ErrorCode, ProtocolError

__all__ = ["Covered", "Interval", "PullPlan"]

_MIN_PART = 256
"""Positions in a part below which splitting costs more round trips than it saves: a shard's log is shared, so 256
positions hold few entries of one user."""


class Interval(NamedTuple):
    """Positions in `(after_seq, up_to_seq]`; after_seq 0 is the zero cursor (MBX-53)."""

    after_seq: int
    up_to_seq: int


class Covered(NamedTuple):
    """A stretch that joins what was handed out before: its entries in order, and the cursor of its end."""

    entries: Sequence[bytes]
    covered_through_seq: int
    cursor: bytes


@dataclass(slots=True)
class _Part:
    reached_seq: int
    up_to_seq: int
    waiting: list[Covered] = field(default_factory=list)
    asked: bool = False

    @property
    def done(self) -> bool:
        return self.reached_seq >= self.up_to_seq


class PullPlan:
    """Pulls `(after_seq, up_to_seq]` with at most `window` requests in flight.

    `take_requests()` gives what to ask now, `deliver()` takes an answer and gives what became whole, `give_back()`
    returns an interval whose request failed. The plan is finished when everything was handed out.
    """

    __slots__ = ("_parts", "in_flight", "up_to_seq", "window")

    def __init__(self, after_seq: int, up_to_seq: int, window: int) -> None:
        if window < 1:
            raise ValueError(f"window of {window}")
        self.window = window
        self.up_to_seq = up_to_seq
        self.in_flight = 0
        self._parts = [_Part(low, high) for low, high in _split(after_seq, up_to_seq, window)]

    @property
    def finished(self) -> bool:
        """Whether everything was handed out."""
        return not self._parts

    @property
    def can_ask(self) -> bool:
        """Whether `take_requests` would return something."""
        return self.in_flight < self.window and any(
            not part.asked and not part.done for part in self._parts
        )

    def take_requests(self) -> list[Interval]:
        """Return the intervals to ask for now; each counts as in flight until it is delivered or given back."""
        requests: list[Interval] = []
        for part in self._parts:
            if self.in_flight >= self.window:
                break
            if not part.asked and not part.done:
                part.asked = True
                self.in_flight += 1
                requests.append(Interval(part.reached_seq, part.up_to_seq))
        return requests

    def give_back(self, interval: Interval) -> None:
        """The request for `interval` was refused; it will be asked for again."""
        self._asked_part(interval.after_seq).asked = False
        self.in_flight -= 1

    def deliver(
        self, interval: Interval, entries: Sequence[bytes], covered_through_seq: int, cursor: bytes
    ) -> list[Covered]:
        """Take the answer to `interval` and return the stretches that are now whole, in order.

        Raises ProtocolError for an answer that covers nothing, or more than was asked: the first would be asked again
        for ever, the second would move the cursor over positions nobody looked at (CUR-10, CUR-11).
        """
        after_seq, up_to_seq = interval
        part = self._asked_part(after_seq)
        if not after_seq < covered_through_seq <= up_to_seq:
            raise ProtocolError(
                f"batch covers through {covered_through_seq} of ({after_seq}, {up_to_seq}]",
                ErrorCode.MALFORMED_PAYLOAD,
            )
        part.asked = False
        self.in_flight -= 1
        part.reached_seq = covered_through_seq
        part.waiting.append(Covered(entries, covered_through_seq, cursor))
        return self._take_whole()

    def _asked_part(self, after_seq: int) -> _Part:
        for part in self._parts:
            if part.asked and part.reached_seq == after_seq:
                return part
        raise ProtocolError(f"no pull after {after_seq} is in flight", ErrorCode.UNEXPECTED_FRAME)

    def _take_whole(self) -> list[Covered]:
        whole: list[Covered] = []
        while self._parts:
            first = self._parts[0]
            whole += first.waiting
            first.waiting = []
            if not first.done:
                break
            del self._parts[0]
        return whole


def _split(after_seq: int, up_to_seq: int, window: int) -> list[Interval]:
    if after_seq >= up_to_seq:
        return []
    # From the zero cursor the first epoch-wide stretch is empty by construction; parts count from where offsets begin.
    epoch_start = (up_to_seq >> LOG_OFFSET_BITS) << LOG_OFFSET_BITS
    low = max(after_seq, epoch_start)
    count = max(1, min(window, (up_to_seq - low) // _MIN_PART))
    cuts = [after_seq, *(low + (up_to_seq - low) * n // count for n in range(1, count)), up_to_seq]
    return [Interval(a, b) for a, b in pairwise(cuts)]
