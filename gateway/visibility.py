"""What may be shown: W of every shard and lane, as this gateway knows it. Pure.

The view is fed with the rows of the watermarks changelog and only ever shows less than is true, never more: it keeps the
largest row by (lease term, W), so that a late row of a fenced worker changes nothing, and a lane whose W went back under a new
term (its store lost data and is being replayed) is closed until W is past what was shown before. The row itself says the
same to a gateway that has just started: W or W_recomputed below W_floor is never served (WM-07). Positions are composed from
log offset and epoch boundaries, because the epoch of a record is a function of its log position alone (design §4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from gateway.cursor import FIRST_BOUNDARIES, EpochBoundaries
from schemas.constants import LANE_COUNT, LOG_OFFSET_BITS, W_UNIFORM_BYTES
from schemas.records import WatermarkRow
from schemas.watermarks import NOTHING, LaneMark, unpack_w, w_of

__all__ = ["ShardView", "WatermarkView"]


class ShardView:
    """W of one shard as log offsets, -1 for nothing.

    `uniform` is W of every lane while all lanes are open and equal, the common case; otherwise it is None and each lane has its
    own W and the floor that it must reach to be open.
    """

    __slots__ = ("_firsts", "_floors", "_lanes", "boundaries", "lease_term", "uniform")

    def __init__(self) -> None:
        self.lease_term = 0
        self.uniform: int | None = NOTHING
        self._lanes: list[int] = []
        self._floors: list[int] = []
        self.set_boundaries(FIRST_BOUNDARIES)

    def set_boundaries(self, boundaries: EpochBoundaries) -> None:
        """Install (epoch, first offset) pairs, ascending."""
        self.boundaries = tuple(boundaries)
        newest_base = max(at for at, (_, first) in enumerate(self.boundaries) if first == 0)
        # Offsets of an older incarnation of the topic start at 0 again; only the living one can be looked up by offset.
        self._firsts = self.boundaries[newest_base:]

    @property
    def base_epochs(self) -> list[int]:
        """Epochs at which an incarnation of the topic began (first offset 0), ascending: where mailbox keys may live."""
        return [epoch for epoch, first in self.boundaries if first == 0]

    def learn(self, boundaries: EpochBoundaries) -> bool:
        """Install boundaries unless they are older than the known ones; whether they were not."""
        if not boundaries or boundaries[-1][0] < self.boundaries[-1][0]:
            return False
        self.set_boundaries(boundaries)
        return True

    def update(self, row: WatermarkRow) -> bool:
        """Take one row; False when an older one of a fenced worker is ignored. Raises RecordError on a damaged W."""
        term, blob = row["lease_term"], row["w"]
        if term < self.lease_term:
            return False
        if len(blob) == W_UNIFORM_BYTES and blob[1:7] == blob[7:13] == blob[13:]:
            offset = w_of(blob, 0)
            if self.uniform is not None and offset >= self.uniform:
                self.lease_term, self.uniform = term, offset
                return True
        self._merge(term, unpack_w(blob))
        return True

    def _merge(self, term: int, marks: Sequence[LaneMark]) -> None:
        if self.uniform is not None:
            self._lanes = self._floors = [self.uniform] * LANE_COUNT
        # A refused lane has a W that its progress does not bear out: what it bears out counts, and keeps the lane closed.
        lanes = [mark.w if mark.is_served else min(mark.w, mark.w_recomputed) for mark in marks]
        if term == self.lease_term:
            lanes = [
                max(new, old) if mark.is_served else new
                for new, old, mark in zip(lanes, self._lanes, marks, strict=True)
            ]
        self.lease_term = term
        self._lanes = lanes
        self._floors = [
            max(new, old, mark.w_floor)
            for new, old, mark in zip(lanes, self._floors, marks, strict=True)
        ]
        even = lanes.count(lanes[0]) == LANE_COUNT and self._floors == lanes
        self.uniform = lanes[0] if even else None

    def is_open(self, lane: int) -> bool:
        """False while the lane catches up with what was shown before (TAKE-05, CUR-14)."""
        return self.uniform is not None or self._lanes[lane] >= self._floors[lane]

    def watermark(self, lane: int) -> int:
        """W of the lane as mailbox_seq; 0 when nothing was ever covered. Of a closed lane it is what was shown before."""
        if self.uniform is not None:
            return self.compose(self.uniform)
        return self.compose(max(self._lanes[lane], self._floors[lane]))

    def compose(self, offset: int) -> int:
        """mailbox_seq of a log offset of the living incarnation; -1 is the end of everything before it."""
        if offset == NOTHING:
            is_first = len(self._firsts) == len(self.boundaries)
            return 0 if is_first else (self._firsts[0][0] << LOG_OFFSET_BITS) - 1
        at = bisect_right(self._firsts, offset, key=_first_of) - 1
        return self._firsts[at][0] << LOG_OFFSET_BITS | offset


class WatermarkView:
    """The shards of one dispatch topic; `shard_count` entries, empty until their rows were read."""

    __slots__ = ("shards",)

    def __init__(self, shard_count: int) -> None:
        self.shards: Sequence[ShardView] = [ShardView() for _ in range(shard_count)]

    def covers(self, shard: int, mailbox_seq: int, lane: int | None = None) -> bool:
        """Whether `mailbox_seq` may be shown: to users of `lane`, or to everybody of the shard when None."""
        view = self.shards[shard]
        if lane is not None:
            return view.is_open(lane) and mailbox_seq <= view.watermark(lane)
        return view.uniform is not None and mailbox_seq <= view.compose(view.uniform)


def _first_of(boundary: tuple[int, int]) -> int:
    return boundary[1]
