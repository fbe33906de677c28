"""What a shard continues from, and the watermark blobs that follow from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import ge
from types import MappingProxyType
from typing import NamedTuple

from schemas.constants import LANE_COUNT
from schemas.watermarks import ABSENT, NOTHING, LaneMark, unpack_w
from streams.expand import ShardContext
from streams.lanes import higher_marks, pack_behind, pack_marks
from tables.progress import OffsetIndex

__all__ = ["Position"]


class Position(NamedTuple):
    """What a shard continues from, read anew at every start (design §6).

    `starts` is the W to continue from, by lane (streams/takeover.py). `store_w` is the packed blob in the mailbox, None when
    it has none. `floors` is what each lane was covered to once, None as soon as all lanes are there again; `refused` are the
    lanes that get nothing, with the marks that say so. `dispatches` collects which dispatch is where in the log.
    """

    lease_term: int
    context: ShardContext
    base_epoch: int
    store_w: bytes | None
    starts: tuple[int, ...]
    page_number: int
    dispatches: OffsetIndex
    floors: tuple[int, ...] | None = None
    refused: Mapping[int, LaneMark] = MappingProxyType({})

    @property
    def next_offset(self) -> int:
        """The first record to process: min over served lanes + 1, whatever a group committed (TAKE-01 T5)."""
        return min(w for lane, w in enumerate(self.starts) if lane not in self.refused) + 1

    @classmethod
    def unknown(cls, shard: int, shard_count: int, push_partitions: int) -> Position:
        """What a shard that could not read its position yet is made with; nothing is written from it."""
        context = ShardContext(shard, shard_count, push_partitions, ((1, 0),))
        starts = (NOTHING,) * LANE_COUNT
        return cls(0, context, 1, None, starts, 0, OffsetIndex(0))

    def pack(self, marks: Sequence[int]) -> tuple[bytes, bytes]:
        """The packed blobs for mailbox and table when the lanes are at `marks`; in neither does a W or floor go back."""
        stored = higher_marks(self.store_w, marks)
        if self.floors is None:
            return pack_marks(stored), pack_marks(marks)
        return (
            pack_behind(stored, self.floors, {lane: self._stored(lane) for lane in self.refused}),
            pack_behind(marks, self.floors, self.refused),
        )

    def _stored(self, lane: int) -> LaneMark:
        """The mailbox's mark of a refused lane: as it is, but never without the floor."""
        mark = ABSENT if self.store_w is None else unpack_w(self.store_w)[lane]
        return mark._replace(w_floor=max(mark.w_floor, self.refused[lane].w_floor))

    def after(self, marks: Sequence[int], store_w: bytes) -> Position:
        """The position once `marks` are durable."""
        floors = self.floors
        if floors is not None and not self.refused and all(map(ge, marks, floors)):
            floors = None
        return self._replace(store_w=store_w, page_number=self.page_number + 1, floors=floors)
