"""What a process does beside everything else, again and again, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

__all__ = ["Background"]

_log = logging.getLogger(__name__)


class Background:
    """Runs `work` from `start` to `stop`. A defect that ends it earlier is logged at once: nobody waits for it."""

    __slots__ = ("_name", "_work", "task")

    def __init__(self, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self._name = name
        self._work = work
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin on the running loop; does nothing when it was begun already."""
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._work(), name=self._name)
            self.task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """End it where it stands; it may be started again."""
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("%s ended by a defect", self._name, exc_info=error)
