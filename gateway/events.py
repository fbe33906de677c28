"""What the protocol core asks the shell to do, and what the shell hands back: plain values without behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gateway.ports import CommitRequest
from gateway.tokens import Identity

__all__ = ["Batch", "CommitRequested", "Event", "Login", "LoginRequested", "PullRequested"]


class LoginRequested(NamedTuple):
    """An AUTH frame, not judged yet; answer with one of the `auth_...` calls of `ServerProtocol`.

    `proved` is the identity that an earlier attempt on this connection proved: a rebuild must come from the same (REB-02).
    """

    request_id: int
    access_token: str
    device_id: bytes
    cursor_kind: int
    cursor: bytes
    proved: Identity | None


class CommitRequested(NamedTuple):
    """A checked SEND_MESSAGE to commit; answer with `ServerProtocol.commit_done`."""

    request_id: int
    request: CommitRequest


class PullRequested(NamedTuple):
    """A PULL_MAILBOX over `(after_seq, up_to_seq]`; answer with `ServerProtocol.pull_done`.

    `up_to_seq` 0 means the lane's watermark; `max_items` and `max_bytes` are already within the limits.
    """

    request_id: int
    after_seq: int
    up_to_seq: int
    max_items: int
    max_bytes: int


Event = LoginRequested | CommitRequested | PullRequested


class Login(NamedTuple):
    """A judged login (CUR-04 step 4): what AUTH_OK says and what the connection needs to know afterwards.

    `start_seq` is where the device stands (0 = before everything), `sync_to_seq` the lane's watermark at this moment (CUR-06),
    `cursor_at_sync` the signed cursor that ONLINE_READY hands out (REB-06), `pending_entries` a hint of what waits, and
    `lane_watermark` reads the present W for PONG.
    """

    identity: Identity
    shard: int
    lane: int
    trim_watermark: int
    start_seq: int
    sync_to_seq: int
    cursor_at_sync: bytes
    pending_entries: int | None
    lane_watermark: Callable[[], int]


class Batch(NamedTuple):
    """One page of a mailbox: entries as stored, never decoded here, covering `(after_seq, covered_through_seq]`."""

    entries: list[bytes]
    after_seq: int
    covered_through_seq: int
    lane_watermark: int
    has_more: bool
    cursor: bytes
