"""The commit state machine without I/O: what a reserve result means, and which requests wait for which intent.

States (COM-01, COM-07): R reserved, D recorded, O outboxed, C committed. SEND_ACK is built only from C (COM-02); every
middle state is continued, by the retry of the client or by the recoverer, with the record that the intent already
holds (COM-03).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from gateway.ports import CommitDone, CommitRequest, CommittedMessage
from schemas.digests import identity_digest
from schemas.errors import ErrorCode, QimError, RequestError
from schemas.identifiers import commit_bucket, shard_of

__all__ = ["Intent", "IntentTable", "Step", "audience_of", "next_step"]


class Step(Enum):
    """What an intent needs next."""

    PUBLISH = auto()
    MARK = auto()
    ACK = auto()


_NEXT: Final = {"R": Step.PUBLISH, "D": Step.PUBLISH, "O": Step.MARK, "C": Step.ACK}


def next_step(state: str) -> Step:
    """The step that continues an intent found in `state`; an unknown letter is damage of the store."""
    try:
        return _NEXT[state]
    except KeyError:
        raise QimError(f"commit state {state!r} is unknown", ErrorCode.INTERNAL) from None


def audience_of(
    tenant: int, sender: int, recipient: int, shard_count: int
) -> tuple[list[int], list[int]]:
    """(recipients, target shards) of a direct message, the sender included; both frozen at commit (EVT-11, DISP-11)."""
    recipients = [sender] if sender == recipient else [sender, recipient]
    shards = sorted({shard_of(tenant, user, shard_count) for user in recipients})
    return recipients, shards


@dataclass(slots=True, eq=False)
class Intent:
    """One message on its way to COMMITTED, and everybody who waits for it."""

    tenant: int
    sender: int
    client_message_id: bytes
    conversation_id: bytes
    bucket: int
    identity: bytes
    request: CommitRequest | None = None  # None when the recoverer found it
    waiters: list[CommitDone] = field(default_factory=list)
    duplicate: bool = False
    message_id: bytes = b""
    last_activity_id: bytes = b""
    trace_id: bytes = b""
    committed_at_ms: int = 0
    conversation_seq: int = 0
    outbox_head: bytes = b""
    record: bytes = b""
    outbox_partition: int = -1
    outbox_offset: int = -1
    admitted_us: float = 0.0  # clock of schemas.metrics.now_us

    @property
    def key(self) -> tuple[int, int, bytes]:
        """What deduplication goes by (COM-05)."""
        return self.tenant, self.sender, self.client_message_id

    def committed(self) -> CommittedMessage:
        """The coordinates, once the store says COMMITTED."""
        return CommittedMessage(
            self.message_id,
            self.conversation_seq,
            self.last_activity_id,
            self.committed_at_ms,
            self.trace_id,
            self.duplicate,
        )


class IntentTable:
    """Intents in flight in this process, at most `limit` of them plus what was already admitted.

    A retry of a message that is still in flight joins it instead of publishing a second outbox record (COM-08).
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._intents: dict[tuple[int, int, bytes], Intent] = {}

    def __len__(self) -> int:
        return len(self._intents)

    def __contains__(self, key: tuple[int, int, bytes]) -> bool:
        return key in self._intents

    @property
    def has_capacity(self) -> bool:
        """False at the limit: the gateway stops reading sockets (COM-17)."""
        return len(self._intents) < self._limit

    def admit(self, request: CommitRequest, done: CommitDone) -> Intent | None:
        """A new intent to process, or None when `request` joined one in flight.

        The request has passed gateway/checks.py. Raises RequestError when it reuses the client_message_id of another
        message.
        """
        identity = identity_digest(
            request.device_id,
            request.conversation_id,
            request.message_type,
            request.custom_type,
            request.body,
            request.mentions,
            0 if request.reply_to is None else int.from_bytes(request.reply_to, "big"),
        )
        key = (request.tenant, request.user, request.client_message_id)
        running = self._intents.get(key)
        if running is not None:
            if running.identity != identity:
                raise RequestError(
                    "client_message_id belongs to another message", ErrorCode.IDEMPOTENCY_CONFLICT
                )
            running.waiters.append(done)
            return None
        bucket = commit_bucket(request.tenant, request.conversation_id)
        intent = Intent(*key, request.conversation_id, bucket, identity, request, [done])
        self._intents[key] = intent
        return intent

    def adopt(self, intent: Intent) -> bool:
        """Take an intent that the recoverer found; False when it is in flight already."""
        if intent.key in self._intents:
            return False
        self._intents[intent.key] = intent
        return True

    def drain(self) -> list[Intent]:
        """Whatever is still in flight, for a shell that ends."""
        return list(self._intents.values())

    def finish(self, intent: Intent) -> list[CommitDone]:
        """Forget the intent and return its waiters, in order of arrival."""
        self._intents.pop(intent.key, None)
        waiters, intent.waiters = intent.waiters, []
        return waiters
