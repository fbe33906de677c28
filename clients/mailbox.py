"""When this device pulls its mailbox, and what the answers make whole. Pure: time is passed in.

Two ways, never at once. During a login a PullPlan asks for `(cursor, sync_to_seq]` with several requests in flight. Online,
everything that hints at something new (a push, a PONG) enters at one place: it starts the one pull after a short pause, or,
while that pull is in flight, only marks the mailbox dirty (PUSH-06). Nothing here moves a cursor: it says what is covered.
"""

from __future__ import annotations

from math import inf
from typing import Final

from clients.config import ClientConfig
from clients.protocol import ClientProtocol
from clients.pulls import Covered, Interval, PullPlan
from schemas.errors import Bug, ErrorCode, ProtocolError
from schemas.wire import MailboxBatch

__all__ = ["MailboxSync"]

_UP_TO_WATERMARK: Final = 0
"""In PULL_MAILBOX: through the lane's watermark, which only the gateway knows."""


class MailboxSync:
    """Pulls of one device; `connection_lost` forgets what was in flight, the cursor lives in the timeline."""

    __slots__ = ("_asked", "_config", "_dirty", "_due_s", "_heard_s", "_plan")

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._plan: PullPlan | None = None
        self._asked: dict[int, Interval] = {}
        self._due_s = inf  # when the next request may go out
        self._dirty = False
        self._heard_s = -inf  # when the mailbox last answered, or was first asked

    def connection_lost(self) -> None:
        """Forget requests and plan; the next login starts from the cursor."""
        self._plan = None
        self._asked.clear()
        self._due_s = inf
        self._dirty = False

    # --- login ------------------------------------------------------------------------------------------------
    def begin_login(self, cursor_seq: int, sync_to_seq: int, now_s: float) -> None:
        """Plan the pull that a login owes (CUR-06)."""
        self._plan = PullPlan(cursor_seq, sync_to_seq, self._config.pull_window)
        self._due_s = now_s

    @property
    def login_complete(self) -> bool:
        """Whether everything of the login was handed out; SYNC_COMPLETE may say so."""
        return self._plan is not None and self._plan.finished

    def go_online(self, now_s: float) -> None:
        """The login is over; from here pulls are single. What was pushed meanwhile lies above the cursor."""
        self._plan = None
        self._due_s = now_s + self._config.pull_debounce_s if self._dirty else inf
        self._dirty = False

    # --- online -----------------------------------------------------------------------------------------------
    def hint(self, now_s: float, *, at_once: bool = False) -> None:
        """Something may be new: pull after the debounce pause, or now; while a pull is in flight only remember it."""
        if self._asked or self._plan is not None:
            self._dirty = True
            return
        wait_s = 0.0 if at_once else self._config.pull_debounce_s
        self._due_s = min(self._due_s, now_s + wait_s)

    # --- both -------------------------------------------------------------------------------------------------
    def take_requests(self, cursor_seq: int, now_s: float) -> list[Interval]:
        """Return the intervals to ask for now; tell `asked` the request_id of each."""
        if now_s < self._due_s:
            return []
        if self._plan is not None:
            return self._plan.take_requests()
        self._due_s = inf
        return [] if self._asked else [Interval(cursor_seq, _UP_TO_WATERMARK)]

    def send_due(self, online: ClientProtocol, cursor_seq: int, now_s: float) -> None:
        """Queue a PULL_MAILBOX for everything that may be asked now."""
        for interval in self.take_requests(cursor_seq, now_s):
            request_id = online.send_pull(
                {
                    "after_seq": interval.after_seq,
                    "up_to_seq": interval.up_to_seq,
                    "max_items": self._config.pull_max_items,
                    "max_bytes": self._config.pull_max_bytes,
                }
            )
            self.asked(request_id, interval, now_s)

    def asked(self, request_id: int, interval: Interval, now_s: float) -> None:
        """A PULL_MAILBOX for `interval` was queued."""
        if not self._asked:
            self._heard_s = now_s
        self._asked[request_id] = interval

    def deliver(self, request_id: int, batch: MailboxBatch, now_s: float) -> list[Covered]:
        """Take the answer to a pull; returns the stretches that now join the cursor, in order.

        Raises ProtocolError for an answer that does not fit what was asked.
        """
        interval = self._asked.pop(request_id)
        self._heard_s = now_s
        entries, through, cursor = batch["entries"], batch["covered_through_seq"], batch["cursor"]
        if batch["after_seq"] != interval.after_seq:
            raise ProtocolError("batch of another interval", ErrorCode.MALFORMED_PAYLOAD)
        if self._plan is not None:
            return self._plan.deliver(interval, entries, through, cursor)
        if through < interval.after_seq or (through == interval.after_seq and entries):
            raise ProtocolError("batch runs backwards", ErrorCode.MALFORMED_PAYLOAD)
        if batch["has_more"] and through > interval.after_seq:
            self._due_s = now_s
        elif self._dirty:
            self._due_s = now_s + self._config.pull_debounce_s
        self._dirty = False
        return [Covered(entries, through, cursor)] if through > interval.after_seq else []

    def refuse(self, request_id: int, now_s: float) -> None:
        """The pull was refused for now (SHARD_MOVED, MAILBOX_DIRTY, UNAVAILABLE): ask again after a pause."""
        interval = self._asked.pop(request_id, None)
        if interval is None:
            raise Bug("refusal of a pull that was not asked")
        self._heard_s = now_s
        if self._plan is not None:
            self._plan.give_back(interval)
        self._due_s = now_s + self._config.refused_retry_s

    # --- time -------------------------------------------------------------------------------------------------
    def deadline_s(self) -> float:
        """Return the moment at which `take_requests` or `given_up` would answer differently; `inf` for never."""
        limit_s = self._heard_s + self._config.detection_limit_s if self._asked else inf
        waiting = self._plan is None or self._plan.can_ask
        return min(limit_s, self._due_s if waiting else inf)

    def given_up(self, now_s: float) -> bool:
        """Whether an asked pull stayed without answer so long that the connection counts as dead (GW-09)."""
        return bool(self._asked) and self._heard_s + self._config.detection_limit_s <= now_s
