"""An outbox and a message store in memory with one-shot hooks (tests/support/hooks.py), and a commit step between them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.commit import CommitStep
from gateway.commit_core import Intent
from gateway.hlc import HybridClock
from gateway.outbox import OutboxPublisher
from gateway.ports import CommitRequest, CommittedMessage
from gateway.recoverer import Recoverer
from schemas.errors import QimError, ServerFault, StoreUnknownOutcome
from schemas.identifiers import direct_conversation_id
from schemas.records import MESSAGE_RECORD, OUTBOX_RECORD, MessageRecord, OutboxRecord
from stores.memory_messages import MemoryMessageStore
from stores.messages import MarkRequest, MarkResult, ReserveRequest, ReserveResult
from tests.support.hooks import Hooks
from tests.support.samples import id16
from tests.support.virtual_time import VirtualClock

__all__ = ["CommitRig", "FakeOutbox", "HookedStore", "request"]

SHARDS = 8
OUTBOX_PARTITIONS = 4


class HookedStore(MemoryMessageStore):
    """The in-memory store under hooks `reserve` and `mark`."""

    def __init__(self, hooks: Hooks, instances: int, now_ms: Callable[[], int]) -> None:
        super().__init__(instances, now_ms)
        self.hooks = hooks
        self.pages: dict[str, list[int]] = defaultdict(list)
        self.errors_as_results = (
            False  # how a store of several instances reports one that is silent
        )

    async def reserve_and_record(
        self, page: Sequence[ReserveRequest]
    ) -> list[ReserveResult | QimError]:
        """See MessageStore."""
        self.pages["reserve"].append(len(page))
        work = super().reserve_and_record
        try:
            return await self.hooks.call("reserve", lambda: work(page))
        except StoreUnknownOutcome as error:
            return self._as_results(error, len(page))

    async def mark_committed(self, page: Sequence[MarkRequest]) -> list[MarkResult | QimError]:
        """See MessageStore."""
        self.pages["mark"].append(len(page))
        work = super().mark_committed
        try:
            return await self.hooks.call("mark", lambda: work(page))
        except StoreUnknownOutcome as error:
            return self._as_results(error, len(page))

    def _as_results(self, error: StoreUnknownOutcome, count: int) -> list[Any]:
        if not self.errors_as_results:
            raise error
        return [error] * count

    def state(self, request: CommitRequest) -> str | None:
        """R, D, O or C of a message; None when the store never heard of it."""
        commit = self._commits.get((request.tenant, request.user, request.client_message_id))
        return None if commit is None else commit.state


class FakeOutbox(OutboxPublisher):
    """The outbox topic in memory, under hook `publish`; each partition can also fail alone."""

    def __init__(self, hooks: Hooks) -> None:
        super().__init__("nowhere:0", "outbox")
        self.hooks = hooks
        self.log: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.refused: set[int] = set()
        self.pages: list[int] = []

    async def publish(
        self, pages: Mapping[int, Sequence[tuple[bytes, bytes]]]
    ) -> dict[int, list[int] | StoreUnknownOutcome]:
        """See OutboxPublisher."""
        self.pages.append(sum(map(len, pages.values())))

        async def work() -> dict[int, list[int] | StoreUnknownOutcome]:
            return {p: self._append(p, records) for p, records in pages.items()}

        try:
            return await self.hooks.call("publish", work)
        except ServerFault as error:  # a broker only ever leaves the outcome unknown
            return dict.fromkeys(pages, StoreUnknownOutcome(error.detail))

    def _append(
        self, partition: int, records: Sequence[tuple[bytes, bytes]]
    ) -> list[int] | StoreUnknownOutcome:
        if partition in self.refused:
            return StoreUnknownOutcome("this partition alone")
        log = self.log[partition]
        log.extend(records)
        return list(range(len(log) - len(records), len(log)))

    def records(self) -> list[OutboxRecord]:
        """All records, partition by partition, in log order."""
        return [
            OUTBOX_RECORD.decode(value) for _, log in sorted(self.log.items()) for _, value in log
        ]

    def messages(self) -> dict[bytes, list[MessageRecord]]:
        """conversation_id -> its records in log order, duplicates included."""
        found: dict[bytes, list[MessageRecord]] = defaultdict(list)
        for outbox in self.records():
            record = MESSAGE_RECORD.decode(outbox["record"])
            found[record["event"]["conversation_id"]].append(record)
        return dict(found)


def request(
    number: int = 1, user: int = 1001, recipient: int = 2002, **change: Any
) -> CommitRequest:
    """The message `number` of a user."""
    base = CommitRequest(
        tenant=0,
        user=user,
        device_id=id16(0xDE71CE),
        session_epoch=1,
        client_message_id=id16(number),
        conversation_id=direct_conversation_id(0, user, recipient),
        recipient_user_id=recipient,
        message_type=1,
        custom_type="",
        body=b"message %d" % number,
    )
    return replace(base, **change)


@dataclass(slots=True)
class Waiter:
    """What became of one submitted request; `state` is the store's state at that very moment."""

    asked: CommitRequest
    result: CommittedMessage | QimError | None = None
    state: str | None = None
    calls: int = 0

    @property
    def committed(self) -> CommittedMessage:
        """The result, which must be a commit."""
        assert isinstance(self.result, CommittedMessage), self.result
        return self.result

    @property
    def error(self) -> QimError:
        """The result, which must be an error."""
        assert isinstance(self.result, QimError), self.result
        return self.result


class CommitRig:
    """One store and one outbox; `start` begins a writer process, `crash` ends it without a goodbye."""

    def __init__(self, instances: int = 2, limit: int = 1024) -> None:
        self.now_ms = VirtualClock()
        self.hooks = Hooks()
        self.store = HookedStore(self.hooks, instances, self.now_ms)
        self.outbox = FakeOutbox(self.hooks)
        self.waiters: list[Waiter] = []
        self._instances = instances
        self._limit = limit
        self._writers = 0
        self._changed = asyncio.Event()
        self.commit: CommitStep = None  # type: ignore[assignment]  # start() sets it

    async def start(self) -> CommitStep:
        """Begin a writer process with an identity of its own."""
        self._writers += 1
        clock = HybridClock(1, self._writers)
        clock.install(*await self.store.claim_hlc_window(1, self._writers, self.now_ms()))
        self.commit = CommitStep(
            self.store,
            self.outbox,
            clock,
            instances=self._instances,
            shard_count=SHARDS,
            outbox_partitions=OUTBOX_PARTITIONS,
            inflight_limit=self._limit,
            now_ms=self.now_ms,
        )
        await self.commit.start()
        return self.commit

    async def crash(self) -> None:
        """The process is gone: its stages end where they are; what they wrote stays."""
        for stage in self.commit._stages:
            await stage.stop()
        self.hooks.revive("reserve", "publish", "mark")

    def submit(self, asked: CommitRequest) -> Waiter:
        """Hand one request to the running writer."""
        waiter = Waiter(asked)
        self.waiters.append(waiter)

        def done(result: CommittedMessage | QimError) -> None:
            waiter.calls += 1
            waiter.result = result
            waiter.state = self.store.state(asked)
            self._changed.set()

        self.commit.submit(asked, done)
        return waiter

    async def settle(self) -> None:
        """Wait until every request handed in since the last crash is answered."""
        while any(waiter.result is None for waiter in self.waiters):
            self._changed.clear()
            await self._changed.wait()

    def forget(self) -> None:
        """Their connections died with the process."""
        self.waiters = [waiter for waiter in self.waiters if waiter.result is not None]

    async def recover(self) -> int:
        """One round of a recoverer, late enough that everything unfinished counts as stale."""
        recoverer = Recoverer(
            self.store, self.commit, self._instances, lambda: self.now_ms() + 60_000
        )
        await recoverer.round()
        while len(self.commit.intents):  # noqa: ASYNC110  # virtual time: passes at once
            await asyncio.sleep(0.01)
        return recoverer.recovered

    def intent(self) -> Intent:
        """The only intent in flight."""
        (intent,) = self.commit.intents._intents.values()
        return intent
