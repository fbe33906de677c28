"""An event loop for several simulated processes: time jumps, and a process can stand still or be gone.

Every callback belongs to the process in whose context it was scheduled. A paused process keeps its callbacks (SIGSTOP), a
dead one loses them (SIGKILL): nothing of it runs any more, not even a `finally`. One schedule is one order of events,
because nothing here asks the operating system anything.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Self, TypeVar, cast

__all__ = ["PROCESS", "Process", "SimLoop"]

Result = TypeVar("Result")


class Process:
    """One simulated operating system process."""

    __slots__ = ("context", "dead", "name", "parked", "paused")

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.dead = False
        self.parked: list[asyncio.Handle] = []
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)


WORLD: Process
PROCESS: ContextVar[Process] = ContextVar("process")
WORLD = Process("world")


def _process_of(handle: asyncio.Handle) -> Process:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(PROCESS, WORLD)


class SimLoop(asyncio.BaseEventLoop):
    """Just what tasks, futures, events and timeouts need of a loop."""

    def __init__(self) -> None:
        # Not the base's constructor: it would ask for a clock and for debug mode, and nothing of it is used.
        self._over = False
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.errors: list[BaseException] = []

    # --- what asyncio asks ---------------------------------------------------------------------------------------
    def time(self) -> float:
        """Seconds since the schedule began."""
        return self._now_s

    def get_debug(self) -> bool:
        """Never: it would cost half the time."""
        return False

    def is_running(self) -> bool:
        """Always, while a schedule is played."""
        return True

    def is_closed(self) -> bool:
        """Once its schedule is over."""
        return self._over

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep it: an exception that nobody handles is a finding."""
        error = context.get("exception")
        if error is not None:
            self.errors.append(error)

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        """See asyncio; the task belongs to the process in whose context it is made."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a killed process leaves its tasks
        self._tasks.append(task)
        return task

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """See asyncio."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their time comes."""

    # --- what the schedule asks ----------------------------------------------------------------------------------
    def run_ready(self) -> None:
        """Run until every process waits for something."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = _process_of(handle)
            if process.dead:
                continue
            if process.paused:
                process.parked.append(handle)
                continue
            handle._run()

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        end = self._now_s + seconds
        while self._timers and self._timers[0].when() <= end:
            timer = heapq.heappop(self._timers)
            self._now_s = max(self._now_s, timer.when())
            self._ready.append(timer)
            self.run_ready()
        self._now_s = end

    def next_timer_s(self) -> float | None:
        """When the next timer of a living process is due."""
        while self._timers and (self._timers[0]._cancelled or _process_of(self._timers[0]).dead):
            heapq.heappop(self._timers)
        return self._timers[0].when() if self._timers else None

    def spawn(self, process: Process, coro: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin a task of a process."""
        return cast("asyncio.Task[Result]", process.context.run(self.create_task, coro))

    def pause(self, process: Process) -> None:
        """SIGSTOP."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """SIGCONT: everything that became due meanwhile happens at once."""
        process.paused = False
        self._ready.extend(process.parked)
        process.parked.clear()

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        process.dead = True
        process.parked.clear()

    def __enter__(self) -> Self:
        """Become the running loop."""
        asyncio._set_running_loop(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        """Give the thread back and end what still waits, in this order: nothing of it may run on."""
        self._ready.clear()
        self._timers.clear()
        for task in self._tasks:
            if not task.done():
                cast("Coroutine[Any, Any, Any]", task.get_coro()).close()
        self._over = True
        asyncio._set_running_loop(None)
