"""Everything that leaves a process waits here until the schedule decides what becomes of it.

An operation may be carried out and answered; carried out with the answer lost; lost; refused. One whose process died or
stands still may still be carried out, at any later time: that is how a zombie writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from schemas.errors import StoreFault, StoreUnknownOutcome
from tests.simulation.loop import PROCESS, WORLD, Process
from tests.support.hooks import Hooks

__all__ = ["Network", "Operation", "carry_out"]

Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class Operation:
    """One request on its way."""

    process: Process
    name: str
    work: Callable[[], Awaitable[Any]]
    answer: asyncio.Future[Any]


class Network(Hooks):
    """Holds operations back while `faulty`; carries each out at once when it is not."""

    def __init__(self) -> None:
        super().__init__()
        self.faulty = True
        self.pending: list[Operation] = []
        self.trace: list[str] | None = None

    async def call(self, operation: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """See Hooks."""
        if not self.faulty:
            self._note(PROCESS.get(WORLD), operation, "ok")
            return await work()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.pending.append(Operation(PROCESS.get(WORLD), operation, work, future))
        return await future

    def _note(self, process: Process, operation: str, fate: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{process.name}: {operation} {fate}")

    def settle(self, operation: Operation, fate: str) -> None:
        """Decide one operation: `ok`, `lose_reply`, `fail` or `refuse`."""
        self.pending.remove(operation)
        self._note(operation.process, operation.name, fate)
        answer = operation.answer
        if fate in ("ok", "lose_reply"):
            try:
                result = carry_out(operation.work)
            # The caller gets what the store raised, whatever it is.
            except Exception as error:  # noqa: BLE001
                _fail(answer, error)
                return
            if fate == "ok":
                if not answer.done():
                    answer.set_result(result)
                return
        text = f"{operation.name}: {fate}"
        _fail(answer, StoreFault(text) if fate == "refuse" else StoreUnknownOutcome(text))

    def calm(self) -> None:
        """From now on everything works; what was on its way is lost."""
        self.faulty = False
        for operation in list(self.pending):
            self.settle(operation, "fail")


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # a dead process asks no more; that is no finding


def carry_out(work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run work that waits for nothing."""
    running = cast("Any", work()).__await__()
    try:
        next(running)
    except StopIteration as stop:
        return cast("Answer", stop.value)
    raise AssertionError("simulated servers answer at once")
