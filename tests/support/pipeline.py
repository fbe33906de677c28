"""The shard pipeline with the table and the mailbox that its plans go to, both plain dicts."""

from collections.abc import Sequence
from typing import Final

from schemas.records import DISPATCH_PROGRESS, DispatchProgress, GroupDispatch
from schemas.watermarks import NOTHING
from streams.expand import ShardContext
from streams.materialize_core import PagePlan, ShardPipeline, decode_page
from tests.support.dispatch_fakes import SHARDS, dispatch, users_of
from tests.support.records import FakeRecord

__all__ = ["CONTEXT", "FRESH", "SHARD", "USERS", "PlannedShard", "made"]

SHARD: Final = 3
FRESH: Final = [NOTHING] * 64
CONTEXT = ShardContext(SHARD, SHARDS, push_partitions=4, boundaries=[(1, 0)])
USERS: Final = users_of(SHARD, 6)


def made(number: int, users: Sequence[int] = USERS[:2], **change: object) -> GroupDispatch:
    return dispatch(number, users, SHARD, **change)


class PlannedShard:
    """A pipeline with the table that its rows go to; `restart` begins again from given marks."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.entries: dict[tuple[int, bytes], int] = {}
        self.pipeline = ShardPipeline(CONTEXT, FRESH)

    def restart(self, starts: Sequence[int]) -> None:
        self.pipeline = ShardPipeline(CONTEXT, starts)

    def take(self, records: Sequence[FakeRecord]) -> PagePlan:
        page = decode_page(SHARD, records)
        known = {
            key: DISPATCH_PROGRESS.decode(self.rows[key])
            for _, _, d in page
            if (key := d["dispatch_id"]) in self.rows
        }
        return self.written(self.pipeline.take_page(page, known))

    def chunk(self) -> PagePlan | None:
        plan = self.pipeline.next_chunk()
        return None if plan is None else self.written(plan)

    def drain(self) -> list[PagePlan]:
        plans = []
        while (plan := self.chunk()) is not None:
            plans.append(plan)
        return plans

    def written(self, plan: PagePlan) -> PagePlan:
        self.rows.update(plan.progress_rows)
        for write in plan.entries:
            key = (write.user, write.member)
            assert self.entries.setdefault(key, write.log_offset) == write.log_offset
        return plan

    def row(self, d: GroupDispatch) -> DispatchProgress:
        return DISPATCH_PROGRESS.decode(self.rows[d["dispatch_id"]])
