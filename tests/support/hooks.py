"""One-shot faults for the calls of a fake server.

Each hook waits for the next call of one operation and lets it fail in one of the ways that real servers know:
- `fail`: nothing was written, no answer came;
- `lose_reply`: everything was written, no answer came;
- `refuse`: nothing was written, and the server said so;
- `stop`: the call is never answered and `stopped` is set: the test "crashes" the process there. With `written` the
  call has done its work before.
Unrealistic, so not offered: an answer without the work.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from schemas.errors import StoreFault, StoreUnknownOutcome

__all__ = ["Hooks"]

Answer = TypeVar("Answer")


class Hooks:
    """One-shot faults by operation name; without one a call simply runs."""

    def __init__(self) -> None:
        self._next: dict[str, deque[str]] = defaultdict(deque)
        self.stopped = asyncio.Event()
        self._stopped_in: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.calls: dict[str, int] = defaultdict(int)
        self.latency_s: dict[str, float] = {}

    def add(self, operation: str, *faults: str) -> None:
        """Queue faults (`ok` lets one call pass) for the next calls of an operation."""
        self._next[operation].extend(faults)

    def block(self, operation: str) -> asyncio.Event:
        """Let every call of the operation wait until the event is set."""
        self.gates[operation] = asyncio.Event()
        return self.gates[operation]

    async def call(self, operation: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run `work` under the next fault of the operation."""
        self.calls[operation] += 1
        if operation in self.gates:
            await self.gates[operation].wait()
        if operation in self.latency_s:
            await asyncio.sleep(self.latency_s[operation])
        fault = self._next[operation].popleft() if self._next[operation] else "ok"
        if fault == "refuse":
            raise StoreFault(f"{operation}: cannot connect")
        if fault == "fail":
            raise StoreUnknownOutcome(f"{operation}: no answer")
        if fault == "stop":
            await self._crash(operation)
        answer = await work()
        if fault == "lose_reply":
            raise StoreUnknownOutcome(f"{operation}: no answer")
        if fault == "stop_written":
            await self._crash(operation)
        return answer

    def stops(self, operations: Collection[str]) -> bool:
        """Whether one of these calls has stopped its process."""
        return not self._stopped_in.isdisjoint(operations)

    def revive(self, *operations: str) -> None:
        """The process that makes these calls has died and starts again."""
        self._stopped_in -= set(operations)
        if not self._stopped_in:
            self.stopped.clear()

    async def _crash(self, operation: str) -> None:
        self._stopped_in.add(operation)
        self.stopped.set()
        await asyncio.Event().wait()
