"""One consumer without a group follows the watermarks changelog and the push topic (PUSH-05: nothing is asked per push).

Start, in this order: the positions of the push partitions are fixed at their ends, then the changelog is read from the
beginning to the end it had after that. So every push that this gateway never sees is covered by the W it starts with, and a
login that begins now pulls it. "Caught up" is judged by the high watermark of the Fetch answers (TAKE-08, REG-46).

While busy, fetches keep a distance (`Pace`): each costs broker and gateway half a millisecond, whatever it carries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from gateway.cursor import EpochBoundaries
from gateway.pushes import PushRouter
from gateway.visibility import WatermarkView
from schemas.errors import QimError, RecordError, StartRefused
from schemas.records import PUSH_BATCH, WATERMARK_ROW
from stores.fetch_pace import FetchPace
from stores.paging import Pace

__all__ = ["BoundarySource", "Follower"]

_log = logging.getLogger(__name__)
_POLL_MS: Final = 1000
_RETRY_S: Final = 0.5

BoundarySource = Callable[[int], Awaitable[EpochBoundaries]]
"""Reads the epoch boundaries of a shard from the registry; asked only when a row, or a cursor that another gateway signed,
names an epoch that is not known yet."""


class Follower:
    """Feeds the watermark view and the push router; `on_ready` is called after each fetch that routed something."""

    def __init__(
        self,
        *,
        broker: str,
        watermarks_topic: str,
        push_topic: str,
        push_partitions: int,
        view: WatermarkView,
        router: PushRouter,
        boundaries: BoundarySource,
        on_ready: Callable[[], None],
        fetch_max_wait_ms: int,
        pace: Pace | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._broker = broker
        self._watermarks = [
            TopicPartition(watermarks_topic, shard) for shard in range(len(view.shards))
        ]
        self._pushes = [TopicPartition(push_topic, part) for part in range(push_partitions)]
        self._view = view
        self._router = router
        self._boundaries = boundaries
        self._on_ready = on_ready
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._pace = pace or Pace()
        self._consumer: AIOKafkaConsumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._targets: dict[TopicPartition, int] = {}
        self._next: dict[TopicPartition, int] = {}  # the first offset that was not taken yet
        self._caught_up = asyncio.Event()
        self.bad_records = 0
        self.failed = False
        self._on_failure = on_failure

    @property
    def caught_up(self) -> bool:
        """True once the changelog was read up to where it ended at the start, while the consumer still runs."""
        return self._caught_up.is_set() and not self.failed

    def lags(self) -> Iterator[tuple[TopicPartition, int]]:
        """Records of each partition between the log's end, as the last fetch told it, and what was taken."""
        consumer = self._consumer
        if consumer is None:
            return
        for partition, taken in self._next.items():
            end = consumer.highwater(partition)
            yield partition, max(0, (end or taken) - taken)

    async def start(self, timeout_s: float) -> None:
        """Connect, read the changelog to its end, go on in the background.

        Raises StartRefused when that is not done in time: a gateway with a stale W would call present messages absent.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect()
                self._task = asyncio.get_running_loop().create_task(self._run(), name="follower")
                await self._caught_up.wait()
        except (TimeoutError, KafkaError) as error:
            await self.stop()
            raise StartRefused(f"watermarks were not read: {type(error).__name__}") from error

    async def stop(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop()

    async def _connect(self) -> None:
        self._consumer = consumer = AIOKafkaConsumer(
            bootstrap_servers=self._broker,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=self._fetch_max_wait_ms,
        )
        await consumer.start()
        consumer.assign([*self._watermarks, *self._pushes])
        await consumer.seek_to_end(*self._pushes)
        for partition in self._pushes:
            await consumer.position(partition)
        self._targets = dict(await consumer.end_offsets(self._watermarks))
        await consumer.seek_to_beginning(*self._watermarks)

    async def _run(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        pace = FetchPace(consumer._fetcher, self._pace, self._fetch_max_wait_ms)  # noqa: SLF001
        while True:
            try:
                records = await consumer.getmany(timeout_ms=_POLL_MS)
                pace.fetched(sum(map(len, records.values())))
                await self._take(records)
                if not self._caught_up.is_set():
                    await self._judge_start(consumer)
            except (KafkaError, QimError) as error:
                # Nothing is lost: W only gets older and pushes are found by the next pull.
                _log.error("following is interrupted: %s", type(error).__name__)
                await asyncio.sleep(_RETRY_S)
            except Exception as error:
                self.failed = True
                _log.exception("following ended")
                if self._on_failure is not None:
                    self._on_failure(error)
                raise

    async def _judge_start(self, consumer: AIOKafkaConsumer) -> None:
        for partition, end in list(self._targets.items()):
            # The answer of a Fetch is the better witness of where the log ends; it comes for empty partitions as well.
            witnessed = consumer.highwater(partition)
            if witnessed is not None and await consumer.position(partition) >= max(end, witnessed):
                del self._targets[partition]
        if not self._targets:
            self._caught_up.set()

    async def _take(self, fetched: dict[TopicPartition, list[ConsumerRecord[Any, Any]]]) -> None:
        for partition, taken in fetched.items():
            self._next[partition] = taken[-1].offset + 1
        for partition in self._watermarks:
            records = fetched.get(partition)
            if records:
                await self._take_rows(partition.partition, records)
        for partition in self._pushes:
            self._take_pushes(fetched.get(partition) or ())
        self._on_ready()

    async def _take_rows(self, shard: int, records: Iterable[ConsumerRecord[Any, Any]]) -> None:
        view = self._view.shards[shard]
        for record in records:
            if record.value is None:
                continue
            try:
                row = WATERMARK_ROW.decode(record.value)
                if row["epoch"] > view.boundaries[-1][0]:
                    view.set_boundaries(await self._boundaries(shard))
                view.update(row)
            except RecordError as error:
                self._count_bad("watermark row", error)
        self._router.release(shard)

    def _take_pushes(self, records: Iterable[ConsumerRecord[Any, Any]]) -> None:
        for record in records:
            try:
                self._router.offer(PUSH_BATCH.decode(record.value or b""))
            except RecordError as error:
                self._count_bad("push", error)

    def _count_bad(self, what: str, error: RecordError) -> None:
        self.bad_records += 1
        _log.error("%s skipped: %s", what, error.detail)
