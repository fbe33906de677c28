"""Identifiers as types, and the hashes that derive one from another.

Numbers are `int` subclasses and byte strings `bytes` subclasses that check their range once, on construction;
inside hot loops the plain value is passed on. Every encoding here is frozen in `tests/vectors/identifiers.json`
(OPEN-02, -03, -04, -05, -09; docs/decisions/0002-identifiers-and-hashes.md).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Self

from blake3 import blake3

from schemas.constants import (
    COMMIT_BUCKET_COUNT,
    LANE_COUNT,
    LOG_OFFSET_BITS,
    MAX_EPOCH,
    MAX_LOG_OFFSET,
    MAX_U63,
    MAX_U128,
    VIRTUAL_BUCKET_COUNT,
)
from schemas.errors import IdentifierError

__all__ = [
    "ClientMessageId",
    "ConversationId",
    "ConversationSeq",
    "DeviceId",
    "DispatchId",
    "EventId",
    "LaneId",
    "LogOffset",
    "MailboxSeq",
    "MessageId",
    "SessionEpoch",
    "ShardEpoch",
    "ShardId",
    "TenantId",
    "TraceId",
    "UserId",
    "commit_bucket",
    "compose_seq",
    "direct_conversation_id",
    "dispatch_id_of",
    "event_id_of",
    "lane_of",
    "shard_of",
    "shard_of_bucket",
    "trace_id_of",
    "validate_shard_count",
    "virtual_bucket",
]


class _RangedInt(int):
    LOW: int = 0
    HIGH: int = MAX_U63

    def __new__(cls, value: int) -> Self:
        # bool is an int in Python; an identifier that is True is a bug of the caller.
        if isinstance(value, bool) or not cls.LOW <= value <= cls.HIGH:
            raise IdentifierError(f"{cls.__name__} out of range [{cls.LOW}, {cls.HIGH}]")
        return super().__new__(cls, value)


class TenantId(_RangedInt):
    """u128; 0 is the legacy default tenant (SDK-09)."""

    HIGH = MAX_U128


class UserId(_RangedInt):
    """u63, never 0 (SEQ-10)."""

    LOW = 1


class ConversationSeq(_RangedInt):
    """u63, the first value is 1, gaps are legal (SEQ-05)."""

    LOW = 1


class LogOffset(_RangedInt):
    """48-bit offset in a dispatch partition; 0 is a legal, visible position (SEQ-08)."""

    HIGH = MAX_LOG_OFFSET


class ShardEpoch(_RangedInt):
    """1..0x7FFF (SEQ-10)."""

    LOW = 1
    HIGH = MAX_EPOCH


class ShardId(_RangedInt):
    """0..65535 (LOG-11)."""

    HIGH = VIRTUAL_BUCKET_COUNT - 1


class LaneId(_RangedInt):
    """0..63 (LANE-01)."""

    HIGH = LANE_COUNT - 1


class SessionEpoch(_RangedInt):
    """u63, minted by the Auth/Session service, monotone per (tenant, user, device) (SEQ-23, OPEN-08)."""


class MessageId(_RangedInt):
    """u128 hybrid logical clock value (SEQ-02); the layout is in gateway/hlc.py."""

    HIGH = MAX_U128


class MailboxSeq(_RangedInt):
    """`(shard_epoch << 48) | log_offset`, bit 63 is zero (SEQ-07, SEQ-10)."""

    @classmethod
    def compose(cls, epoch: int, log_offset: int) -> MailboxSeq:
        """Compose with range checks; epoch 1 and offset 0 give 2^48."""
        return cls(compose_seq(epoch, log_offset))

    @property
    def epoch(self) -> int:
        """shard_epoch, the upper 16 bits."""
        return int(self) >> LOG_OFFSET_BITS

    @property
    def log_offset(self) -> int:
        """The part that log positions are compared by (SEQ-12)."""
        return int(self) & MAX_LOG_OFFSET


def compose_seq(epoch: int, log_offset: int) -> int:
    """MailboxSeq.compose as a plain number, for hot loops; raises IdentifierError (SEQ-07, SEQ-10)."""
    if not (1 <= epoch <= MAX_EPOCH and 0 <= log_offset <= MAX_LOG_OFFSET):
        raise IdentifierError(f"ShardEpoch {epoch} or LogOffset {log_offset} out of range")
    return epoch << LOG_OFFSET_BITS | log_offset


class _FixedBytes(bytes):
    LENGTH: int = 16
    ZERO_ALLOWED: bool = True

    def __new__(cls, value: bytes) -> Self:
        if len(value) != cls.LENGTH:
            raise IdentifierError(f"{cls.__name__} must be {cls.LENGTH} bytes")
        if not cls.ZERO_ALLOWED and not any(value):
            raise IdentifierError(f"{cls.__name__} must not be zero")
        return super().__new__(cls, value)


class ConversationId(_FixedBytes):
    """16 non-zero bytes (SEQ-18)."""

    ZERO_ALLOWED = False


class ClientMessageId(_FixedBytes):
    """16 non-zero bytes chosen by the sending device (SEQ-18)."""

    ZERO_ALLOWED = False


class DeviceId(_FixedBytes):
    """16 non-zero bytes."""

    ZERO_ALLOWED = False


class TraceId(_FixedBytes):
    """16 bytes, minted once at commit (SEQ-21)."""


class DispatchId(_FixedBytes):
    """16 bytes (DISP-01)."""


class EventId(_FixedBytes):
    """8 bytes (EVT-04)."""

    LENGTH = 8


_DISPATCH_DOMAIN: Final = b"qim.group-dispatch.v1\0"  # DISP-01
_EVENT_DOMAIN: Final = b"qim.event.v1\0"
_USER_BUCKET_DOMAIN: Final = b"qim.user-bucket.v1\0"
_COMMIT_BUCKET_DOMAIN: Final = b"qim.commit-bucket.v1\0"
_DIRECT_DOMAIN: Final = b"qim.direct-conversation.v1\0"
_TRACE_DOMAIN: Final = b"qim.trace.v1\0"


def _user_key(tenant: int, user: int) -> bytes:
    return tenant.to_bytes(16, "big") + user.to_bytes(8, "big")


# Pure functions of ids that come back with every message of the same people; the bound keeps a few MB at most.
_remember = lru_cache(maxsize=1 << 16)


@_remember
def lane_of(tenant: int, user: int) -> int:
    """Lane = blake3(tenant_be16 || user_be8)[0] & 63; independent of the shard count (LANE-02)."""
    return blake3(_user_key(tenant, user)).digest(1)[0] & (LANE_COUNT - 1)


@_remember
def virtual_bucket(tenant: int, user: int) -> int:
    """Stable bucket 0..65535 of a user; a shard split moves buckets, never rehashes users (SPLIT-04)."""
    return int.from_bytes(blake3(_USER_BUCKET_DOMAIN + _user_key(tenant, user)).digest(2), "big")


def validate_shard_count(shard_count: int) -> int:
    """Return the count if it is a power of two in 1..65536, else raise IdentifierError (LOG-11, FAN-12)."""
    if not 1 <= shard_count <= VIRTUAL_BUCKET_COUNT or shard_count & (shard_count - 1):
        raise IdentifierError(
            f"shard count {shard_count} is not a power of two in 1..{VIRTUAL_BUCKET_COUNT}"
        )
    return shard_count


def shard_of(tenant: int, user: int, shard_count: int) -> int:
    """Shard of a user by virtual bucket; `shard_count` must have passed validate_shard_count (DISP-13)."""
    return shard_of_bucket(virtual_bucket(tenant, user), shard_count)


def shard_of_bucket(bucket: int, shard_count: int) -> int:
    """Shard of a virtual bucket, for whoever needs the bucket as well."""
    return bucket & (shard_count - 1)


@_remember
def commit_bucket(tenant: int, conversation_id: bytes) -> int:
    """Commit bucket 0..255 of a conversation (COM-22)."""
    digest = blake3(_COMMIT_BUCKET_DOMAIN + tenant.to_bytes(16, "big") + conversation_id).digest(1)
    return digest[0] & (COMMIT_BUCKET_COUNT - 1)


@_remember
def direct_conversation_id(tenant: int, user_a: int, user_b: int) -> ConversationId:
    """The conversation of two users, the same whoever asks first; a user may write to themself."""
    low, high = (user_a, user_b) if user_a <= user_b else (user_b, user_a)
    key = _DIRECT_DOMAIN + _user_key(tenant, low) + high.to_bytes(8, "big")
    return ConversationId(blake3(key).digest(16))


def dispatch_id_of(message_id: int, shard: int) -> bytes:
    """16 bytes: one dispatch per (message, target shard) (DISP-01, DISP-02)."""
    return blake3(
        _DISPATCH_DOMAIN + message_id.to_bytes(16, "big") + shard.to_bytes(4, "big")
    ).digest(16)


def event_id_of(tenant: int, dispatch_id: bytes, user: int, event_type: int) -> bytes:
    """8 bytes, deterministic, so that a replay writes the same entry (EVT-04)."""
    key = _EVENT_DOMAIN + tenant.to_bytes(16, "big") + dispatch_id + user.to_bytes(8, "big")
    return blake3(key + event_type.to_bytes(4, "big")).digest(8)


def trace_id_of(message_id: int) -> bytes:
    """16 bytes; derived from the message id, so that a resumed commit keeps the trace it began with (SEQ-21)."""
    return blake3(_TRACE_DOMAIN + message_id.to_bytes(16, "big")).digest(16)
