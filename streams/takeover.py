"""Where a shard continues after anything went wrong: T3 to T5 of a takeover (TAKE-01), without I/O.

Three witnesses say how far each lane is: the watermark row (the log's side), the blob beside the entries (the store's
side), and the progress rows, from which W is computed anew. A lane starts behind the lowest of them.

* A witness that is merely behind (a changelog that lagged, an AOF that lost its end) is replayed: the lane stays closed
  until W is past everything that was ever covered, its floor.
* A progress row that contradicts W (it is missing, damaged, or unfinished in a lane whose W had passed it) is damage. No
  replay of ours mends that knowledge, so that lane is refused until somebody rebuilds the table (M-3).
* A lane whose start is no longer in the log is refused as well (LOG-08).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from schemas.constants import LANE_COUNT
from schemas.errors import ErrorCode, StoreFault
from schemas.records import DispatchProgress
from schemas.watermarks import ABSENT, NOTHING, LaneMark
from tables.progress import OffsetBlock

__all__ = ["Recomputed", "Takeover", "first_to_verify", "plan_takeover", "recompute_w"]

_VERIFIED_RECORDS = 1024
"""How far below the lowest floor progress is read again. Larger: slower starts. Smaller: older damage is not noticed."""

KnownRows = Callable[[Sequence[bytes]], Mapping[bytes, DispatchProgress | None]]
"""Progress rows by dispatch_id; None for one that cannot be decoded."""


class Recomputed(NamedTuple):
    """W by lane as the progress rows have it; `stopped` are the lanes that a row ended, not the end of the table."""

    marks: list[int]
    stopped: frozenset[int]


class Takeover(NamedTuple):
    """What a shard continues from: `starts` and `floors` by lane as log offsets, `refused` the marks of refused lanes."""

    starts: tuple[int, ...]
    floors: tuple[int, ...]
    refused: Mapping[int, LaneMark]

    @property
    def next_offset(self) -> int:
        """The first record to process: min over the lanes that are served + 1 (T5)."""
        return min(s for lane, s in enumerate(self.starts) if lane not in self.refused) + 1

    @property
    def behind(self) -> bool:
        """Whether a lane is below its floor, or refused."""
        lanes = zip(self.starts, self.floors, strict=True)
        return bool(self.refused) or any(start < floor for start, floor in lanes)


def first_to_verify(table: Sequence[LaneMark], log_first: int) -> int:
    """The record from which on progress is read again (CON-36): below every floor, inside the log."""
    return max(min(mark.w_floor for mark in table) + 1 - _VERIFIED_RECORDS, log_first, 0)


def recompute_w(first: int, blocks: Iterable[OffsetBlock], known: KnownRows) -> Recomputed:
    """The continuous end of each lane from record `first` on (T3); `blocks` ascending, from the one with `first` on."""
    marks = [first - 1] * LANE_COUNT
    going = set(range(LANE_COUNT))
    stopped: set[int] = set()
    at = first
    for block in blocks:
        if block.first > at:
            stopped |= going  # a hole: something behind it is known
            break
        ids = block.ids[at - block.first :]
        rows = known(ids)
        for dispatch_id in ids:
            row = rows.get(dispatch_id)
            if row is None or row["canonical_log_offset"] > at:
                ended = set(going)
            else:
                ended = going.intersection(row["unfinished_lanes"])
            if ended:
                stopped |= ended
                going.difference_update(ended)
                for lane in ended:
                    marks[lane] = at - 1
                if not going:
                    return Recomputed(marks, frozenset(stopped))
            at += 1
    for lane in going:
        marks[lane] = at - 1
    return Recomputed(marks, frozenset(stopped))


def plan_takeover(
    table: Sequence[LaneMark] | None,
    store: Sequence[LaneMark] | None,
    recomputed: Recomputed,
    log_first: int,
) -> Takeover:
    """Compare the witnesses lane by lane (T4, T5); `log_first` is the oldest record that the log still has.

    Raises StoreFault(INTERNAL) when every lane is refused: this shard cannot serve anybody.
    """
    starts, floors = [], []
    refused: dict[int, LaneMark] = {}
    nothing = [ABSENT] * LANE_COUNT
    for lane, (log_side, store_side) in enumerate(
        zip(table or nothing, store or nothing, strict=True)
    ):
        again = recomputed.marks[lane]
        start = min(log_side.w, store_side.w, again)
        floor = max(log_side.w_floor, store_side.w_floor)
        # W of the table was written after the rows that bear it out; the floor may come from the mailbox, which is ahead.
        if lane in recomputed.stopped and again < log_side.w:
            refused[lane] = LaneMark(log_side.w, floor, again)
        elif start + 1 < log_first:
            floor = max(floor, log_first - 1)
            refused[lane] = LaneMark(log_side.w, floor, NOTHING)
        starts.append(start)
        floors.append(floor)
    if len(refused) == LANE_COUNT:
        raise StoreFault(
            f"every lane is refused: lowest start {min(starts) + 1}, recomputed W"
            f" {min(recomputed.marks)}, lowest floor {min(floors)}, the log begins at {log_first}",
            ErrorCode.INTERNAL,
        )
    return Takeover(tuple(starts), tuple(floors), refused)
