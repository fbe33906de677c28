"""LaneLedger: how far each lane of a shard is continuously covered (LANE-03, LANE-04, WM-01 to WM-03).

Per lane an ordered map of position -> unfinished chunks. A record that has nothing to do in a lane is already done
there, so the lane's W passes it at once, whatever other lanes wait for (M-1). Pure: positions are log offsets, -1 is
"nothing covered yet".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from schemas.constants import LANE_COUNT, W_UNIFORM_BYTES
from schemas.errors import Bug
from schemas.watermarks import ABSENT, NOTHING, LaneMark, pack_uniform, pack_w, unpack_w, w_of

__all__ = ["LaneLedger", "higher_marks", "pack_behind", "pack_marks"]


def pack_marks(marks: Sequence[int]) -> bytes:
    """64 log offsets (-1: none) as a packed v2 blob, W_floor and W_recomputed equal to W (WM-06)."""
    if marks[0] != NOTHING and marks.count(marks[0]) == LANE_COUNT:
        return pack_uniform(marks[0])
    return pack_w([ABSENT if w == NOTHING else LaneMark(w, w, w) for w in marks])


def pack_behind(
    marks: Sequence[int], floors: Sequence[int], refused: Mapping[int, LaneMark]
) -> bytes:
    """The same while lanes are behind their floor: those say so, and refused ones keep the mark they have (WM-07)."""
    return pack_w(
        [
            refused.get(lane)
            or (ABSENT if w == floor == NOTHING else LaneMark(w, max(w, floor), w))
            for lane, (w, floor) in enumerate(zip(marks, floors, strict=True))
        ]
    )


def higher_marks(stored: bytes | None, marks: Sequence[int]) -> list[int]:
    """By lane the higher one of a stored blob and `marks`: what a replay passes again never goes back (WM-01)."""
    if stored is None:
        return list(marks)
    if len(stored) == W_UNIFORM_BYTES and w_of(stored, 0) <= min(marks):
        return list(marks)
    return [max(lane.w, w) for lane, w in zip(unpack_w(stored), marks, strict=True)]


class LaneLedger:
    """Continuous coverage of the 64 lanes of one shard.

    `starts` are the lanes' W when the shard (re)started; records at or below a lane's start are finished in it.
    """

    def __init__(self, starts: Sequence[int]) -> None:
        if len(starts) != LANE_COUNT:
            raise Bug(f"{len(starts)} lanes")
        self._starts = tuple(starts)
        self._seen = min(starts)
        self._open: dict[int, deque[list[int]]] = (
            {}
        )  # lane -> [offset, unfinished chunks], ascending

    @property
    def next_offset(self) -> int:
        """The next record to register."""
        return self._seen + 1

    @property
    def blocked(self) -> frozenset[int]:
        """Lanes that hold unfinished chunks; their later records wait behind them."""
        return frozenset(self._open)

    def covered(self, lane: int, offset: int) -> bool:
        """Whether the lane was finished with this record before the start: a replay has nothing to do there."""
        return offset <= self._starts[lane]

    def see(self, offset: int) -> None:
        """Register the next record; a jump is refused (WM-04)."""
        if offset != self._seen + 1:
            raise Bug(f"record {offset} follows {self._seen}")
        self._seen = offset

    def open(self, lane: int, offset: int, chunks: int) -> None:
        """The registered record `offset` has `chunks` unfinished chunks in `lane`."""
        waiting = self._open.setdefault(lane, deque())
        if chunks < 1 or offset > self._seen or (waiting and waiting[-1][0] >= offset):
            raise Bug(f"lane {lane}: {chunks} chunks at {offset} out of order")
        waiting.append([offset, chunks])

    def finish(self, lane: int, offset: int) -> bool:
        """One chunk of the lane's oldest unfinished record is durable; True when that ended the record in this lane."""
        waiting = self._open.get(lane)
        if not waiting or waiting[0][0] != offset:
            raise Bug(f"lane {lane}: chunk of {offset} is not its oldest unfinished work")
        waiting[0][1] -= 1
        if waiting[0][1]:
            return False
        waiting.popleft()
        if not waiting:
            del self._open[lane]
        return True

    def w(self, lane: int) -> int:
        """W of a lane: every record up to it is finished or empty in this lane (WM-02)."""
        waiting = self._open.get(lane)
        reached = waiting[0][0] - 1 if waiting else self._seen
        return max(reached, self._starts[lane])

    def marks(self) -> list[int]:
        """W of all lanes."""
        if not self._open and self._seen >= max(self._starts):
            return [self._seen] * LANE_COUNT
        return [self.w(lane) for lane in range(LANE_COUNT)]
