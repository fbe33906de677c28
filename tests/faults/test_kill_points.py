"""A process that dies exactly between two durable steps, at each of the named points, on real servers (docs/testing.md)."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops.plan import StackOptions
from ops.stack import Stack
from schemas.kill_points import KillPoint
from tests.support.traffic import NOTHING_WRONG, Traffic

pytestmark = pytest.mark.fault

_RATE_PER_S = 100
_SECONDS = 4.0
_DEATH_LIMIT_S = 60.0
_GATEWAY_POINTS = {KillPoint.AFTER_OUTBOX, KillPoint.BEFORE_MARK}
_PAGE = 5  # the page at which it dies; what piled up while it was down is enough for that many


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with Stack(tmp_path / "stack", StackOptions(mailbox_redis=2, commit_redis=2)) as running:
        yield running


async def _die_at(stack: Stack, point: KillPoint) -> None:
    """Start the process anew so that it kills itself at the point, wait for that, and bring it back unarmed."""
    name = "gateway-0" if point in _GATEWAY_POINTS else "worker-0"
    process = stack.process(name)
    calm = dict(process.env or {})
    process.env = {
        **calm,
        "QIM_TEST_BUILD": "1",
        "QIM_TEST_KILL_POINT": f"{point.value}:{_PAGE}",
    }
    await stack.stop_one(name)
    process.spawn()  # it may die before it is ready
    assert await process.wait_end(_DEATH_LIMIT_S) == -signal.SIGKILL
    process.env = calm
    await stack.restart(name)


@pytest.mark.contract("GATE-22", "MBX-34", "COM-03", "COM-08", "TAKE-02", "TAKE-09")
async def test_gate_22_death_between_any_two_durable_steps_loses_and_repeats_nothing(
    stack: Stack,
) -> None:
    traffic = Traffic(stack, 10)
    await traffic.connect()
    try:
        for point in KillPoint:

            async def damage(point: KillPoint = point) -> None:
                await _die_at(stack, point)

            await traffic.run(_RATE_PER_S, _SECONDS, damage)
        counts = await traffic.judge()
    finally:
        await traffic.close()
    assert counts == NOTHING_WRONG
    assert stack.crashed() == {}
