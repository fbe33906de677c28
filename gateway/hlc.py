"""Hybrid logical clock of one writer: mints message ids, never twice (HLC-01 to HLC-03).

message_id, 128 bits (OPEN-01, docs/decisions/0002-identifiers-and-hashes.md):

    physical ms 48 | counter 16 | region 16 | writer 16 | zero 32

Ids are minted only inside a window of milliseconds that was persisted before, strictly above every earlier window of
the same (region, writer); a crash, a restart or a clock that steps back therefore cannot re-issue one. Pure: the
current time is passed in.
"""

from __future__ import annotations

from typing import Final

from schemas.constants import HLC_RENEW_LEAD_MS
from schemas.errors import Bug, ServerFault
from schemas.identifiers import MessageId

__all__ = ["HybridClock", "physical_ms_of"]

_COUNTER_LIMIT: Final = 1 << 16
_PHYSICAL_SHIFT: Final = 80


def physical_ms_of(message_id: int) -> int:
    """The millisecond part of a message_id."""
    return message_id >> _PHYSICAL_SHIFT


class HybridClock:
    """Mints MessageIds in increasing order inside installed windows."""

    def __init__(self, region: int, writer: int) -> None:
        self._low = region << 48 | writer << 32
        self._windows: list[tuple[int, int]] = []
        self._ms = -1
        self._counter = 0

    def install(self, start_ms: int, end_ms: int) -> None:
        """Add the persisted window [start_ms, end_ms); it must lie above every window before it (HLC-02)."""
        if (
            start_ms >= end_ms
            or (self._windows and start_ms < self._windows[-1][1])
            or start_ms <= self._ms
        ):
            raise Bug(f"HLC window [{start_ms}, {end_ms}) is not above the last one")
        self._windows.append((start_ms, end_ms))

    def needs_window(self, now_ms: int) -> bool:
        """True when the last window ends within the renewal lead of 20 s (HLC-02)."""
        return (
            not self._windows or max(now_ms, self._ms) >= self._windows[-1][1] - HLC_RENEW_LEAD_MS
        )

    def exhausted(self, now_ms: int) -> bool:
        """True when no installed window reaches beyond `now_ms`: minting would be refused."""
        return not self._windows or max(now_ms, self._ms + 1) >= self._windows[-1][1]

    def revoke(self) -> None:
        """Drop all windows: the writer id belongs to somebody else now (HLC-03)."""
        self._windows.clear()

    def mint(self, now_ms: int) -> MessageId:
        """The next id; raises ServerFault when the windows are used up (commits stop rather than risk an id)."""
        ms, counter = (now_ms, 0) if now_ms > self._ms else (self._ms, self._counter + 1)
        if counter == _COUNTER_LIMIT:
            ms, counter = ms + 1, 0
        while self._windows and ms >= self._windows[0][1]:
            self._windows.pop(0)
        if not self._windows:
            raise ServerFault("no HLC window: message ids cannot be minted")
        if ms < self._windows[0][0]:
            ms, counter = self._windows[0][0], 0
        self._ms, self._counter = ms, counter
        return MessageId(ms << _PHYSICAL_SHIFT | counter << 64 | self._low)
