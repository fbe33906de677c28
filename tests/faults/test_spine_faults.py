"""Kill single processes under load: everything acknowledged is shown once, in order, at every device.

Each case runs a whole stack of its own on real servers and kills with SIGKILL.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from ops.plan import StackOptions
from ops.stack import Stack
from tests.support.traffic import NOTHING_WRONG, Traffic

pytestmark = pytest.mark.fault

_RATE_PER_S = 200
_SECONDS = 8.0
_PAIRS = 20


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """A stack with servers of its own, two instances of each Redis role."""
    options = StackOptions(mailbox_redis=2, commit_redis=2)
    async with Stack(tmp_path / "stack", options) as running:
        yield running


async def _under_load(
    stack: Stack, damage: Callable[[], Coroutine[None, None, None]]
) -> dict[str, int]:
    traffic = Traffic(stack, _PAIRS)
    await traffic.connect()
    try:
        await traffic.run(_RATE_PER_S, _SECONDS, damage)
        return await traffic.judge()
    finally:
        await traffic.close()


@pytest.mark.contract("TAKE-02", "FAN-02", "COM-01")
@pytest.mark.parametrize("name", ["worker-0", "gateway-0", "mailbox-0", "commit-0", "kafka"])
async def test_kill_minus_9_under_load_loses_and_repeats_nothing(stack: Stack, name: str) -> None:
    async def damage() -> None:
        await asyncio.sleep(_SECONDS / 3)
        stack.kill(name)
        await stack.restart(name)

    assert await _under_load(stack, damage) == NOTHING_WRONG
    assert stack.crashed() == {}


@pytest.mark.contract("ADAPT-05", "TAKE-11")
async def test_worker_without_its_rocksdb_recovers_from_the_changelog(stack: Stack) -> None:
    async def damage() -> None:
        await asyncio.sleep(_SECONDS / 3)
        stack.kill("worker-0")
        shutil.rmtree(stack.folder / "worker-0" / "tables")
        await stack.restart("worker-0")

    assert await _under_load(stack, damage) == NOTHING_WRONG


async def test_whole_stack_restarts_on_its_data_with_nothing_lost(tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    async with Stack(folder) as stack:
        traffic = Traffic(stack, 5)
        await traffic.connect()
        await traffic.run(50, 2.0)
        await traffic.close()
    async with Stack(folder) as stack:
        await traffic.connect()
        await traffic.run(50, 2.0)
        counts = await traffic.judge()
        await traffic.close()
    assert counts == NOTHING_WRONG
