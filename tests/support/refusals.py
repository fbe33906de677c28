"""Start a worker or a gateway that must not come up, and watch it not come up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.servers.http import http_ready
from ops.servers.ports import LOOPBACK, free_ports
from ops.servers.process import ManagedProcess
from schemas.config import Settings, child_environment

__all__ = ["Attempt", "attempt", "environment_of", "gateway_argv", "running", "worker_argv"]

_LIMIT_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a start ended: exit code, whether /ready ever said 200, and what was logged."""

    exit_code: int
    was_ready: bool
    log: str


def worker_argv() -> list[str]:
    """Command line of a worker."""
    return [str(Path(sys.executable).parent / "faust"), "-A", "qim", "worker", "-l", "info"]


def gateway_argv() -> list[str]:
    """Command line of a gateway."""
    return [str(Path(sys.executable).parent / "qim"), "gateway"]


def environment_of(settings: Settings, port: int, **more: str) -> dict[str, str]:
    """The QIM_ variables of a process with these settings whose HTTP port is `port`."""
    values: Mapping[str, str] = {
        "QIM_APP_ID": settings.app_id,
        "QIM_BROKER": settings.broker,
        "QIM_MAILBOX_REDIS": ",".join(settings.mailbox_redis),
        "QIM_COMMIT_REDIS": ",".join(settings.commit_redis),
        "QIM_MAILBOX_SHARD_COUNT": str(settings.mailbox_shard_count),
        "QIM_SLOT_COUNT": str(settings.slot_count),
        "QIM_TOKEN_SECRET": settings.token_secret.get_secret_value(),
        "QIM_CURSOR_SECRET": settings.cursor_secret.get_secret_value(),
        "QIM_DATA_DIR": str(settings.data_dir),
        "QIM_WEB_PORT": str(port),
        "QIM_GATEWAY_WEB_PORT": str(port),
        "QIM_GATEWAY_LISTEN": f"{LOOPBACK}:0",
        "QIM_START_TIMEOUT_S": "20",
    }
    return child_environment({**values, **more})


async def attempt(argv: list[str], settings: Settings, folder: Path, **more: str) -> Attempt:
    """Start a process and wait until it has ended by itself, asking /ready all the while."""
    port = free_ports(1)[0]
    process = ManagedProcess(
        "attempt", argv, folder / "log", environment_of(settings, port, **more)
    )
    ready = False
    process.spawn()
    try:
        async with asyncio.timeout(_LIMIT_S):
            while process.running:
                ready = ready or await http_ready(port)
                await asyncio.sleep(_POLL_S)  # polling a process; it tells nobody
    finally:
        process.kill()
    assert process.exit_code is not None
    return Attempt(process.exit_code, ready, process.log_path.read_text(errors="replace"))


@asynccontextmanager
async def running(
    argv: list[str], settings: Settings, folder: Path, **more: str
) -> AsyncIterator[int]:
    """Run a process that must come up; gives its HTTP port and ends it in order."""
    port = free_ports(1)[0]
    process = ManagedProcess(
        "running", argv, folder / "log", environment_of(settings, port, **more)
    )
    process.spawn()
    try:
        await process.wait_ready(lambda: http_ready(port), _LIMIT_S)
        yield port
        await process.stop(_LIMIT_S)
    finally:
        process.kill()
