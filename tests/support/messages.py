"""What the shared message suite is written with: the harness that each backend brings, requests, records."""

from abc import ABC, abstractmethod
from typing import Any

from schemas.constants import CLIENT_DEDUP_TTL_S
from stores.messages import (
    MarkRequest,
    MessageStore,
    ReserveRequest,
)

__all__ = ["TTL_MS", "MessageHarness", "mark_of", "record_of", "request_of"]

TTL_MS = CLIENT_DEDUP_TTL_S * 1000


class MessageHarness(ABC):
    """One backend on two instances, empty at the beginning of a test."""

    store: MessageStore

    @abstractmethod
    def now_ms(self) -> int:
        """The store's clock."""

    @abstractmethod
    async def expiry_ms(self, request: ReserveRequest) -> int | None:
        """When the commit of a request ends, None for never."""

    @abstractmethod
    async def history(self, request: ReserveRequest) -> dict[int, bytes]:
        """Records of the request's conversation by sequence."""

    @abstractmethod
    async def pass_dedup_ttl(self, request: ReserveRequest) -> None:
        """Let the dedup TTL of a committed request run out."""

    @abstractmethod
    async def end_writer_lease(self, region: int, writer: int) -> None:
        """Let a writer lease run out."""


def request_of(
    now_ms: int, number: int = 1, conversation: int = 1, **fields: Any
) -> ReserveRequest:
    """Message `number` of a conversation; fields override."""
    request = ReserveRequest(
        tenant=0,
        sender=5,
        client_message_id=number.to_bytes(16, "big"),
        conversation_id=conversation.to_bytes(16, "big"),
        bucket=conversation % 256,
        identity=b"QIMD" + number.to_bytes(32, "big"),
        message_id=b"m" + number.to_bytes(15, "big"),
        last_activity_id=b"l" + number.to_bytes(15, "big"),
        trace_id=b"t" + number.to_bytes(15, "big"),
        committed_at_ms=now_ms,
        record_head=b"head",
        record_tail=b"tail" * 30 + number.to_bytes(4, "big"),
        outbox_meta=b"audience" * 12,
    )
    return request._replace(**fields)


def mark_of(request: ReserveRequest, offset: int = 70) -> MarkRequest:
    """The mark of a request, published at (3, offset)."""
    return MarkRequest(
        request.tenant,
        request.sender,
        request.client_message_id,
        request.conversation_id,
        request.bucket,
        request.message_id,
        3,
        offset,
        request.committed_at_ms,
    )


def record_of(request: ReserveRequest, seq: int) -> bytes:
    """The canonical record as it must be stored."""
    return request.record_head + seq.to_bytes(8, "big") + request.record_tail
