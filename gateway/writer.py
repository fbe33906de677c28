"""ConversationWriter: the commit step with what it needs to live — a writer id, HLC windows, a producer, a recoverer.

A writer that cannot renew its identity stops minting ids: commits stop rather than risk one id for two messages
(HLC-02, HLC-03). Each process start takes a writer id of its own lease, so a restart never continues a window whose
use it cannot know.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from gateway.commit import CommitStep
from gateway.hlc import HybridClock
from gateway.outbox import OutboxPublisher
from gateway.ports import CommitDone, CommitRequest
from gateway.recoverer import Recoverer
from schemas.background import Background
from schemas.config import Settings
from schemas.constants import WRITER_LEASE_RENEW_MS, WRITER_LEASE_TTL_MS
from schemas.errors import ServerFault, StartRefused
from schemas.topics import outbox_topic
from stores.messages import MessageStore

__all__ = ["ConversationWriter"]

_log = logging.getLogger(__name__)
_CHECK_S = 1.0


class ConversationWriter:
    """`gateway.ports.Committer` over a real message store and broker."""

    def __init__(self, settings: Settings, store: MessageStore) -> None:
        self._settings = settings
        self._store = store
        self._owner = f"{settings.gateway_name}/{secrets.token_hex(8)}"
        self._publisher = OutboxPublisher(settings.broker, outbox_topic(settings.app_id))
        self._writer_id = -1
        self._clock: HybridClock | None = None
        self._commit: CommitStep | None = None
        self._recoverer: Recoverer | None = None
        self._keeping = Background("writer-identity", self._keep)

    @property
    def has_capacity(self) -> bool:
        """See Committer."""
        return self._commit is not None and self._commit.has_capacity

    @property
    def inflight(self) -> int:
        """Messages between reserve and SEND_ACK."""
        return 0 if self._commit is None else len(self._commit.intents)

    @property
    def queue_depth(self) -> int:
        """Messages that wait for their first page."""
        return 0 if self._commit is None else self._commit.queue_depth

    @property
    def recovered(self) -> int:
        """Commits that the recoverer continued."""
        return 0 if self._recoverer is None else self._recoverer.recovered

    @property
    def pending_batches(self) -> int:
        """Record batches of the outbox that are not sent yet."""
        return self._publisher.pending_batches

    def submit(self, request: CommitRequest, done: CommitDone) -> None:
        """See Committer; only after start()."""
        if self._commit is None:
            raise ServerFault("the writer is not running")
        self._commit.submit(request, done)

    async def start(self) -> None:
        """Claim the writer id and the first window, connect the producer, start the stages and the recoverer."""
        settings = self._settings
        explicit = settings.writer_id
        self._writer_id = (
            explicit
            if explicit is not None
            else await self._store.claim_writer_id(
                settings.region_id, self._owner, WRITER_LEASE_TTL_MS
            )
        )
        self._clock = HybridClock(settings.region_id, self._writer_id)
        await self._extend_window(self._clock)
        await self._publisher.start()
        partitions = await self._publisher.ready()
        if partitions != settings.outbox_partitions:
            raise StartRefused(
                f"outbox has {partitions} partitions, {settings.outbox_partitions} are configured"
            )
        instances = len(settings.commit_redis)
        self._commit = CommitStep(
            self._store,
            self._publisher,
            self._clock,
            instances=instances,
            shard_count=settings.mailbox_shard_count,
            outbox_partitions=settings.outbox_partitions,
            inflight_limit=settings.writer_request_inflight_limit,
            page_interval_s=settings.gateway_page_interval_ms / 1000,
        )
        await self._commit.start()
        self._recoverer = Recoverer(self._store, self._commit, instances)
        self._recoverer.start()
        self._keeping.start()

    async def stop(self) -> None:
        """Finish what is in flight, then give the identity back."""
        if self._recoverer is not None:
            await self._recoverer.stop()
        if self._commit is not None:
            await self._commit.stop()
        await self._keeping.stop()
        await self._publisher.stop()

    async def ready(self) -> None:
        """Raises unless the outbox answers with its partitions now and ids can be minted (COM-19)."""
        if self._clock is None or self._clock.exhausted(_now_ms()):
            raise ServerFault("no HLC window")
        if await self._publisher.ready() != self._settings.outbox_partitions:
            raise ServerFault("outbox partitions changed")

    async def _keep(self) -> None:
        renew_at = time.monotonic() + WRITER_LEASE_RENEW_MS / 1000
        clock = self._clock
        assert clock is not None  # start() made it
        while True:
            await asyncio.sleep(_CHECK_S)
            try:
                if self._settings.writer_id is None and time.monotonic() >= renew_at:
                    renewed = await self._store.renew_writer_id(
                        self._settings.region_id, self._writer_id, self._owner, WRITER_LEASE_TTL_MS
                    )
                    if not renewed:
                        _log.critical("writer id %d is lost: no more message ids", self._writer_id)
                        clock.revoke()
                        return
                    renew_at = time.monotonic() + WRITER_LEASE_RENEW_MS / 1000
                if clock.needs_window(_now_ms()):
                    await self._extend_window(clock)
            except ServerFault as error:
                _log.error("writer identity is not renewed: %s", error.detail)

    async def _extend_window(self, clock: HybridClock) -> None:
        """Persist the next window first, install it then (HLC-02)."""
        window = await self._store.claim_hlc_window(
            self._settings.region_id, self._writer_id, _now_ms()
        )
        clock.install(*window)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
