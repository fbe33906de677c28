"""Replay of one shard's dispatch log through the worker's own pure pipeline, into whatever is being rebuilt.

The same records give the same bytes as the first time (TAKE-09), so what comes out can be compared with what was there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ops.qimctl.logs import Rows
from schemas.constants import LANE_COUNT
from schemas.errors import StoreFault
from schemas.records import DISPATCH_PROGRESS
from stores.mailbox import MailboxStore, ShardAppend
from streams.expand import ShardContext
from streams.lanes import pack_marks
from streams.materialize_core import PagePlan, ShardPipeline, decode_page
from tables.progress import OffsetIndex

__all__ = ["PAGE_RECORDS", "MailboxSink", "NoSink", "ReplayedShard", "Sink", "replay_shard"]

PAGE_RECORDS: Final = 512


class Sink(Protocol):
    """Where the plans of a replay go."""

    async def write(self, plan: PagePlan) -> None:
        """Make one plan durable; plans come in order."""


class NoSink:
    """For rebuilding tables alone: mailboxes stay as they are."""

    async def write(self, plan: PagePlan) -> None:
        """Nothing."""


class MailboxSink:
    """Entries and store W of one shard, under a lease term, by the worker's own script."""

    def __init__(self, store: MailboxStore, context: ShardContext, lease_term: int) -> None:
        self._store = store
        self._context = context
        self._term = lease_term
        self._stored_w: bytes | None = None
        self.entries = 0

    async def write(self, plan: PagePlan) -> None:
        """One page; raises StoreFault when the store refuses it, ServerFault when it does not answer."""
        boundaries = self._context.boundaries
        new_w = pack_marks(plan.marks)
        append = ShardAppend(
            shard=self._context.shard,
            lease_term=self._term,
            base_epoch=boundaries[0][0],
            expected_w=self._stored_w,
            new_w=new_w,
            w_epoch=boundaries[-1][0],
            entries=plan.entries,
        )
        (outcome,) = await self._store.append_page([append])
        if outcome.code != "ok":
            raise StoreFault(
                f"shard {self._context.shard}: {outcome.code} {outcome.detail}: is somebody else at work?"
            )
        self._stored_w = new_w
        self.entries += len(plan.entries)


@dataclass(slots=True)
class ReplayedShard:
    """What a replay gave: the progress rows, W of all lanes (log offsets), how many records were read."""

    rows: Rows = field(default_factory=dict)
    marks: Sequence[int] = ()
    records: int = 0


async def replay_shard(
    pages: AsyncIterator[list[Any]],
    context: ShardContext,
    first: int,
    known: Rows,
    sink: Sink,
) -> ReplayedShard:
    """Run the records of a shard, the first of which is `first`, through the pipeline.

    `known` holds progress rows that exist already (empty: they are rebuilt too). Raises RecordError on damage and
    DigestConflict, as the worker would stop; nothing behind that is replayed.
    """
    pipeline = ShardPipeline(context, [first - 1] * LANE_COUNT)
    index = OffsetIndex(first)
    done = ReplayedShard(marks=[first - 1] * LANE_COUNT)
    async for records in pages:
        decoded = decode_page(context.shard, records)
        rows = {}
        for _, _, dispatch in decoded:
            raw = done.rows.get(dispatch["dispatch_id"]) or known.get(dispatch["dispatch_id"])
            if raw is not None:
                rows[dispatch["dispatch_id"]] = DISPATCH_PROGRESS.decode(raw)
        page = pipeline.take_page(decoded, rows)
        seen = [(offset, dispatch["dispatch_id"]) for offset, _, dispatch in decoded]
        page.progress_rows.extend(index.add(seen))
        plan: PagePlan | None = page
        while plan is not None:
            await sink.write(plan)
            done.rows.update(plan.progress_rows)
            done.marks = plan.marks
            plan = pipeline.next_chunk()
        done.records += len(records)
    if not done.records and first:  # everything has left the log: W stands where it begins
        await sink.write(PagePlan([], [], list(done.marks), []))
    return done
