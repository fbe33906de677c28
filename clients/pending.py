"""Messages of this device that have no coordinates yet, and when to worry about them (GW-09).

A message is kept until a SEND_ACK or its own mailbox entry gives it coordinates, or until it fails for good. On one
connection it passes two moments, counted from when it was first sent there: after ACK_TIMEOUT_S it is overdue and the
connection is probed, after DETECTION_LIMIT_S the connection is given up. Pure: time is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import NamedTuple

from clients.timeline import Entry
from schemas.errors import QimError
from schemas.wire import SendAck, SendMessage

__all__ = ["Coordinates", "FoundBy", "PendingMessage", "PendingMessages"]


class FoundBy(Enum):
    """Where a message's coordinates came from."""

    ACK = auto()
    MAILBOX = auto()


class Coordinates(NamedTuple):
    """What COMMITTED gave a message; the same on every retry (COM-04). `duplicate` is the ACK's own word for a replay."""

    message_id: bytes
    conversation_seq: int
    committed_at_ms: int
    duplicate: bool
    found_by: FoundBy

    @classmethod
    def of_ack(cls, ack: SendAck) -> Coordinates:
        """What a SEND_ACK says."""
        return cls(
            ack["message_id"],
            ack["conversation_seq"],
            ack["committed_at_ms"],
            ack["duplicate"],
            FoundBy.ACK,
        )

    @classmethod
    def of_entry(cls, entry: Entry) -> Coordinates:
        """What the device's own mailbox entry says; raises RecordError on damage."""
        event = entry.decode()["event"]
        return cls(
            event["message_id"],
            entry.conversation_seq,
            event["created_at_ms"],
            duplicate=False,
            found_by=FoundBy.MAILBOX,
        )


@dataclass(slots=True, eq=False)
class PendingMessage:
    """One message under its client_message_id.

    `created_s` and `first_sent_s` are moments of the shell's clock;
    `attempts` counts SEND_MESSAGE frames; `tag` is the caller's own.
    """

    record: SendMessage
    created_s: float
    tag: object = None
    attempts: int = 0
    first_sent_s: float = -inf  # on the present connection
    probed: bool = False
    coordinates: Coordinates | None = None
    error: QimError | None = None

    @property
    def client_message_id(self) -> bytes:
        """16 bytes."""
        return self.record["client_message_id"]

    @property
    def settled(self) -> bool:
        """Whether it has coordinates or has failed for good."""
        return self.coordinates is not None or self.error is not None


@dataclass(slots=True)
class PendingMessages:
    """All unsettled messages of one device in the order of their sending, and those due on the present connection."""

    ack_timeout_s: float
    detection_limit_s: float
    by_cmid: dict[bytes, PendingMessage] = field(default_factory=dict)
    _sent: deque[PendingMessage] = field(default_factory=deque)
    _overdue: list[PendingMessage] = field(default_factory=list)
    _refused: deque[tuple[float, PendingMessage]] = field(default_factory=deque)

    def add(self, message: PendingMessage) -> None:
        """Keep a new message; raises ValueError where its client_message_id is already under way."""
        if message.client_message_id in self.by_cmid:
            raise ValueError("client_message_id is already under way")
        self.by_cmid[message.client_message_id] = message

    def sent(self, message: PendingMessage, now_s: float) -> None:
        """A SEND_MESSAGE frame for it was queued on the present connection."""
        message.attempts += 1
        if message.first_sent_s == -inf:
            message.first_sent_s = now_s
            self._sent.append(message)

    def refuse(self, message: PendingMessage, again_s: float) -> None:
        """It was refused as retryable: `take_refused` gives it back at `again_s` (never earlier than those before it)."""
        if not message.settled:
            self._refused.append((again_s, message))

    def take_refused(self, now_s: float) -> list[PendingMessage]:
        """Return the refused messages whose pause is over, in order and once."""
        found: list[PendingMessage] = []
        while self._refused and self._refused[0][0] <= now_s:
            message = self._refused.popleft()[1]
            if not message.settled:
                found.append(message)
        return found

    def settle(self, message: PendingMessage, result: Coordinates | QimError) -> bool:
        """Give it its end; False if it already had one (a late second ACK)."""
        if self.by_cmid.pop(message.client_message_id, None) is None:
            return False
        if isinstance(result, QimError):
            message.error = result
        else:
            message.coordinates = result
        return True

    def connection_lost(self) -> None:
        """Whatever was sent has to be sent again, after the next sync (SDK-06)."""
        self._sent.clear()
        self._overdue.clear()
        self._refused.clear()
        for message in self.by_cmid.values():
            message.first_sent_s = -inf
            message.probed = False

    def deadline_s(self) -> float:
        """Return the moment at which `overdue` or `given_up` would answer differently, `inf` with nothing in flight."""
        again_s = self._refused[0][0] if self._refused else inf
        oldest = self._oldest()
        if oldest is None:
            return again_s
        wait_s = self.detection_limit_s if oldest.probed else self.ack_timeout_s
        return min(again_s, oldest.first_sent_s + wait_s)

    def given_up(self, now_s: float) -> bool:
        """Whether the oldest unsettled message waited so long that the connection counts as dead."""
        oldest = self._oldest()
        return oldest is not None and oldest.first_sent_s + self.detection_limit_s <= now_s

    def mark_overdue(self, now_s: float) -> bool:
        """Mark every message that has become overdue as probed; True if there was one, and a probe is due."""
        found = False
        for message in self._sent:
            if message.first_sent_s + self.ack_timeout_s > now_s:
                break
            if not message.probed and not message.settled:
                message.probed = found = True
                self._overdue.append(message)
        return found

    def take_overdue(self) -> list[PendingMessage]:
        """Return the unsettled messages a probe was sent for, in order and once."""
        overdue, self._overdue = self._overdue, []
        return [message for message in overdue if not message.settled]

    def _oldest(self) -> PendingMessage | None:
        sent = self._sent
        while sent and sent[0].settled:
            sent.popleft()
        return sent[0] if sent else None
