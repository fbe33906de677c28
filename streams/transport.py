"""The transport of the Faust graph: pages instead of records, explicit start positions, flow per partition.

A Faust transport plugin (entry point group `faust.transports`, broker URLs `qim://host:port`). It differs from Faust's
own aiokafka transport in this:

1. Agents receive pages (streams/pages.py); Faust's per-record work is paid once a page.
2. Owned partitions come from the slots of the configuration; no group is joined (streams/ownership.py).
3. Streams start where `app.start_offsets` says, after the tables are recovered; nothing is fetched before (TAKE-02,
   TAKE-07). A start outside the log fails closed (LOG-08).
4. A partition is held and released without losing what is in flight (FAN-10), and one shard is repositioned while the
   others flow.
5. Only an unbroken run of acknowledged pages is committed (streams/acks.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from faust.transport import drivers
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, Message
from mode import Service, ServiceT

from schemas.errors import StartRefused
from schemas.metrics import now_us
from streams.acks import AckLedger
from streams.catchup import CatchUp, check_starts
from streams.fetching import BUSY_WAIT_MS, InlineConsumer
from streams.gates import Gates, Reason
from streams.pacing import Pacemaker
from streams.pages import Page, Record, cut_pages, page_message
from streams.producing import QimProducer
from streams.recovery import BatchRecovery

if TYPE_CHECKING:
    from streams.app import QimApp

__all__ = ["QimConsumer", "QimProducer", "Transport"]

_POLL_S = 1.0
_RECOVERY_POLL_S = 0.1
# Decoding more records at once would keep the loop busy for more than a few milliseconds.
_POLL_RECORDS = 2048
_NO_PARTITIONS: frozenset[TP] = frozenset()


class QimConsumer(driver.Consumer):
    """Consumer of a worker: all stream topics are paged, changelogs go to table recovery."""

    _read_us = 0.0  # when the pages that are being delivered came from the broker

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.gates = Gates()
        self.ledger = AckLedger()
        self.catch_up = CatchUp()
        self._drained = False
        super().__init__(*args, **kwargs)
        worker = self._worker
        self.pacemaker = Pacemaker(
            worker.qim.fetch_pace, worker.paced_topics, self._close, self._open_all
        )

    def _new_consumer_thread(self) -> InlineConsumer:
        return InlineConsumer(self, beacon=self.beacon)

    @property
    def inline(self) -> InlineConsumer:
        """The aiokafka consumer behind this one."""
        return cast("InlineConsumer", self._thread)

    @property
    def _worker(self) -> QimApp:
        return cast("QimApp", self.app)

    # -- flow of single partitions -------------------------------------------------------------------------------

    def _close(self, partitions: Iterable[TP], reason: Reason) -> None:
        if shut := self.gates.close(partitions, reason):
            self.inline.pause(self.inline.assigned(shut))
        self._choose_wait()

    def _open(self, partitions: Iterable[TP], reason: Reason) -> None:
        if opened := self.gates.open(partitions, reason):
            self.inline.resume(self.inline.assigned(opened))
        self._choose_wait()

    def _choose_wait(self) -> None:
        """The next fetch must be back when a closed partition may open: no other is sent meanwhile."""
        limit_ms = self._worker.qim.fetch_max_wait_ms
        if (
            self.gates.closed_for(Reason.HOLD)
            or self.gates.closed_for(Reason.BUFFER)
            or self.app.in_recovery
        ):
            limit_ms = min(BUSY_WAIT_MS, limit_ms)
        else:
            # While the outbox waits nothing but what follows from it can come: one fetch until then, not several.
            limit_ms = self.pacemaker.remaining_ms or limit_ms
        self.inline.wait_at_most(limit_ms)

    def _open_all(self, reason: Reason) -> None:
        if not self.should_stop and (closed := self.gates.closed_for(reason)):
            self._open(closed, reason)

    def gathered(self) -> None:
        """What follows from the pages of the paced topics is in the log: it may be fetched."""
        self.pacemaker.gathered()

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """Faust stops a partition: recovery, revocation, shutdown."""
        partitions = set(tps)
        super().pause_partitions(partitions)
        self._close(partitions, Reason.FAUST)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Faust lets a partition flow; one without a start position stays closed all the same."""
        partitions = set(tps)
        super().resume_partitions(partitions)
        self._open(partitions, Reason.FAUST)

    def on_buffer_full(self, tp: TP) -> None:
        """Faust's queue of the agent is full."""
        self._close((tp,), Reason.BUFFER)

    def on_buffer_drop(self, tp: TP) -> None:
        """Faust's queue of the agent has room again; a held partition stays held."""
        self._open((tp,), Reason.BUFFER)

    def hold(self, tp: TP) -> None:
        """Stop one partition without losing anything; pages already on their way still arrive (FAN-10)."""
        self._close((TP(tp.topic, tp.partition),), Reason.HOLD)

    def release(self, tp: TP) -> None:
        """Let a held partition flow again."""
        self._open((TP(tp.topic, tp.partition),), Reason.HOLD)

    async def reposition(self, starts: Mapping[TP, int]) -> None:
        """Start single partitions anew, each at its first offset to process, while the others flow.

        Also releases them. Pages of before are void from now on: `is_current` is false for them. Raises
        StartRefused when an offset is outside the log.
        """
        wanted = {TP(tp.topic, tp.partition): offset for tp, offset in starts.items()}
        self._close(wanted, Reason.SEEK)
        try:
            await self._check_range(wanted)
            self._place(wanted)
            self.gates.open(wanted, Reason.HOLD)
            self.gates.open(wanted, Reason.BUFFER)
        finally:
            self._open(wanted, Reason.SEEK)

    def is_current(self, page: Page) -> bool:
        """Whether a page was read under the present positioning of its partition.

        An agent must drop a page of which this is false: the same records come again.
        """
        return self.ledger.is_current(TP(page.topic, page.partition), page)

    # -- start positions -----------------------------------------------------------------------------------------

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """A new assignment: nothing of it flows before its start position is known."""
        self.gates.close(assigned, Reason.FAUST)
        self.gates.close(self._streams(assigned), Reason.START)
        self.catch_up = CatchUp()
        self._drained = False
        self._recovery.positioned = False
        await super().on_partitions_assigned(assigned, generation_id)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """The assignment ends, for good or for a new one."""
        await super().on_partitions_revoked(revoked)
        self.gates.forget(revoked)
        for tp in revoked:
            self.ledger.forget(tp)

    def _streams(self, partitions: Iterable[TP]) -> set[TP]:
        return {tp for tp in partitions if not self._is_changelog_tp(tp)}

    async def perform_seek(self) -> None:
        """Position all streams; Faust calls this once the tables are recovered.

        Faust's fetcher also calls it when it finds the flow stopped. Then the partitions are about to be revoked or
        the worker is stopping, and there is nothing to position.
        """
        if not self.flow_active or self.app.should_stop:
            return
        streams = self._streams(self.assignment())
        self._close(streams, Reason.START)
        limit = self._worker.qim.start_timeout_s
        try:
            async with asyncio.timeout(limit):
                starts = await self._start_offsets(streams)
                ends = await self._check_range(starts)
        except TimeoutError:
            raise StartRefused(f"start positions are not known after {limit} s") from None
        self._place(starts)
        self.catch_up.begin(starts, ends)
        self._open(streams, Reason.START)
        self._worker.positioned.set()

    async def _start_offsets(self, streams: set[TP]) -> dict[TP, int]:
        """First offset to process of each stream partition.

        The application's word comes first (W + 1, TAKE-02); what it leaves open starts at the committed offset, and
        a partition without one at the oldest record.
        """
        hook = self._worker.start_offsets
        starts = dict(await hook(set(streams))) if hook is not None else {}
        if rest := streams - starts.keys():
            committed = await self.inline.committed_offsets(rest)
            first = await self.inline.first_offsets(rest)
            starts |= {tp: committed.get(tp, first[tp]) for tp in rest}
        return starts

    async def _check_range(self, starts: Mapping[TP, int]) -> dict[TP, int]:
        """End offsets of the partitions; raises StartRefused when a start is outside its log (LOG-08)."""
        first = await self.inline.first_offsets(starts)
        ends = await self.inline.end_offsets(starts)
        check_starts(starts, first, ends)
        return ends

    def _place(self, starts: Mapping[TP, int]) -> None:
        self.inline.place(starts)
        for tp, offset in starts.items():
            self.ledger.start(tp, offset)
            self._committed_offset[tp] = offset
            self._read_offset[tp] = offset

    # -- delivery ------------------------------------------------------------------------------------------------

    async def _drain_messages(self, fetcher: ServiceT) -> None:
        """Fetch and deliver until the worker stops; runs as the one task of Faust's Fetcher."""
        try:
            while not (self.should_stop or cast("Service", fetcher).should_stop):
                if not self.flow_active:
                    await self.wait(self.can_resume_flow.wait())
                    continue
                recovery = self._recovery
                timeout_s = _RECOVERY_POLL_S if recovery.in_recovery else _POLL_S
                fetched = await self.inline.poll(timeout_s, _POLL_RECORDS)
                if not recovery.in_recovery:
                    self.pacemaker.polled(fetched, self._streams(self.assignment()))
                    self._choose_wait()
                self._read_us = now_us()
                for tp, records in fetched.items():
                    await self._deliver(TP(tp.topic, tp.partition), records)
                recovery.step(self)
                # Nothing above suspends while there is always something to fetch.
                await asyncio.sleep(0)
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise

    @property
    def _recovery(self) -> BatchRecovery:
        return cast("BatchRecovery", cast("Any", self._worker.tables).recovery)

    async def _deliver(self, tp: TP, records: Sequence[Record]) -> None:
        if self._is_changelog_tp(tp):
            if self._recovery.in_recovery:
                self._recovery.apply(tp, records)
            return
        limit = self._worker.qim.page_records
        for page in cut_pages(tp.topic, tp.partition, records, limit):
            if not self.flow_active or not self.ledger.stamp(tp, page):
                return  # revoked meanwhile; whoever owns it next reads it again
            page.read_us = self._read_us
            await self.callback(page_message(tp, page, self.app.consumer_generation_id))
            # An agent takes one event a loop pass. Without this, pages pile up in its queue, and a shard that is
            # full notices too late to hold its partition.
            await asyncio.sleep(0)

    # -- acknowledgement and commit ------------------------------------------------------------------------------

    def ack(self, message: Message) -> bool:
        """Book a page as processed; True when the commit position of its partition moved."""
        page: Any = message.value
        if type(page) is not Page:
            return super().ack(message)
        if message.acked:
            return False
        message.acked = True
        self._unacked_messages.discard(message)
        tp = message.tp
        moved = self.ledger.ack(TP(tp.topic, tp.partition), page)
        if moved:
            self._acked[tp] = [page.offset]
        return moved

    def _new_offset(self, tp: TP) -> int | None:
        """The offset to commit: the end of the unbroken run of acknowledged pages, if it moved."""
        return self.ledger.position(tp) if self._acked.pop(tp, None) else None

    async def wait_empty(self) -> None:
        """Before tables close: let the shards finish their page in hand, then commit what they acknowledged.

        Faust would wait for every unacknowledged message, for ever when one shard has failed. Runs at most once an
        assignment.
        """
        if not self._drained:
            self._drained = True
            limit = self._worker.qim.drain_timeout_s
            try:
                async with asyncio.timeout(limit):
                    if self._worker.drain_shards is not None:
                        await self._worker.drain_shards()
            except TimeoutError:
                self.log.exception("shards not drained after %s s; their pages come again", limit)
        await self.commit_and_end_transactions()

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Not used: changelogs and held partitions are idle on purpose."""

    async def create_topic(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: topics are made by operations and only read back here (LOG-11)."""


class Transport(driver.Transport):
    """What the URL scheme `qim` stands for."""

    Consumer: ClassVar[type[QimConsumer]] = QimConsumer
    Producer: ClassVar[type[QimProducer]] = QimProducer


# Also without an installed distribution (whose entry point says the same) the scheme must be known.
drivers.TRANSPORTS.aliases.setdefault("qim", "streams.transport:Transport")
