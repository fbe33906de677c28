"""The commit step (ConversationWriter): RESERVED -> RECORDED -> OUTBOXED -> COMMITTED -> SEND_ACK. See docs/commit.md.

1. reserve  one EVALSHA per commit instance and page: dedup, conversation_seq, canonical record, recovery index.
2. publish  one record batch per outbox partition and page, acks=all.
3. mark     one EVALSHA per commit instance and page: COMMITTED, the intent shrinks to what an ACK replay needs.
4. ack      every waiter gets the CommittedMessage.

Each step is one PagedStage: what piled up while its last page was in flight is its next page. Steps overlap, pages of
one step do not, so the outbox order of a conversation is the order of its sequences. An unknown outcome is retried
with the same page, in place: later messages wait behind it, nothing overtakes and nothing is guessed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from gateway.commit_core import Intent, IntentTable, Step, audience_of, next_step
from gateway.hlc import HybridClock
from gateway.outbox import OutboxPublisher
from gateway.ports import CommitDone, CommitRequest, CommittedMessage
from schemas.errors import ErrorCode, QimError, ServerFault, StoreUnknownOutcome
from schemas.identifiers import trace_id_of
from schemas.kill_points import KillPoint, reached
from schemas.message import encode_message, encode_outbox_head, join_outbox
from schemas.metrics import counter, histogram, now_us
from schemas.topics import outbox_partition_of
from stores.messages import MarkRequest, MessageStore, ReserveRequest, ReserveResult
from stores.paging import Pace, PagedStage

__all__ = ["CommitStep"]

_log = logging.getLogger(__name__)
_PAGE_MAX = 256
_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0
_DRAIN_LIMIT_S = 5.0
_Result = TypeVar("_Result")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class CommitStep:
    """Commits pages of messages; `gateway.ports.Committer` is what the gateway sees of it.

    `page_interval_s` is how far apart the pages of a busy gateway may start (stores/paging.py). `now_ms` is the wall clock, injectable.
    """

    def __init__(
        self,
        store: MessageStore,
        publisher: OutboxPublisher,
        clock: HybridClock,
        *,
        instances: int,
        shard_count: int,
        outbox_partitions: int,
        inflight_limit: int,
        page_interval_s: float = 0.0,
        now_ms: Callable[[], int] = _wall_clock_ms,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._shard_count = shard_count
        self._outbox_partitions = outbox_partitions
        self._now_ms = now_ms
        self.intents = IntentTable(inflight_limit)
        self._stopping = False
        self._empty = asyncio.Event()  # set when the last intent ends while stopping

        def stage(
            name: str, process: Callable[[list[Intent]], Awaitable[None]], pace: Pace | None = None
        ) -> PagedStage[Intent]:
            return PagedStage(name, process, max_records=_PAGE_MAX, pace=pace)

        self._reserve = [
            stage("commit.reserve", self._reserve_page, Pace(page_interval_s))
            for _ in range(instances)
        ]
        self._publish = stage("commit.publish", self._publish_page)
        self._mark = [stage("commit.mark", self._mark_page) for _ in range(instances)]
        self._stages = [*self._reserve, self._publish, *self._mark]
        self._round_trip = histogram("qim_gateway_send_round_trip_us")
        self._dropped = counter("qim_gateway_backend_dropped_total")

    @property
    def has_capacity(self) -> bool:
        """False at the in-flight limit: the gateway stops reading sockets (COM-17)."""
        return self.intents.has_capacity

    @property
    def queue_depth(self) -> int:
        """Messages that wait for their first page (GW-12, OBS-07); the in-flight limit bounds them."""
        return sum(map(len, self._reserve))

    def submit(self, request: CommitRequest, done: CommitDone) -> None:
        """Queue one message; `done` is called once, later, with the CommittedMessage or the error."""
        if self._stopping:
            error = ServerFault("gateway is draining", ErrorCode.DRAINING)
            asyncio.get_running_loop().call_soon(done, error)
            return
        try:
            intent = self.intents.admit(request, done)
        except QimError as error:
            asyncio.get_running_loop().call_soon(done, error)
            return
        if intent is not None:
            intent.admitted_us = now_us()
            self._reserve[intent.bucket % len(self._reserve)].put(intent)

    def resume(self, intent: Intent, state: str) -> bool:
        """Continue an intent that the recoverer found in `state`; False when it is in flight here already."""
        if not self.intents.adopt(intent):
            return False
        self._continue(intent, next_step(state))
        return True

    async def start(self) -> None:
        """Start the stages; store and publisher must be ready."""
        for stage in self._stages:
            stage.start()

    async def stop(self) -> None:
        """Refuse new messages, finish what is in flight for at most 5 s, then stop. What is left is recovered later."""
        self._stopping = True
        if len(self.intents):
            try:
                await asyncio.wait_for(self._empty.wait(), _DRAIN_LIMIT_S)
            except TimeoutError:
                _log.warning("%d commits are left to the recoverer", len(self.intents))
        for stage in self._stages:
            await stage.stop()
        for intent in self.intents.drain():
            self._fail(intent, ServerFault("gateway is draining", ErrorCode.DRAINING))

    # --- 1. reserve ------------------------------------------------------------------------------------------
    async def _reserve_page(self, page: list[Intent]) -> None:
        requests: list[ReserveRequest] = []
        intents: list[Intent] = []
        for intent in page:
            try:
                requests.append(self._prepare(intent))
                intents.append(intent)
            except QimError as error:
                self._fail(intent, error)
        if not intents:
            return
        results = await self._until_known(lambda: self._store.reserve_and_record(requests))
        for intent, request, result in zip(intents, requests, results, strict=True):
            if isinstance(result, QimError):
                self._fail(intent, result)
            else:
                self._reserved(intent, request, result)

    def _prepare(self, intent: Intent) -> ReserveRequest:
        request = intent.request
        assert request is not None  # only submitted intents are reserved
        now_ms = self._now_ms()
        minted = self._clock.mint(now_ms)
        message_id = minted.to_bytes(16, "big")
        trace_id = trace_id_of(minted)
        recipients, shards = audience_of(
            request.tenant, request.user, request.recipient_user_id, self._shard_count
        )
        parts = encode_message(
            tenant=request.tenant,
            message_id=message_id,
            trace_id=trace_id,
            conversation_id=request.conversation_id,
            sender=request.user,
            sender_device_id=request.device_id,
            client_message_id=request.client_message_id,
            committed_at_ms=now_ms,
            message_type=request.message_type,
            custom_type=request.custom_type,
            body=request.body,
            mentions=request.mentions,
            reply_to=request.reply_to,
            member_count=len(recipients),
        )
        head = encode_outbox_head(
            request.tenant, message_id, request.user, recipients, shards, parts.event_bytes
        )
        return ReserveRequest(
            tenant=request.tenant,
            sender=request.user,
            client_message_id=request.client_message_id,
            conversation_id=request.conversation_id,
            bucket=intent.bucket,
            identity=intent.identity,
            message_id=message_id,
            last_activity_id=message_id,
            trace_id=trace_id,
            committed_at_ms=now_ms,
            record_head=parts.record_head,
            record_tail=parts.record_tail,
            outbox_meta=head,
        )

    def _reserved(self, intent: Intent, request: ReserveRequest, result: ReserveResult) -> None:
        if result.status == "conflict":
            error = "client_message_id belongs to another message"
            self._fail(intent, QimError(error, ErrorCode.IDEMPOTENCY_CONFLICT))
            return
        # A page that was repeated after a lost reply finds what its first try reserved: the same message_id.
        intent.duplicate = result.status != "fresh" and result.message_id != request.message_id
        intent.conversation_seq = result.conversation_seq
        if result.status == "fresh":
            seq = result.conversation_seq.to_bytes(8, "big")
            intent.message_id, intent.last_activity_id = request.message_id, request.message_id
            intent.trace_id, intent.committed_at_ms = request.trace_id, request.committed_at_ms
            intent.outbox_head = request.outbox_meta
            intent.record = request.record_head + seq + request.record_tail
        else:
            intent.message_id, intent.last_activity_id = result.message_id, result.last_activity_id
            intent.trace_id, intent.committed_at_ms = result.trace_id, result.committed_at_ms
            intent.outbox_head = result.outbox_meta or b""
            intent.record = result.record or b""
            if result.outbox_partition is not None and result.outbox_offset is not None:
                intent.outbox_partition = result.outbox_partition
                intent.outbox_offset = result.outbox_offset
        try:
            self._continue(intent, next_step(result.state))
        except QimError as error:
            self._fail(intent, error)

    def _continue(self, intent: Intent, step: Step) -> None:
        if step is Step.PUBLISH:
            self._publish.put(intent)
        elif step is Step.MARK:
            self._mark[intent.bucket % len(self._mark)].put(intent)
        else:
            self._acknowledge(intent)

    # --- 2. publish ------------------------------------------------------------------------------------------
    async def _publish_page(self, page: list[Intent]) -> None:
        by_partition: dict[int, list[Intent]] = defaultdict(list)
        for intent in page:
            partition = outbox_partition_of(
                intent.tenant, intent.conversation_id, self._outbox_partitions
            )
            by_partition[partition].append(intent)
        backoff_s = _BACKOFF_FIRST_S
        while by_partition:
            records = {
                partition: [(i.message_id, join_outbox(i.outbox_head, i.record)) for i in intents]
                for partition, intents in by_partition.items()
            }
            for partition, result in (await self._publisher.publish(records)).items():
                if isinstance(result, StoreUnknownOutcome):
                    continue
                reached(KillPoint.AFTER_OUTBOX)
                for intent, offset in zip(by_partition.pop(partition), result, strict=True):
                    intent.outbox_partition, intent.outbox_offset = partition, offset
                    self._continue(intent, Step.MARK)
            if by_partition:
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)

    # --- 3. mark ---------------------------------------------------------------------------------------------
    async def _mark_page(self, page: list[Intent]) -> None:
        requests = [
            MarkRequest(
                tenant=i.tenant,
                sender=i.sender,
                client_message_id=i.client_message_id,
                conversation_id=i.conversation_id,
                bucket=i.bucket,
                message_id=i.message_id,
                outbox_partition=i.outbox_partition,
                outbox_offset=i.outbox_offset,
                committed_at_ms=i.committed_at_ms,
            )
            for i in page
        ]
        reached(KillPoint.BEFORE_MARK)
        results = await self._until_known(lambda: self._store.mark_committed(requests))
        for intent, result in zip(page, results, strict=True):
            if isinstance(result, QimError):
                self._fail(intent, result)
            else:
                self._acknowledge(intent)
        if page[0].admitted_us:  # a recovered intent has nobody who waits
            self._round_trip.observe(now_us() - page[0].admitted_us)

    # --- 4. ack ----------------------------------------------------------------------------------------------
    def _acknowledge(self, intent: Intent) -> None:
        self._finish(intent, intent.committed())

    def _fail(self, intent: Intent, error: QimError) -> None:
        self._finish(intent, error)

    def _finish(self, intent: Intent, result: CommittedMessage | QimError) -> None:
        waiters = self.intents.finish(intent)
        if not waiters and intent.request is not None:
            self._dropped.add()  # it came from a client, and nobody is told (GW-12)
        for done in waiters:
            done(result)
        if self._stopping and not len(self.intents):
            self._empty.set()

    async def _until_known(
        self, call: Callable[[], Awaitable[Sequence[_Result]]]
    ) -> Sequence[_Result]:
        """Repeat an idempotent page until the store answers; the page holds its place meanwhile.

        A fault of one request comes as its result; what is raised, and an unknown outcome, concern the whole page.
        """
        backoff_s = _BACKOFF_FIRST_S
        while True:
            try:
                results = await call()
                unknown = next((r for r in results if isinstance(r, StoreUnknownOutcome)), None)
                if unknown is None:
                    return results
                detail = unknown.detail
            except ServerFault as error:
                detail = error.detail
            _log.error("commit store: %s; the page is repeated in %.2f s", detail, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
