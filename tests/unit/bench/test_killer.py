"""Carrying a plan out on a stack that only notes what is done to it."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.fault_plan import Fault, FaultKind
from bench.faults import Killer
from ops.servers.process import ProcessFailedError
from ops.stack import Stack

NAMES = ("gateway-0", "mailbox-0", "worker-0")


class NotedStack:
    """Processes by name; `refuse` starts fail first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = {name: 1000 + at for at, name in enumerate(NAMES)}
        self.done: list[tuple[str, str]] = []
        self.refuse = 0
        self.ended: dict[str, Any] = {}

    def kill(self, name: str) -> None:
        self.done.append(("kill", name))

    async def stop_one(self, name: str) -> None:
        self.done.append(("stop", name))

    async def restart(self, name: str) -> None:
        if self.refuse:
            self.refuse -= 1
            raise ProcessFailedError("a server that it needs is down")
        self.done.append(("restart", name))
        self.ended.pop(name, None)

    def crashed(self) -> dict[str, Any]:
        return dict(self.ended)


def killer_of(stack: NotedStack) -> Killer:
    return Killer(cast("Stack", stack), lambda _text: None, seed=1)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


async def test_each_kind_of_fault_is_done_and_undone(
    tmp_path: Path, signals: list[tuple[int, int]]
) -> None:
    tables = tmp_path / "worker-0" / "tables"
    tables.mkdir(parents=True)
    aof = tmp_path / "mailbox-0" / "appendonlydir" / "a.1.incr.aof"
    aof.parent.mkdir(parents=True)
    aof.write_bytes(bytes(1000))
    stack = NotedStack(tmp_path)
    killer = killer_of(stack)
    plan = [
        Fault(0.0, FaultKind.KILL, ("gateway-0",), 0.0),
        Fault(0.0, FaultKind.PAUSE, ("worker-0",), 0.0),
        Fault(0.0, FaultKind.STOP, ("gateway-0",), 0.0),
        Fault(0.0, FaultKind.WIPE, ("worker-0",), 0.0),
        Fault(0.0, FaultKind.TEAR, ("mailbox-0",), 0.0),
    ]
    await killer.run(plan)
    assert stack.done == [
        *[("kill", "gateway-0"), ("restart", "gateway-0")],
        *[("stop", "gateway-0"), ("restart", "gateway-0")],
        *[("kill", "worker-0"), ("restart", "worker-0")],
        *[("kill", "mailbox-0"), ("restart", "mailbox-0")],
    ]
    pid = stack.processes["worker-0"]
    assert signals == [(pid, signal.SIGSTOP), (pid, signal.SIGCONT)]
    assert killer.kills == {"gateway-0": 1, "worker-0": 1, "mailbox-0": 1}
    assert killer.pauses == {"worker-0": 1}
    assert killer.stops == {"gateway-0": 1}
    assert killer.wiped == {"worker-0": 1}
    assert not tables.exists()
    assert killer.torn_bytes["mailbox-0"] == 1000 - aof.stat().st_size > 0


async def test_a_start_that_fails_is_tried_again_and_in_the_end_told(tmp_path: Path) -> None:
    stack = NotedStack(tmp_path)
    stack.refuse = 2
    await killer_of(stack).run([Fault(0.0, FaultKind.KILL, ("worker-0",), 0.0)])
    assert stack.done == [("kill", "worker-0"), ("restart", "worker-0")]
    stack.refuse = 99
    with pytest.raises(ProcessFailedError):
        await killer_of(stack).run([Fault(0.0, FaultKind.KILL, ("worker-0",), 0.0)])


async def test_what_ends_by_itself_is_counted_and_started_again(tmp_path: Path) -> None:
    stack = NotedStack(tmp_path)
    stack.ended = {"gateway-0": SimpleNamespace()}
    killer = killer_of(stack)
    await killer.run([])
    assert killer.ended_alone == {"gateway-0": 1}
    assert stack.done == [("restart", "gateway-0")]
