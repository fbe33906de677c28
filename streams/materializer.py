"""MailboxMaterializer: hands dispatch pages to one task a shard, and gives those tasks the real services.

Start, in this order (TAKE-01): take the lease (fences whoever wrote before), read the epoch boundaries, read W of the
store and of the table, start at min(W) + 1 whatever the consumer group committed (TAKE-02, TAKE-07).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from faust.types import TP

from schemas.constants import LANE_COUNT
from schemas.metrics import counter
from schemas.records import DispatchProgress, WatermarkRow
from schemas.watermarks import NOTHING, unpack_w
from stores.leases import ShardLeases
from stores.mailbox import AppendOutcome, MailboxStore, ShardAppend
from streams.app import QimApp
from streams.appender import MailboxAppender
from streams.expand import PlannedPush, ShardContext
from streams.lanes import pack_marks
from streams.leases import LeaseKeeper
from streams.pages import Page
from streams.push import PushWriter
from streams.shard import PagedEvent, Position, ShardState, ShardTask
from tables.progress import ProgressTable
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
        leases: ShardLeases,
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
        self._leases = leases
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
        positions = await asyncio.gather(*(self.position(tp.partition) for tp in mine))
        for tp, position in zip(mine, positions, strict=True):
            self.shards[tp.partition] = ShardTask(tp, self, position)
        return {tp: position.next_offset for tp, position in zip(mine, positions, strict=True)}

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
        return f"failed shards: {failed}" if failed else None

    # --- ShardServices ---------------------------------------------------------------------------------------
    async def position(self, shard: int) -> Position:
        """Fence first, then read where the shard stands."""
        term = await self._keeper.take(shard)
        boundaries = await self._leases.boundaries(shard)
        stored = await self._store.watermark(shard)
        row = self._watermarks.get(shard)
        store_w = None if stored is None else stored.blob
        table_marks = _marks(None if row is None else row["w"])
        starts = tuple(map(min, table_marks, _marks(store_w)))
        position = Position(
            lease_term=term,
            context=ShardContext(shard, self._shard_count, self._push_partitions, boundaries),
            base_epoch=boundaries[0][0],
            store_w=store_w,
            starts=starts,
            page_number=0 if row is None else row["page_number"],
        )
        if starts != table_marks:
            # The mailbox has less than the table says: gateways must not go by the table until the replay is there.
            _log.error("shard %d: mailbox is behind the table: replaying", shard)
            await self._lower_watermark(shard, position)
        _log.info("shard %d starts at %d with term %d", shard, position.next_offset, term)
        return position

    async def _lower_watermark(self, shard: int, position: Position) -> None:
        row: WatermarkRow = {
            "lease_term": position.lease_term,
            "epoch": position.context.boundaries[-1][0],
            "base_epoch": position.base_epoch,
            "page_number": position.page_number,
            "w": pack_marks(position.starts),
        }
        await self.write_watermark(shard, row)

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


def _marks(blob: bytes | None) -> tuple[int, ...]:
    """W of all lanes; nothing is covered where nothing is stored."""
    return (NOTHING,) * LANE_COUNT if blob is None else tuple(lane.w for lane in unpack_w(blob))
