"""An event loop whose clock jumps: a test of minutes of backoff runs at once, and always in the same order.

Whenever nothing is ready the time moves to the next timer. When there is no timer either, nothing can ever happen
again: that is a hang, and it is raised as one instead of waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Hang", "VirtualClock", "VirtualLoop", "run"]

Result = TypeVar("Result")
_LIMIT_S = 600.0  # whoever polls for ten minutes of virtual time polls for ever
EPOCH_MS = 1_764_468_000_000  # 2025-11-30 02:00:00 UTC, so that days and ids look real


class Hang(Exception):
    """Every task waits, and nothing will wake any of them."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: what would have been waited for is added to the loop's time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if timeout is None and not events:
            raise Hang
        if timeout and not events:
            self.now_s += timeout
            if self.now_s > _LIMIT_S:
                raise Hang
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module; `run` is how tests use it."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now_s


class VirtualClock:
    """The wall clock of a virtual loop, in ms since 1970; tests may step it."""

    def __init__(self) -> None:
        self.offset_ms = EPOCH_MS

    def __call__(self) -> int:
        """Milliseconds since 1970."""
        return self.offset_ms + int(asyncio.get_running_loop().time() * 1000)


async def _strict(main: Coroutine[Any, Any, Result]) -> Result:
    result = await main
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks are left behind: {left}"
    return result


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end in virtual time; fails when it hangs or leaves a task behind."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_strict(main))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        while asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
