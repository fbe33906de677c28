"""What the gateway's shell asks of the parts behind it: plain values and narrow protocols.

The wire side (`protocol.py`, `server.py`) and the commit step (`commit.py`) meet only here, so either can be tested against
a fake of the other. Values are immutable; ids are the raw bytes or ints that `schemas/identifiers.py` has already checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.errors import QimError
from stores.mailbox import MailboxHead, ScanRequest, ScanResult

__all__ = ["CommitDone", "CommitRequest", "CommittedMessage", "Committer", "MailboxReads"]


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """One checked SEND_MESSAGE of an authenticated device, ready for the commit step.

    The actor (`tenant`, `user`, `device_id`, `session_epoch`) comes from the connection's session and never from the frame
    (GW-14). `client_message_id`, `conversation_id` and `device_id` are 16 non-zero bytes (SEQ-18). `message_type` is the raw
    u32, unknown values included (SEQ-17). `custom_type` has at most 64 UTF-8 bytes, "" when absent (COM-26). `mentions` are
    user ids; `reply_to` is the 16-byte message_id replied to, or None.
    """

    tenant: int
    user: int
    device_id: bytes
    session_epoch: int
    client_message_id: bytes
    conversation_id: bytes
    recipient_user_id: int
    message_type: int
    custom_type: str
    body: bytes
    mentions: tuple[int, ...] = ()
    reply_to: bytes | None = None


@dataclass(frozen=True, slots=True)
class CommittedMessage:
    """The coordinates of a message in state COMMITTED; the only value a SEND_ACK can be built from (COM-01, COM-02).

    `message_id`, `last_activity_id` and `trace_id` are 16 bytes big-endian. `duplicate` says that an earlier request with the
    same identity committed it: the coordinates are the first ones (COM-04).
    """

    message_id: bytes
    conversation_seq: int
    last_activity_id: bytes
    committed_at_ms: int
    trace_id: bytes
    duplicate: bool = False


CommitDone = Callable[[CommittedMessage | QimError], None]
"""Called once for each submitted request, on the event loop, with the result or with the error to report."""


class Committer(Protocol):
    """The commit step as the gateway sees it (`gateway/commit.py`)."""

    @property
    def has_capacity(self) -> bool:
        """False while the bounded queue or the in-flight limit is reached: stop reading sockets (COM-17, REG-17)."""

    def submit(self, request: CommitRequest, done: CommitDone) -> None:
        """Queue `request`; never blocks and never drops. `done` is called later, never from inside this call."""

    async def start(self) -> None:
        """Claim what committing needs (writer id, HLC window, a ready producer); raises `QimError` when that fails."""

    async def stop(self) -> None:
        """Finish what is in flight, then release it."""


class MailboxReads(Protocol):
    """The part of `stores.mailbox.MailboxStore` that a gateway may use: it never writes a mailbox."""

    async def heads(self, scans: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
        """See MailboxStore."""

    async def range_scan(self, scans: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
        """See MailboxStore."""
