"""MessageStore in memory: the same state machine as the scripts, for tests of everything above the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.constants import CLIENT_DEDUP_TTL_S, HLC_WINDOW_MS
from schemas.errors import QimError, StoreFault
from stores.messages import (
    CommitDamaged,
    MarkRequest,
    MarkResult,
    ReserveRequest,
    ReserveResult,
    StaleIntent,
)

__all__ = ["MemoryMessageStore"]

_TTL_MS: Final = CLIENT_DEDUP_TTL_S * 1000
_WRITER_IDS: Final = 65_536

_CommitKey = tuple[int, int, bytes]
_ConversationKey = tuple[int, bytes]


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Commit:
    state: str
    request: ReserveRequest
    conversation_seq: int
    record: bytes
    outbox: tuple[int, int] | None = None
    ends_at_ms: int | None = None


class MemoryMessageStore:
    """The in-memory backend; `instances` spreads buckets as a deployment would, `now_ms` is the store's clock."""

    def __init__(self, instances: int = 1, now_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self._instances = instances
        self._now_ms = now_ms
        self._commits: dict[_CommitKey, _Commit] = {}
        self._sequences: dict[_ConversationKey, int] = {}
        self.history: dict[_ConversationKey, dict[int, bytes]] = {}
        self._windows: dict[tuple[int, int], int] = {}
        self._writers: dict[tuple[int, int], tuple[str, int]] = {}

    def ends_at_ms(self, tenant: int, sender: int, client_message_id: bytes) -> int | None:
        """When a commit is forgotten, None for never."""
        return self._commits[tenant, sender, client_message_id].ends_at_ms

    async def reserve_and_record(
        self, page: Sequence[ReserveRequest]
    ) -> list[ReserveResult | QimError]:
        """See MessageStore."""
        return [self._reserve(request, "D") for request in page]

    async def reserve_only(self, page: Sequence[ReserveRequest]) -> list[ReserveResult | QimError]:
        """See MessageStore."""
        return [self._reserve(request, "R") for request in page]

    def _reserve(self, request: ReserveRequest, target: str) -> ReserveResult:
        key = (request.tenant, request.sender, request.client_message_id)
        commit = self._living(key)
        if commit is not None:
            known = commit.request
            if (known.identity, known.conversation_id) != (
                request.identity,
                request.conversation_id,
            ):
                return ReserveResult("conflict")
            if commit.state == "R" and target == "D":
                self._put_record(commit)
            return self._result("existing", commit)
        conversation = (request.tenant, request.conversation_id)
        seq = self._sequences.get(conversation, 0) + 1
        self._sequences[conversation] = seq
        record = request.record_head + seq.to_bytes(8, "big") + request.record_tail
        commit = _Commit("R", request, seq, record)
        self._commits[key] = commit
        if target == "D":
            self._put_record(commit)
        return self._result("fresh", commit)

    def _living(self, key: _CommitKey) -> _Commit | None:
        commit = self._commits.get(key)
        if commit is None or commit.ends_at_ms is None or commit.ends_at_ms > self._now_ms():
            return commit
        del self._commits[key]
        return None

    def _put_record(self, commit: _Commit) -> None:
        conversation = (commit.request.tenant, commit.request.conversation_id)
        self.history.setdefault(conversation, {})[commit.conversation_seq] = commit.record
        commit.state = "D"

    @staticmethod
    def _result(status: str, commit: _Commit) -> ReserveResult:
        request, done = commit.request, commit.state == "C"
        return ReserveResult(
            status,
            commit.state,
            commit.conversation_seq,
            request.message_id,
            request.last_activity_id,
            request.trace_id,
            request.committed_at_ms,
            None if done else commit.record,
            None if done else request.outbox_meta,
            *(commit.outbox or (None, None)),
        )

    async def mark_committed(self, page: Sequence[MarkRequest]) -> list[MarkResult | QimError]:
        """See MessageStore."""
        return [self._mark(request) for request in page]

    def _mark(self, request: MarkRequest) -> MarkResult | QimError:
        commit = self._living((request.tenant, request.sender, request.client_message_id))
        if commit is None:
            return CommitDamaged("missing")
        if commit.request.message_id != request.message_id or commit.state == "R":
            return CommitDamaged("state")
        if commit.outbox is not None:
            return MarkResult("existing", *commit.outbox)
        commit.state = "C"
        commit.outbox = (request.outbox_partition, request.outbox_offset)
        now_ms = self._now_ms()
        commit.ends_at_ms = commit.request.committed_at_ms + _TTL_MS
        if commit.ends_at_ms < now_ms + _TTL_MS // 2:
            commit.ends_at_ms = now_ms + _TTL_MS
        return MarkResult("marked", *commit.outbox)

    async def stale_intents(
        self, instance: int, older_than_ms: int, limit: int
    ) -> list[StaleIntent]:
        """See MessageStore."""
        stale = [
            commit
            for commit in self._commits.values()
            if commit.state != "C"
            and commit.request.bucket % self._instances == instance
            and commit.request.committed_at_ms <= older_than_ms
        ]
        stale.sort(key=lambda commit: commit.request.committed_at_ms)
        for commit in stale[:limit]:
            if commit.state == "R":
                self._put_record(commit)
        return [_stale(commit) for commit in stale[:limit]]

    async def claim_hlc_window(
        self, region_id: int, writer_id: int, now_ms: int
    ) -> tuple[int, int]:
        """See MessageStore."""
        first = max(now_ms, self._windows.get((region_id, writer_id), -1) + 1)
        self._windows[region_id, writer_id] = first + HLC_WINDOW_MS - 1
        return first, first + HLC_WINDOW_MS

    async def claim_writer_id(self, region_id: int, owner: str, ttl_ms: int) -> int:
        """See MessageStore."""
        now_ms = self._now_ms()
        for writer_id in range(_WRITER_IDS):
            holder, ends_at_ms = self._writers.get((region_id, writer_id), ("", 0))
            if holder == owner or ends_at_ms <= now_ms:
                self._writers[region_id, writer_id] = (owner, now_ms + ttl_ms)
                return writer_id
        raise StoreFault(f"every writer id of region {region_id} is leased")

    async def renew_writer_id(
        self, region_id: int, writer_id: int, owner: str, ttl_ms: int
    ) -> bool:
        """See MessageStore."""
        now_ms = self._now_ms()
        holder, ends_at_ms = self._writers.get((region_id, writer_id), ("", 0))
        if holder != owner or ends_at_ms <= now_ms:
            return False
        self._writers[region_id, writer_id] = (owner, now_ms + ttl_ms)
        return True


def _stale(commit: _Commit) -> StaleIntent:
    request = commit.request
    return StaleIntent(
        commit.state,
        request.tenant,
        request.sender,
        request.client_message_id,
        request.conversation_id,
        request.bucket,
        request.identity,
        request.message_id,
        request.last_activity_id,
        request.trace_id,
        request.committed_at_ms,
        commit.conversation_seq,
        commit.record,
        request.outbox_meta,
    )
