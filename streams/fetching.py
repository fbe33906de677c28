"""The aiokafka consumer of a worker: in the worker's own loop, assigned statically, positioned explicitly.

Faust runs its Kafka consumer in a thread of its own. Under one interpreter lock that buys no parallelism but costs two
thread switches a fetch, each up to the switch interval (5 ms) while the main loop is busy. Here the same class runs in
the worker's loop, so consumer state may be read and changed directly.

aiokafka's pause is the one truth about what is fetched. A partition is paused from its assignment on until somebody
gives it a position, so aiokafka never fetches from a committed offset by itself (TAKE-02).
"""

# ruff: noqa: SLF001  # the whole module is a seam to private parts of Faust and aiokafka

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.errors import ConsumerStoppedError, IllegalStateError, KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service

from schemas.errors import StartRefused, StoreFault
from schemas.metrics import histogram, now_us
from streams.ownership import StaticAssignor
from streams.pages import Record
from streams.prefetched import drop_prefetched

if TYPE_CHECKING:
    from streams.app import QimApp

__all__ = ["BUSY_WAIT_MS", "InlineConsumer"]

# While something is held or being recovered, partitions join the next fetch, not the one in flight: keep it short.
BUSY_WAIT_MS = 10
_POLL_S = 0.005


def _kafka(partitions: Iterable[TP]) -> list[KafkaPartition]:
    return [KafkaPartition(tp.topic, tp.partition) for tp in partitions]


class InlineConsumer(driver.AIOKafkaConsumerThread):
    """Faust's consumer "thread" without the thread, and without a consumer group to join."""

    wait_for_shutdown = False

    def __init__(self, consumer: driver.Consumer, **kwargs: Any) -> None:
        super().__init__(consumer, thread_loop=consumer.loop, **kwargs)
        self._topics: frozenset[str] = frozenset()
        self._commit_us = histogram("qim_fanout_offset_commit_us")

    @property
    def _worker(self) -> QimApp:
        return cast("QimApp", self.app)

    # -- the service, started and stopped in the worker's loop ---------------------------------------------------

    async def maybe_start(self) -> bool:
        """Start unless started."""
        if self._started.is_set():
            return False
        await self.start()
        return True

    async def start(self) -> None:
        """Start as an ordinary service."""
        await Service.start(self)

    async def stop(self) -> None:
        """Stop as an ordinary service."""
        await Service.stop(self)

    async def on_stop(self) -> None:
        """Close the connections to the broker."""
        if self._consumer is not None:
            await self._consumer.stop()

    async def crash(self, exc: BaseException) -> None:
        """Take the worker down with the reason."""
        await Service.crash(self, exc)

    def _stopped_set(self) -> None:
        self._stopped.set()

    def set_shutdown(self) -> None:
        """Nothing waits in another thread."""
        self._shutdown.set()

    async def _stop_children(self) -> None:
        await self._default_stop_children()

    async def _stop_futures(self) -> None:
        await self._default_stop_futures()

    async def _stop_exit_stacks(self) -> None:
        await self._default_stop_exit_stacks()

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fun` here: there is no other thread."""
        result = fun(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    @Service.task
    async def _thread_keepalive(self) -> None:
        """No thread has to be kept awake."""

    # -- assignment ----------------------------------------------------------------------------------------------

    def _create_worker_consumer(self, transport: driver.Transport) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = self._worker.qim.fetch_max_wait_ms
        # Out of range means that records are gone or that the topic is another one: fail closed (LOG-08).
        consumer._auto_offset_reset = "none"
        return consumer

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Own the planned partitions of these topics; repeated calls with the same topics change nothing.

        With `app.first_slots` the slots are those that it says; none at all make a spare worker, which waits for `own`.

        The assignment runs as a task of its own: Faust waits for this call before it lets the listener finish.
        """
        wanted = frozenset(topics)
        if wanted == self._topics:
            return
        if self._topics:
            raise StartRefused(f"topics changed after the start: {sorted(wanted ^ self._topics)}")
        self._topics = wanted
        self.add_future(self._begin())

    async def _begin(self) -> None:
        app = self._worker
        if app.first_slots is not None:
            app.ownership = app.ownership.with_slots(await app.first_slots())
        await self._assign(set())

    async def own(self, slots: frozenset[int], drained: Callable[[], Awaitable[None]]) -> None:
        """Make these slots the assignment; everything owned before is drained, and goes on where it is kept.

        `drained` is called in between, when nothing of before is in hand any more.
        """
        app = self._worker
        before = self.assignment()
        app.ownership = app.ownership.with_slots(slots)
        app.positioned.clear()
        await self._assign({TP(tp.topic, tp.partition) for tp in before}, drained)
        if slots:
            async with asyncio.timeout(app.qim.start_timeout_s):
                await app.positioned.wait()

    async def _assign(
        self, before: set[TP], drained: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Tell Faust about an assignment, as if a rebalance had brought it."""
        counts = await self.partition_counts(self._topics)
        app = self._worker
        app.check_partition_counts(counts)
        if not (app.ownership.owned or before):
            return
        partitions = cast("StaticAssignor", app.assignor).take(app.ownership.plan(counts))
        consumer = self._ensure_consumer()
        await self._rebalance_listener.on_partitions_revoked(before)
        if drained is not None:
            await drained()
        consumer.assign(_kafka(partitions))
        for tp in _kafka(partitions):  # no await since assign(): aiokafka never acts on it itself
            consumer._subscription.pause(tp)
            consumer.seek(tp, 0)
        await self._rebalance_listener.on_partitions_assigned(partitions)

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partition count by topic, read back from the broker; every partition has a leader (LOG-11).

        Raises StartRefused when a topic is missing after `start_timeout_s`.
        """
        client = self._ensure_consumer()._client
        names = set(topics)
        missing = sorted(names)
        try:
            async with asyncio.timeout(self._worker.qim.start_timeout_s):
                await client.set_topics(names)
                while missing := [n for n in sorted(names) if not self._has_leaders(client, n)]:
                    await asyncio.sleep(0.05)
                    await client.force_metadata_update()
        except TimeoutError:
            raise StartRefused(f"topics without partitions or leaders: {missing}") from None
        return {name: len(client.cluster.partitions_for_topic(name)) for name in names}

    @staticmethod
    def _has_leaders(client: Any, topic: str) -> bool:
        known = client.cluster.partitions_for_topic(topic)
        return bool(known) and known == client.cluster.available_partitions_for_topic(topic)

    def topic_partitions(self, topic: str) -> int | None:
        """Partition count of a topic as the broker's metadata has it."""
        if self._consumer is None:
            return None
        known = self._consumer._client.cluster.partitions_for_topic(topic)
        return len(known) if known else None

    # -- positions and flow --------------------------------------------------------------------------------------

    def pause(self, partitions: Iterable[TP]) -> None:
        """Fetch no more from these; what was fetched ahead is dropped and fetched again later."""
        consumer = self._ensure_consumer()
        records = consumer._fetcher._records
        for tp in _kafka(partitions):
            consumer._subscription.pause(tp)
            # Undelivered records of a paused partition would hold back the fetches of all others (0.1 s).
            drop_prefetched(records, tp)

    def resume(self, partitions: Iterable[TP]) -> None:
        """Fetch from these again, from their position on."""
        for tp in _kafka(partitions):
            self._ensure_consumer()._subscription.resume(tp)

    def place(self, starts: Mapping[TP, int]) -> None:
        """Set the next offset to fetch of each partition."""
        consumer = self._ensure_consumer()
        for tp, offset in zip(_kafka(starts), starts.values(), strict=True):
            drop_prefetched(consumer._fetcher._records, tp)
            consumer.seek(tp, offset)

    def fetch_position(self, tp: TP) -> int:
        """The offset of the next record that aiokafka will hand out."""
        return cast("int", self._state(tp).position)

    def _state(self, tp: TP) -> Any:
        assignment = self._ensure_consumer()._subscription.subscription.assignment
        return assignment.state_value(KafkaPartition(tp.topic, tp.partition))

    def ends(self) -> dict[TP, int]:
        """Where the log of each assigned partition ends, as its last fetch told; empty before the start."""
        if self._consumer is None or self._consumer._subscription.subscription is None:
            return {}
        assignment = self._consumer._subscription.subscription.assignment
        if assignment is None:
            return {}
        states = {tp: assignment.state_value(tp) for tp in assignment.tps}
        return {
            TP(tp.topic, tp.partition): state.highwater
            for tp, state in states.items()
            if state.highwater is not None
        }

    async def commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commit offsets to the group, as a hint (TAKE-02)."""
        begin_us = now_us()
        committed = await self._commit(offsets)
        self._commit_us.observe(now_us() - begin_us)
        return committed

    def wait_at_most(self, limit_ms: int) -> None:
        """Choose the long poll of the next fetches."""
        self._ensure_consumer()._fetcher._fetch_max_wait_ms = limit_ms

    async def poll(self, timeout_s: float, max_records: int) -> Mapping[TP, Sequence[Record]]:
        """Records of all open partitions, as soon as there are any; empty after `timeout_s` at most.

        Raises StoreFault when a position is out of the log's range: its records are gone (LOG-08).
        """
        consumer = self._ensure_consumer()
        fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        try:
            fetched = await fetcher.fetched_records((), timeout=timeout_s, max_records=max_records)
        except KafkaError as error:
            raise StoreFault(f"fetch failed: {error!r}") from error
        return cast("Mapping[TP, Sequence[Record]]", fetched)

    # -- offsets of the log --------------------------------------------------------------------------------------

    async def _highwaters(self, partitions: Iterable[TP]) -> Mapping[TP, int]:
        """End offset of each partition, from Fetch responses.

        ListOffsets is only the place to look from: a broker may answer it with a position inside the last batch,
        and recovery would then end before the tail of the changelog.
        """
        wanted = list(partitions)
        ends = await self.end_offsets(wanted)
        self.wait_at_most(BUSY_WAIT_MS)
        self.place(ends)
        for tp in wanted:
            self._state(tp).highwater = None
        self.resume(wanted)
        try:
            while any(self._state(tp).highwater is None for tp in wanted):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
        finally:
            self.pause(wanted)
        return {tp: cast("int", self._state(tp).highwater) for tp in wanted}

    async def end_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        """End offsets as ListOffsets answers them."""
        found = await self._ensure_consumer().end_offsets(_kafka(partitions))
        return {TP(tp.topic, tp.partition): offset for tp, offset in found.items()}

    async def first_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        """The oldest offset that each partition still holds."""
        found = await self._ensure_consumer().beginning_offsets(_kafka(partitions))
        return {TP(tp.topic, tp.partition): offset for tp, offset in found.items()}

    async def committed_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        """Offsets committed by this application, of those partitions that have one."""
        consumer = self._ensure_consumer()
        wanted = list(partitions)
        found = await asyncio.gather(*(consumer.committed(tp) for tp in _kafka(wanted)))
        return {tp: offset for tp, offset in zip(wanted, found, strict=True) if offset is not None}

    async def _seek_wait(self, consumer: AIOKafkaConsumer, partitions: Mapping[TP, int]) -> None:
        for tp, offset in partitions.items():
            consumer.seek(KafkaPartition(tp.topic, tp.partition), offset)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Not used: changelogs and held partitions are idle on purpose."""

    def assigned(self, partitions: Iterable[TP]) -> list[TP]:
        """Those of `partitions` that are assigned now."""
        try:
            owned = self.assignment()
        except IllegalStateError:
            return []
        return [tp for tp in partitions if tp in owned]
