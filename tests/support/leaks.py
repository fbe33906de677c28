"""What a test may not leave behind: threads, tasks, changes of the environment."""

import asyncio
import os
import threading
import time

__all__ = ["environment", "left_tasks", "left_threads"]

_GRACE_S = 1.0  # A library's thread that was told to end needs a moment.
_LOOP_PASSES = 5  # Transports close in callbacks of their own.


def environment() -> dict[str, str]:
    """Return the environment without what pytest itself changes for each test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def left_threads(before: set[threading.Thread]) -> list[str]:
    """Name the threads that were not there before and do not end within a second."""
    deadline_s = time.monotonic() + _GRACE_S
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return sorted(thread.name for thread in left if thread.is_alive())


async def left_tasks() -> list[str]:
    """Name the tasks of the running loop that are still pending, apart from the caller's own."""
    for _ in range(_LOOP_PASSES):
        await asyncio.sleep(0)
    own = asyncio.current_task()
    return sorted(repr(task) for task in asyncio.all_tasks() if task is not own and not task.done())
