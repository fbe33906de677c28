"""A stack of real servers on a data folder: started, watched, started again."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from ops.plan import StackOptions
from ops.procstat import read_stat
from ops.stack import Stack
from schemas.errors import StartRefused

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


async def test_up_prints_one_ready_line_and_stops_on_sigterm(tmp_path: Path) -> None:
    arguments = ["up", "--data", str(tmp_path), "--workers", "0", "--gateways", "0"]
    program = "import sys; from ops.cli import main; sys.exit(main(sys.argv[1:]))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        assert ready["ready"] is True
        assert set(ready["addresses"]) == {"kafka", "mailbox-0", "commit-0"}
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30.0) == 0
        assert await process.stdout.read() == b""
        assert not any(read_stat(pid) for pid in ready["processes"].values())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
