"""The pacemaker of a worker: the outbox sets the pace, everything else follows (docs/decisions/0004-paging.md).

After a page of the paced topics those topics are closed until the next page is due. All other streams carry what follows
from that page: they are closed until all of it is written, so that one fetch brings all of it, and a busy worker goes round
once a page. A page that allows no distance closes nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from faust.types import TP

from stores.paging import Pace
from streams.gates import Reason

__all__ = ["Pacemaker"]

_LEAST_S: Final = 0.005  # shorter distances cost a fetch and save nothing


class Pacemaker:
    """Closes and opens the partitions of one consumer; `close` and `open_all` are how.

    `topics` are the paced ones, whose names may be added until the start.
    """

    __slots__ = ("_close", "_due_s", "_open_all", "_pace", "_topics")

    def __init__(
        self,
        pace: Pace,
        topics: Collection[str],
        close: Callable[[Iterable[TP], Reason], None],
        open_all: Callable[[Reason], None],
    ) -> None:
        self._pace = pace
        self._topics = topics
        self._close = close
        self._open_all = open_all
        self._due_s: float | None = None  # when the paced topics open, on the loop's clock

    @property
    def remaining_ms(self) -> int | None:
        """Until the next page is due; None while nothing is closed for it. No fetch may outlast it."""
        if self._due_s is None:
            return None
        remaining_s = self._due_s - asyncio.get_running_loop().time()
        return max(1, math.ceil(remaining_s * 1000))

    def polled(self, fetched: Mapping[Any, Sequence[object]], streams: Iterable[TP]) -> None:
        """Take note of what a poll brought; `streams` are all partitions but those of changelogs.

        To be called before anything suspends after the poll: then the next fetch is not sent yet.
        """
        if self._due_s is not None:
            return
        records = sum(len(found) for tp, found in fetched.items() if tp.topic in self._topics)
        distance_s = self._pace.after(records)
        if distance_s < _LEAST_S:
            return
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + distance_s
        everything = set(streams)
        paced = {tp for tp in everything if tp.topic in self._topics}
        self._close(paced, Reason.PACE)
        self._close(everything - paced, Reason.GATHER)
        loop.call_later(distance_s, self._due)

    def gathered(self) -> None:
        """What follows from the last page is written: it may be fetched."""
        self._open_all(Reason.GATHER)

    def _due(self) -> None:
        self._due_s = None
        self._open_all(Reason.PACE)
        self.gathered()  # whoever was to say so is late: nothing waits for it longer than a page
