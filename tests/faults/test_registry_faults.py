"""What may happen to the registry of shards on real servers: one worker started twice, and a mailbox Redis that lost everything."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from ops.plan import StackOptions
from ops.servers.ports import free_ports
from ops.services import worker_service
from ops.stack import Stack
from tests.support.stack_reads import entries
from tests.support.traffic import NOTHING_WRONG, Traffic
from tests.support.web_pages import fetch

pytestmark = pytest.mark.fault

_RATE_PER_S = 80
_PAIRS = 12


async def owned(address: str) -> set[int]:
    """The slots that a worker says it owns."""
    _, text = await fetch(address, "/stats")
    return set(json.loads(text)["slots"]["owned"])


@pytest.mark.contract("TAKE-01", "TAKE-06", "ADAPT-01")
async def test_a_worker_that_was_started_twice_ends_with_one_owner(tmp_path: Path) -> None:
    """The newer process fences the older one of its name, which lets go, says so, and never takes back."""
    async with Stack(tmp_path / "stack", StackOptions(workers=1)) as stack:
        first, slots = stack.addresses["worker-web-0"], stack.plan.slots_of(0)
        port = free_ports(1)[0]
        twin = worker_service("worker-0", slots, port, tmp_path / "twin", stack.values)
        traffic = Traffic(stack, _PAIRS)
        await traffic.connect()

        async def damage() -> None:
            await asyncio.sleep(2)
            await twin.start()
            async with asyncio.timeout(15):
                while await owned(first):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert await owned(f"127.0.0.1:{port}") == set(slots)

        try:
            await traffic.run(_RATE_PER_S, 12, damage)
            assert await traffic.judge() == NOTHING_WRONG
            assert await owned(first) == set()
            assert await owned(f"127.0.0.1:{port}") == set(slots)
            status, text = await fetch(first, "/stats")
            assert status == 200
            assert set(json.loads(text)["slots"]["lost"]) == {str(slot) for slot in slots}
        finally:
            await traffic.close()
            await twin.stop()


@pytest.mark.contract("TAKE-01", "TAKE-04", "TAKE-09", "ADAPT-05")
async def test_an_emptied_mailbox_redis_is_filled_again_byte_by_byte(tmp_path: Path) -> None:
    """Leases, boundaries, W and all entries are gone; a worker that ran all the time brings them back from the log."""
    async with Stack(tmp_path / "stack", StackOptions(workers=1)) as stack:
        traffic = Traffic(stack, _PAIRS)
        await traffic.connect()
        try:
            await traffic.run(_RATE_PER_S, 4)
            assert await traffic.judge() == NOTHING_WRONG
            before = await entries(stack)

            async def damage() -> None:
                await asyncio.sleep(1)
                stack.kill("mailbox-0")
                shutil.rmtree(stack.folder / "mailbox-0")
                await stack.restart("mailbox-0")

            await traffic.run(_RATE_PER_S, 8, damage)
            assert await traffic.judge() == NOTHING_WRONG
            after = await entries(stack)
            assert before.items() <= after.items()
            assert len(after) == 2 * 12 * _RATE_PER_S
        finally:
            await traffic.close()
