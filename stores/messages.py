"""MessageStore: reservation, record and commit state of messages, HLC windows and writer ids (COM, HLC groups).

Requests of a page are independent of each other. A fault of one request is its result; what concerns the whole call (no
answer) is raised as StoreUnknownOutcome, and the caller repeats the page: every operation here may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from schemas.errors import ErrorCode, QimError, StoreFault

__all__ = [
    "CommitDamaged",
    "MarkRequest",
    "MarkResult",
    "MessageStore",
    "ReserveRequest",
    "ReserveResult",
    "StaleIntent",
]


class CommitDamaged(StoreFault):
    """The stored state of one commit is damaged or not what the request presumes; nothing was written for it."""

    code = ErrorCode.INTERNAL


class ReserveRequest(NamedTuple):
    """One message to be committed; ids are raw 16 bytes, `identity` is the 36-byte digest (COM-13).

    The canonical record is `record_head || conversation_seq be8 || record_tail`; `outbox_meta` is what a recoverer
    needs beside it to publish (COM-03) and stays opaque here.
    """

    tenant: int
    sender: int
    client_message_id: bytes
    conversation_id: bytes
    bucket: int
    identity: bytes
    message_id: bytes
    last_activity_id: bytes
    trace_id: bytes
    committed_at_ms: int
    record_head: bytes
    record_tail: bytes
    outbox_meta: bytes


class ReserveResult(NamedTuple):
    """`status` fresh: this request took `conversation_seq`; existing: the same message was here before, with these ids;
    conflict: the client_message_id belongs to another message or conversation (COM-05), all other fields are empty.

    `state` is R, D, O or C (COM-07). `record` and `outbox_meta` are None in state C, where nobody needs them any more;
    the outbox coordinates are None before O.
    """

    status: str
    state: str = ""
    conversation_seq: int = 0
    message_id: bytes = b""
    last_activity_id: bytes = b""
    trace_id: bytes = b""
    committed_at_ms: int = 0
    record: bytes | None = None
    outbox_meta: bytes | None = None
    outbox_partition: int | None = None
    outbox_offset: int | None = None


class MarkRequest(NamedTuple):
    """One message whose outbox record is durable at (outbox_partition, outbox_offset)."""

    tenant: int
    sender: int
    client_message_id: bytes
    conversation_id: bytes
    bucket: int
    message_id: bytes
    outbox_partition: int
    outbox_offset: int
    committed_at_ms: int


class MarkResult(NamedTuple):
    """`status` marked, or existing when it was COMMITTED before; the coordinates are those of the first mark."""

    status: str
    outbox_partition: int
    outbox_offset: int


class StaleIntent(NamedTuple):
    """A commit left in the middle: everything that continues it without the client (COM-03). `state` is D or O."""

    state: str
    tenant: int
    sender: int
    client_message_id: bytes
    conversation_id: bytes
    bucket: int
    identity: bytes
    message_id: bytes
    last_activity_id: bytes
    trace_id: bytes
    committed_at_ms: int
    conversation_seq: int
    record: bytes
    outbox_meta: bytes


class MessageStore(Protocol):
    """A commit backend; all backends pass one shared suite."""

    async def reserve_and_record(
        self, page: Sequence[ReserveRequest]
    ) -> list[ReserveResult | QimError]:
        """Deduplicate, allocate conversation_seq and record (COM-06); a refused request uses no sequence."""

    async def reserve_only(self, page: Sequence[ReserveRequest]) -> list[ReserveResult | QimError]:
        """The first half alone: fresh requests stay in R. Only for tests of that crash point (CON-21)."""

    async def mark_committed(self, page: Sequence[MarkRequest]) -> list[MarkResult | QimError]:
        """COMMITTED; the commit shrinks to what an ACK replay needs and expires after the dedup TTL (COM-11, COM-12)."""

    async def stale_intents(
        self, instance: int, older_than_ms: int, limit: int
    ) -> list[StaleIntent]:
        """Commits in R, D or O with committed_at_ms <= `older_than_ms`, oldest first; an R is continued to D.

        A damaged one is logged and left out: it stays in the index and never disappears (COM-10).
        """

    async def claim_hlc_window(
        self, region_id: int, writer_id: int, now_ms: int
    ) -> tuple[int, int]:
        """[start_ms, end_ms) of 60 s, persisted, strictly above every earlier window of this writer (HLC-01)."""

    async def claim_writer_id(self, region_id: int, owner: str, ttl_ms: int) -> int:
        """Lease a writer id (HLC-04); the same owner gets the same one again. Raises StoreFault when all are taken."""

    async def renew_writer_id(
        self, region_id: int, writer_id: int, owner: str, ttl_ms: int
    ) -> bool:
        """Extend the lease; False when it is no longer ours."""
