"""Faults planted into the real code, one at a time: the simulation has to find each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from gateway.commit import CommitStep
from gateway.commit_core import Step
from gateway.visibility import ShardView
from schemas.records import DispatchProgress
from stores.mailbox import AppendOutcome, ShardAppend
from stores.memory_mailbox import MemoryMailboxStore
from streams.expand import Expander
from streams.fanout import Fanout
from streams.lanes import LaneLedger, pack_marks
from streams.materialize_core import PagePlan, ShardPipeline
from streams.materializer import Materializer
from streams.shard import ShardTask
from streams.takeover import plan_takeover
from tables.joining import Joined, RowMerge, join_rows
from tables.pages import PageWriter

__all__ = ["PLANTS", "PLANTS_BY_HAND"]

Plant = Callable[[], AbstractContextManager[Any]]


def _w_before_entries() -> AbstractContextManager[Any]:
    """The watermark row leaves before the entries it covers."""
    write = ShardTask._write

    async def wrong(self: ShardTask, plan: PagePlan) -> None:
        at = self.position
        row = {
            "lease_term": at.lease_term,
            "epoch": at.context.boundaries[-1][0],
            "base_epoch": at.base_epoch,
            "page_number": at.page_number + 1,
            "w": pack_marks(plan.marks),
        }
        await self._services.write_watermark(self.shard, row)  # type: ignore[arg-type]
        await write(self, plan)

    return patch.object(ShardTask, "_write", wrong)


def _fence_skipped() -> AbstractContextManager[Any]:
    """The mailbox script does not look at the lease term."""
    judge = MemoryMailboxStore._judge_header

    def wrong(self: MemoryMailboxStore, append: ShardAppend) -> None:
        term = self._leases.live_term(append.shard)
        judge(self, append._replace(lease_term=-1 if term is None else term))

    return patch.object(MemoryMailboxStore, "_judge_header", wrong)


def _lanes_together() -> AbstractContextManager[Any]:
    """All 64 lanes advance when the slowest one does (M-1)."""
    marks = LaneLedger.marks

    def wrong(self: LaneLedger) -> list[int]:
        return [min(marks(self))] * 64

    return patch.object(LaneLedger, "marks", wrong)


def _largest_seen() -> AbstractContextManager[Any]:
    """W is the largest offset seen instead of continuous coverage (REG-30)."""

    def wrong(self: LaneLedger) -> list[int]:
        return [max(self._seen, start) for start in self._starts]

    return patch.object(LaneLedger, "marks", wrong)


def _no_dedup() -> AbstractContextManager[Any]:
    """Progress is never looked up: a dispatch that comes again is written again."""

    async def wrong(*_: Any) -> dict[bytes, DispatchProgress]:
        return {}

    return patch.object(Materializer, "known_progress", wrong)


def _start_at_acknowledged() -> AbstractContextManager[Any]:
    """A page is acknowledged when it is taken, and a start trusts that instead of W (TAKE-02)."""
    position = Materializer.position

    async def wrong(self: Materializer, shard: int) -> Any:
        found = await position(self, shard)
        row = self._watermarks.get(shard)
        if row is None:
            return found
        ahead = max(found.starts) + 1
        return found._replace(starts=(ahead,) * 64)

    return patch.object(Materializer, "position", wrong)


def _table_alone() -> AbstractContextManager[Any]:
    """A start believes the table and does not ask the mailbox, which may have lost something."""

    def wrong(table: Any, store: Any, recomputed: Any, log_first: int) -> Any:
        del store
        return plan_takeover(table, table, recomputed, log_first)

    return patch("streams.materializer.plan_takeover", wrong)


def _last_row_wins() -> AbstractContextManager[Any]:
    """A gateway takes every watermark row, also the late one of a fenced worker."""
    update = ShardView.update

    def wrong(self: ShardView, row: Any) -> bool:
        self.lease_term = 0
        self.uniform = None
        self._lanes = self._floors = [-1] * 64
        return update(self, row)

    return patch.object(ShardView, "update", wrong)


def _replay_differs() -> AbstractContextManager[Any]:
    """Entries hold something that the log does not determine."""
    add = Expander.add
    numbers = iter(range(1 << 30))

    def wrong(self: Expander, offset: int, dispatch: Any, users: Any) -> None:
        first = len(self.entries)
        add(self, offset, dispatch, users)
        for at in range(first, len(self.entries)):
            entry = self.entries[at]
            self.entries[at] = entry._replace(member=entry.member + b"%d" % (next(numbers) % 7))

    return patch("streams.materialize_core.Expander.add", wrong)


def _fanout_acks_first() -> AbstractContextManager[Any]:
    """Fanout acknowledges the outbox before the dispatches are in the log."""
    process = Fanout._process

    async def wrong(self: Fanout, events: Any) -> None:
        for event in events:
            event.ack()
        await process(self, events)

    return patch.object(Fanout, "_process", wrong)


def _ack_after_reserve() -> AbstractContextManager[Any]:
    """SEND_ACK leaves when the message is recorded, before it is in the outbox (COM-01)."""
    go_on = CommitStep._continue

    def wrong(self: CommitStep, intent: Any, step: Step) -> None:
        if step is Step.PUBLISH:
            for done in intent.waiters:
                done(intent.committed())
            intent.waiters = []
        go_on(self, intent, step)

    return patch.object(CommitStep, "_continue", wrong)


def _mark_before_publish() -> AbstractContextManager[Any]:
    """A message is marked COMMITTED first and published afterwards."""
    go_on = CommitStep._continue

    def wrong(self: CommitStep, intent: Any, step: Step) -> None:
        if step is Step.PUBLISH and intent.outbox_offset == -1:
            intent.outbox_partition = intent.outbox_offset = 0
            go_on(self, intent, Step.MARK)
            return
        go_on(self, intent, step)

    return patch.object(CommitStep, "_continue", wrong)


def _lane_order_broken() -> AbstractContextManager[Any]:
    """A light record does not wait behind the unfinished chunks of its lane."""
    place = ShardPipeline._place

    def wrong(self: ShardPipeline, offset: int, dispatch: Any, by_lane: Mapping[int, Any]) -> Any:
        waiting = self._waiting
        if len(dispatch["recipients"]) <= 2:
            self._waiting = {}
        try:
            return place(self, offset, dispatch, by_lane)
        finally:
            self._waiting = waiting

    return patch.object(ShardPipeline, "_place", wrong)


def _append_forgets_w() -> AbstractContextManager[Any]:
    """The mailbox does not compare W before it replaces it."""
    judge = MemoryMailboxStore._judge_header

    def wrong(self: MemoryMailboxStore, append: ShardAppend) -> None:
        stored = self.watermarks.get(append.shard)
        judge(self, append._replace(expected_w=None if stored is None else stored.blob))

    return patch.object(MemoryMailboxStore, "_judge_header", wrong)


def _chunk_lost() -> AbstractContextManager[Any]:
    """An append that was refused counts as done."""

    def wrong(append: ShardAppend, outcome: AppendOutcome) -> None:
        del append, outcome

    return patch("streams.shard.check_outcome", wrong)


def _stale_tables() -> AbstractContextManager[Any]:
    """Who gets a shard back goes on with the tables that it had."""

    async def wrong(self: PageWriter, table: Any, partition: int) -> None:
        place = (table.name, partition)
        self._next[place] = await self._source.end(table.changelog_topic_name, partition)

    return patch.object(PageWriter, "catch_up", wrong)


def _late_rows_stay() -> AbstractContextManager[Any]:
    """Late rows of a former owner are joined, but stay the last of their key, which compaction keeps."""

    def wrong(held: Any, records: Any, merge: RowMerge) -> Joined:
        return join_rows(held, records, merge)._replace(worse=frozenset())

    return patch("tables.pages.join_rows", wrong)


PLANTS: dict[str, Plant] = {
    "w before entries": _w_before_entries,
    "fence skipped": _fence_skipped,
    "lanes advance together": _lanes_together,
    "w is the largest seen": _largest_seen,
    "no dedup": _no_dedup,
    "start at the acknowledged": _start_at_acknowledged,
    "start believes the table alone": _table_alone,
    "replay differs": _replay_differs,
    "fanout acknowledges first": _fanout_acks_first,
    "ack after reserve": _ack_after_reserve,
    "mark before publish": _mark_before_publish,
    "light records overtake": _lane_order_broken,
    "w replaced unseen": _append_forgets_w,
    "refused append counts as done": _chunk_lost,
    "tables of before": _stale_tables,
}

# Faults that need more than chance (test_interleavings.py).
PLANTS_BY_HAND: dict[str, Plant] = {
    "late rows stay": _late_rows_stay,
    "the last row wins": _last_row_wins,
}
