"""MailboxMaterializer: hands dispatch pages to one task a shard, and gives those tasks the real services.

Start, in this order (TAKE-01): take the lease (fences whoever wrote before); read what the tables lack of their changelogs;
where the owner changed, read the end of the log and raise the epoch there; compute W anew from progress, compare it with W of
table and store (streams/takeover.py), and start at min(W) + 1 whatever the consumer group committed (TAKE-02, TAKE-07). A
crash in between leaves nothing that the next taker would not repeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from aiokafka.errors import KafkaError
from faust.types import TP

from schemas.constants import W_UNIFORM_BYTES
from schemas.errors import RecordError, ServerFault
from schemas.metrics import counter
from schemas.records import DispatchProgress, ShardEpochs, WatermarkRow
from schemas.watermarks import ABSENT, LaneMark, unpack_w
from stores.leases import Boundaries, Completed, LeaseGrant
from stores.mailbox import AppendOutcome, MailboxStore, ShardAppend
from streams.app import QimApp
from streams.appender import MailboxAppender
from streams.expand import PlannedPush, ShardContext
from streams.lanes import pack_behind
from streams.leases import LeaseKeeper
from streams.pages import Page
from streams.position import Position
from streams.push import PushWriter
from streams.shard import PagedEvent, ShardState, ShardTask
from streams.takeover import Takeover, first_to_verify, plan_takeover, recompute_w
from tables.progress import OffsetIndex, ProgressTable
from tables.watermarks import WatermarksTable

__all__ = ["Materializer"]

_log = logging.getLogger(__name__)
_DRAIN_LIMIT_S = 4.0  # below the transport's own limit, so that it is this one that ends the wait


class Materializer:
    """All shard tasks of a worker; also the ShardServices that they call."""

    def __init__(
        self,
        app: QimApp,
        *,
        store: MailboxStore,
        appender: MailboxAppender,
        keeper: LeaseKeeper,
        progress: ProgressTable,
        watermarks: WatermarksTable,
        pushes: PushWriter,
        topic: str,
        shard_count: int,
        push_partitions: int,
    ) -> None:
        self._app = app
        self._store = store
        self._appender = appender
        keeper.on_lost = self.lease_lost
        self._keeper = keeper
        self._progress = progress
        self._watermarks = watermarks
        self._pushes = pushes
        self._topic = topic
        self._shard_count = shard_count
        self._push_partitions = push_partitions
        self.shards: dict[int, ShardTask] = {}

    # --- life ------------------------------------------------------------------------------------------------
    async def start_shards(self, partitions: set[TP]) -> dict[TP, int]:
        """The app's start hook: (re)create the tasks of the assigned shards and say where they start."""
        await self.drain()
        mine = sorted(tp for tp in partitions if tp.topic == self._topic)
        positions = await asyncio.gather(
            *(self.position(tp.partition) for tp in mine), return_exceptions=True
        )
        starts = {}
        for tp, position in zip(mine, positions, strict=True):
            if isinstance(position, BaseException):
                if not isinstance(position, ServerFault | RecordError | KafkaError | OSError):
                    raise position
                # This shard alone: its task finds the same again, and tries or gives up by its own rules.
                _log.error("shard %d does not start: %r", tp.partition, position)
                nowhere = Position.unknown(tp.partition, self._shard_count, self._push_partitions)
                self.shards[tp.partition] = ShardTask(tp, self, nowhere, ShardState.RECOVERING)
            else:
                self.shards[tp.partition] = ShardTask(tp, self, position)
                starts[tp] = position.next_offset
        return starts

    async def drain(self) -> None:
        """Let every shard finish its page in hand; queued pages are read again by the next owner."""
        shards, self.shards = list(self.shards.values()), {}
        await asyncio.gather(*(shard.stop(_DRAIN_LIMIT_S) for shard in shards))

    def put(self, event: PagedEvent) -> None:
        """Give a page to its shard."""
        shard = self.shards.get(event.value.partition)
        if shard is not None:
            shard.put(event)

    def not_ready(self) -> str | None:
        """Why this part keeps the worker from being ready (TAKE-08)."""
        failed = [shard.shard for shard in self.shards.values() if shard.state is ShardState.FAILED]
        if failed:
            return f"failed shards: {failed}"
        waiting = self._keeper.waiting
        return f"shards that others hold: {dict(sorted(waiting.items()))}" if waiting else None

    def lease_lost(self, shard: int) -> None:
        """The keeper found the lease gone: the shard takes it again, or learns who has it."""
        task = self.shards.get(shard)
        if task is not None:
            task.start_again("its lease is gone")

    def stalled(self, shard: int) -> None:
        """A lane of the shard stands still for too long: unless the shard writes all the time, it starts again (LANE-08)."""
        task = self.shards.get(shard)
        if task is not None and not task.is_writing:
            task.start_again("a lane stands still")

    # --- ShardServices ---------------------------------------------------------------------------------------
    async def position(self, shard: int) -> Position:
        """Fence first, then read where the shard stands, and tell the gateways where that is not where it was."""
        grant = await self._keeper.take(shard)
        # Somebody else may have had the shard since these tables were read: what it wrote is in the changelogs.
        await self._progress.catch_up(shard)
        await self._watermarks.catch_up(shard)
        tp = TP(self._topic, shard)
        term, boundaries = await self._complete_taking(tp, grant)
        stored = await self._store.watermark(shard)
        row = self._watermarks.get(shard)
        log_first = (await self._app.qim_consumer.inline.first_offsets([tp]))[tp]
        table = None if row is None else unpack_w(row["w"])
        first = first_to_verify(table or [ABSENT], log_first)
        plan = plan_takeover(
            table,
            None if stored is None else unpack_w(stored.blob),
            recompute_w(
                first, self._progress.blocks(shard, first), partial(self._progress.known, shard)
            ),
            log_first,
        )
        position = Position(
            lease_term=term,
            context=ShardContext(shard, self._shard_count, self._push_partitions, boundaries),
            base_epoch=_base_epoch(boundaries),
            store_w=None if stored is None else stored.blob,
            starts=plan.starts,
            page_number=0 if row is None else row["page_number"],
            floors=plan.floors if plan.behind else None,
            refused=plan.refused,
            dispatches=OffsetIndex(plan.next_offset, self._progress.block(shard, plan.next_offset)),
        )
        await self._tell_gateways(shard, position, table, row)
        _report(shard, plan)
        _log.info("shard %d starts at %d with term %d", shard, position.next_offset, term)
        return position

    async def _complete_taking(self, tp: TP, grant: LeaseGrant) -> Completed:
        """Raise the epoch where the owner changed (T2, TAKE-04): nobody else writes any more, so B is read now."""
        shard = tp.partition
        recorded = self._progress.epochs(shard)
        known = [] if recorded is None else recorded["boundaries"]
        witnesses = {grant.last_owner, "" if recorded is None else recorded["owner"]}
        first_offset = None
        if others := witnesses - {"", self._keeper.owner}:
            first_offset = (await self._app.qim_consumer.inline.end_offsets([tp]))[tp]
            _log.warning(
                "shard %d comes from %s: a new epoch at %d", shard, min(others), first_offset
            )
        completed = await self._keeper.complete(
            shard, grant.term, first_offset, [(b["epoch"], b["first_offset"]) for b in known]
        )
        row: ShardEpochs = {
            "lease_term": completed.term,
            "owner": self._keeper.owner,
            "boundaries": [{"epoch": e, "first_offset": at} for e, at in completed.boundaries],
        }
        if recorded is None or (recorded["owner"], known) != (row["owner"], row["boundaries"]):
            await self._progress.write_epochs(shard, row)
        return completed

    async def _tell_gateways(
        self, shard: int, at: Position, table: Sequence[LaneMark] | None, row: WatermarkRow | None
    ) -> None:
        """A watermark row, where what they go by is not what the shard starts from: lanes to be closed, a new epoch."""
        epoch = at.context.boundaries[-1][0]
        floors = at.floors or at.starts
        w = pack_behind(at.starts, floors, at.refused)
        if unpack_w(w) == (table or unpack_w(b"\0" * W_UNIFORM_BYTES)) and (
            row is None or row["epoch"] == epoch
        ):
            return
        lowered: WatermarkRow = {
            "lease_term": at.lease_term,
            "epoch": epoch,
            "base_epoch": at.base_epoch,
            "page_number": at.page_number,
            "w": w,
        }
        await self.write_watermark(shard, lowered)

    async def append(self, append: ShardAppend) -> AppendOutcome:
        """Entries and store W, together with the other shards' pages."""
        return await self._appender.append(append)

    async def known_progress(
        self, shard: int, ids: Sequence[bytes]
    ) -> dict[bytes, DispatchProgress]:
        """Progress rows that exist already."""
        return self._progress.get_many(shard, ids)

    async def write_progress(self, shard: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Progress rows, durable in the changelog on return."""
        await self._progress.write(shard, rows)

    async def write_watermark(self, shard: int, row: WatermarkRow) -> None:
        """The watermark row, durable in the changelog on return."""
        await self._watermarks.write(shard, row)

    def push(self, pushes: Sequence[PlannedPush]) -> None:
        """Queue pushes; never waits."""
        self._pushes.push(pushes)

    def hold(self, tp: TP) -> None:
        """Stop reading one partition without losing what is in flight (OBS-09)."""
        counter("qim_mailbox_dispatch_partition_paused_total", str(tp.partition)).add()
        self._app.qim_consumer.hold(tp)

    def release(self, tp: TP) -> None:
        """Read a held partition again."""
        self._app.qim_consumer.release(tp)

    def is_current(self, page: Page) -> bool:
        """False for a page that was read before the shard started anew."""
        return self._app.qim_consumer.is_current(page)

    async def reposition(self, tp: TP, offset: int) -> None:
        """Read this partition from `offset` while the others flow."""
        await self._app.qim_consumer.reposition({tp: offset})


def _base_epoch(boundaries: Boundaries) -> int:
    """The epoch with which the living incarnation of the topic began."""
    return max(epoch for epoch, first in boundaries if first == 0)


def _report(shard: int, plan: Takeover) -> None:
    for lane, mark in plan.refused.items():
        counter("qim_watermark_below_floor_total").add()
        _log.critical("shard %d refuses lane %d, which needs a rebuild: %s", shard, lane, mark)
    lanes = zip(plan.starts, plan.floors, strict=True)
    behind = sum(start < floor for start, floor in lanes)
    if behind:
        _log.error("shard %d: %d lanes are closed until they are replayed", shard, behind)
