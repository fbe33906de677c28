"""Run `tests.support.page_app` as a process and read its report."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.page_app import PageAppOptions

__all__ = ["PageProcess", "run_page_app"]

Report = dict[str, Any]
_LIMIT_S = 40.0


class PageProcess:
    """A running page app: its reports so far, and ways to wait, to command and to end it."""

    def __init__(self, process: Process, log: Path) -> None:
        self.reports: list[Report] = []
        self.log = log
        self._process = process
        self._news = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if (start := line.find(b"{")) >= 0:  # Faust may print terminal codes before it
                async with self._news:
                    self.reports.append(json.loads(line[start:]))
                    self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    def of(self, what: str, **values: Any) -> list[Report]:
        """Reports of one kind that carry these values."""
        return [
            r
            for r in self.reports
            if r["what"] == what and all(r.get(name) == value for name, value in values.items())
        ]

    async def until(self, seen: Callable[[], Any]) -> Any:
        """Wait until `seen()` is true and return it; fails when the process ends or after 40 s."""
        try:
            async with asyncio.timeout(_LIMIT_S), self._news:
                while not (found := seen()):
                    assert not self._reader.done(), f"ended early: {self.log.read_text()[-3000:]}"
                    await self._news.wait()
                return found
        except TimeoutError:
            raise AssertionError(
                f"not seen; {self.reports[-5:]}\n{self.log.read_text()[-3000:]}"
            ) from None

    async def processed(self, partition: int, last: int) -> None:
        """Wait until the partition's last record was processed."""
        await self.until(lambda: self.of("page", partition=partition, last=last))

    def command(self, line: str) -> None:
        """Send a line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def ask(self, what: str) -> Report:
        """Command `what` and return its report."""
        before = len(self.of(what))
        self.command(what)
        found: list[Report] = await self.until(lambda: self.of(what)[before:])
        return found[-1]

    async def ended(self) -> int:
        """Wait for the end of the process by itself; its exit code."""
        async with asyncio.timeout(_LIMIT_S):
            code = await self._process.wait()
            await self._reader
        return code

    async def terminate(self) -> int:
        """SIGTERM, then the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        """End it as a crash would."""
        if self._process.returncode is None:
            self._process.kill()
        await self.ended()


@asynccontextmanager
async def run_page_app(
    options: PageAppOptions, log: Path, module: str = "tests.support.page_app"
) -> AsyncIterator[PageProcess]:
    """Start the app; it is killed at the end unless it ended before."""
    argv = [sys.executable, "-m", module, json.dumps(asdict(options))]
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=errors
        )
    running = PageProcess(process, log)
    try:
        yield running
    finally:
        await running.kill()
        assert process.stdin is not None
        process.stdin.close()
        transport = process._transport  # type: ignore[attr-defined]
        transport.close()
        await asyncio.sleep(0)
