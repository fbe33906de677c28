"""A system whose dispatch log is written by hand and whose state is made by replay; and `qimctl` as a process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.qimctl.logs import LogWriter
from ops.qimctl.rebuild import Rebuilder, RebuildOptions
from ops.qimctl.scratch import verify_live
from ops.qimctl.system import System, open_system
from schemas.config import Settings
from schemas.constants import SECONDS_PER_DAY
from schemas.records import GROUP_DISPATCH, GroupDispatch
from stores.start_gates import pass_start_gates
from tables.log_reader import LogReader
from tests.support.dispatch_fakes import SHARDS, dispatch, users_of
from tests.support.refusals import environment_of

__all__ = ["Bench", "Qimctl", "open_bench", "run_qimctl", "today_ms"]

_LIMIT_S = 60.0
_COMMAND = "from ops.qimctl.cli import main; raise SystemExit(main())"


def today_ms() -> int:
    """A moment of today, as messages have."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Bench:
    """A system without workers: tests write its log and rebuild its state."""

    system: System
    reader: LogReader
    writer: LogWriter
    folder: Path
    said: list[str] = field(default_factory=list)
    numbers: int = 0

    @property
    def state(self) -> Path:
        """Where rebuilds keep what was there."""
        return self.folder / "state.json"

    def made(self, shard: int, users: int, **change: Any) -> GroupDispatch:
        """A new dispatch of today for so many users of a shard."""
        self.numbers += 1
        change.setdefault("committed_at_ms", today_ms())
        return dispatch(self.numbers, users_of(shard, users), shard, **change)

    async def log(self, dispatches: Sequence[GroupDispatch]) -> None:
        """Write dispatches to the partitions of their shards."""
        for shard in range(SHARDS):
            rows = [
                (bytes(d["dispatch_id"]), GROUP_DISPATCH.encode(d))
                for d in dispatches
                if d["target_mailbox_shard"] == shard
            ]
            await self.writer.write(self.system.dispatch, shard, rows)

    async def rebuild(self, what: str = "all", **options: Any) -> dict[str, Any]:
        """`qimctl rebuild WHAT`."""
        chosen = RebuildOptions(
            tables=what in {"table", "all"},
            mailboxes=what in {"mailbox", "all"},
            state=self.state,
            **options,
        )
        return await Rebuilder(self.system, self.reader, self.writer, self.said.append).run(chosen)

    async def verify(self) -> dict[str, Any]:
        """`qimctl rebuild --verify`."""
        links = list(self.system.mailbox)
        return await verify_live(self.system, self.reader, links, self.said.append)

    async def command(self, instance: int, *args: str | bytes | int) -> Any:
        """A plain command on a mailbox instance."""
        return await self.system.mailbox[instance].command(*args)

    async def dump(self, prefix: str) -> dict[tuple[int, bytes], object]:
        """Every key below a prefix on the mailbox instances, with its value in one form whatever the order of writes."""
        found: dict[tuple[int, bytes], object] = {}
        for at in range(len(self.system.mailbox)):
            for key in await self.command(at, "KEYS", f"{prefix}*"):
                if await self.command(at, "TYPE", key) == b"hash":
                    flat = await self.command(at, "HGETALL", key)
                    found[at, key] = dict(zip(flat[::2], flat[1::2], strict=True))
                else:
                    found[at, key] = await self.command(at, "DUMP", key)
        return found

    async def fill(self) -> None:
        """A first log with light, wide, repeated and expired dispatches, and the state that comes of it."""
        every = [self.made(shard, 3) for shard in range(SHARDS) for _ in range(20)]
        wide = self.made(1, 200, mentions=users_of(1, 2))
        old = self.made(2, 4, committed_at_ms=today_ms() - 9 * SECONDS_PER_DAY * 1000)
        await self.log([*every, old, wide, every[0], *(self.made(1, 2) for _ in range(5))])
        report = await self.rebuild()
        assert report["equal"], report


@asynccontextmanager
async def open_bench(settings: Settings, folder: Path) -> AsyncIterator[Bench]:
    """A bench on real servers."""
    async with (
        open_system(settings) as system,
        LogReader(settings.broker) as reader,
        LogWriter(settings.broker) as writer,
    ):
        await pass_start_gates(settings, system.mailbox, system.commit)
        yield Bench(system, reader, writer, folder)


@dataclass(frozen=True, slots=True)
class Qimctl:
    """How a run of `qimctl` ended."""

    exit_code: int
    out: str
    err: list[str]


async def run_qimctl(
    settings: Settings,
    *arguments: str,
    kill_at: Callable[[str], bool] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Qimctl:
    """Run `qimctl`; with `kill_at` it is killed at the first line on standard error of which that is true."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _COMMAND,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment_of(settings, 1, **(environment or {})),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[str] = []
    async with asyncio.timeout(_LIMIT_S):
        async for raw in process.stderr:
            said.append(raw.decode().rstrip())
            if kill_at is not None and kill_at(said[-1]):
                process.kill()
        out = (await process.stdout.read()).decode()
        return Qimctl(await process.wait(), out, said)
