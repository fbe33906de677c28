"""A stack of real servers on a data folder: started, watched, started again."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from ops.plan import StackOptions
from ops.procstat import read_stat
from ops.stack import Stack
from schemas.errors import StartRefused


@dataclass(frozen=True, slots=True)
class Up:
    """A running `qim up`: its process, both outputs, its ready line."""

    process: asyncio.subprocess.Process
    out: asyncio.StreamReader
    err: asyncio.StreamReader
    ready: dict[str, Any]


SERVERS_ONLY = StackOptions(workers=0, gateways=0, mailbox_redis=2)


@pytest.mark.fault
async def test_stack_on_its_folder_again_has_addresses_and_data(tmp_path: Path) -> None:
    said: list[str] = []
    stack = Stack(tmp_path, SERVERS_ONLY, say=said.append)
    async with stack:
        addresses = stack.addresses
        assert set(stack.processes) == {"kafka", "mailbox-0", "mailbox-1", "commit-0"}
        assert any(line.startswith("topics ready") for line in said)
        with pytest.raises(StartRefused, match="another stack"):
            await Stack(tmp_path, SERVERS_ONLY).start()
        async with Redis.from_url(addresses["commit-0"]) as client:
            await client.set("k", "v")

        stack.kill("mailbox-1")
        assert "mailbox-1" not in stack.processes
        assert stack.crashed() == {}
        await stack.restart("mailbox-1")
        os.kill(stack.processes["mailbox-1"], signal.SIGKILL)
        await stack.process("mailbox-1").wait_end(5.0)
        assert "ended with -9" in str(stack.crashed()["mailbox-1"])
    assert stack.processes == {}

    async with Stack(tmp_path, SERVERS_ONLY) as again:
        assert again.addresses == addresses
        async with Redis.from_url(addresses["commit-0"]) as client:
            assert await client.get("k") == b"v"


@asynccontextmanager
async def qim_up(folder: Path, *options: str) -> AsyncIterator[Up]:
    """Run `qim up` with servers only, until its ready line."""
    arguments = ["up", "--data", str(folder), "--workers", "0", "--gateways", "0", *options]
    program = "import sys; from ops.cli import main; sys.exit(main(sys.argv[1:]))"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60.0))
        yield Up(process, process.stdout, process.stderr, ready)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_up_prints_one_ready_line_and_stops_on_sigterm(tmp_path: Path) -> None:
    async with qim_up(tmp_path) as up:
        assert up.ready["ready"] is True
        assert set(up.ready["addresses"]) == {"kafka", "mailbox-0", "commit-0"}
        up.process.terminate()
        assert await asyncio.wait_for(up.process.wait(), 30.0) == 0
        assert await up.out.read() == b""
        assert not any(read_stat(pid) for pid in up.ready["processes"].values())


@pytest.mark.fault
async def test_up_ends_with_the_reason_when_a_process_crashed(tmp_path: Path) -> None:
    async with qim_up(tmp_path) as up:
        os.kill(up.ready["processes"]["commit-0"], signal.SIGKILL)
        assert await asyncio.wait_for(up.process.wait(), 30.0) == 1
        assert b"commit-0 ended with -9" in await up.err.read()


@pytest.mark.fault
async def test_up_with_restart_reports_a_crash_and_goes_on(tmp_path: Path) -> None:
    async with qim_up(tmp_path, "--restart") as up:
        os.kill(up.ready["processes"]["commit-0"], signal.SIGKILL)
        seen = b""
        while b"commit-0 ready" not in seen.partition(b"commit-0 ended with -9")[2]:
            line = await asyncio.wait_for(up.err.readline(), 30.0)
            assert line
            seen += line
        up.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(up.process.wait(), 30.0) == 0
