"""What a device's session tells its host; names as in SDK-11."""

from __future__ import annotations

from typing import NamedTuple

from clients.pending import PendingMessage
from clients.timeline import Entry

__all__ = [
    "Committed",
    "EntriesShown",
    "Failed",
    "Kicked",
    "LoginRefused",
    "Offline",
    "Online",
    "SessionEvent",
    "SyncProgress",
]


class Online(NamedTuple):
    """The login barrier was passed; everything up to `sync_to_seq` was shown before this event."""

    session_epoch: int
    sync_to_seq: int


class Offline(NamedTuple):
    """The connection is gone and will be dialled again, unless `final`."""

    reason: str
    final: bool


class SyncProgress(NamedTuple):
    """A stretch of the mailbox was applied and the cursor moved to its end.

    `goal_seq` is the login's sync_to_seq, or the lane's watermark once the session is online.
    """

    covered_through_seq: int
    goal_seq: int


class EntriesShown(NamedTuple):
    """Entries not shown before, in the order in which the server gave them; `pushed` tells push from pull."""

    entries: list[Entry]
    pushed: bool


class Committed(NamedTuple):
    """A message of this device got its coordinates."""

    message: PendingMessage


class Failed(NamedTuple):
    """A message of this device was refused for good, or is too old to be sent again; `message.error` says why."""

    message: PendingMessage


class Kicked(NamedTuple):
    """The same device logged in elsewhere; this session has ended and does not dial again (GW-10)."""

    reason: str


class LoginRefused(NamedTuple):
    """The gateway refused this login for good; the session has ended. `rebuild_required` asks for a fresh start."""

    code: int
    detail: str
    rebuild_required: bool


SessionEvent = (
    Online | Offline | SyncProgress | EntriesShown | Committed | Failed | Kicked | LoginRefused
)
