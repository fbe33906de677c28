"""The generator against the gateway's protocol core on a real loopback port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bench.load import LoadOptions, PairLoad
from gateway.ports import CommitRequest, CommittedMessage
from tests.support.gateway_pair import DoublingWorld, World
from tests.support.tcp_gateway import TcpGateway


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def gateway(world: World) -> AsyncIterator[TcpGateway]:
    async with TcpGateway(world).serving() as gateway:
        yield gateway


def token_of(user: int, _device_id: bytes) -> str:
    return f"{user}"


async def loaded(gateway: TcpGateway, pairs: int = 3, drain_s: float = 5.0) -> PairLoad:
    options = LoadOptions(pairs=pairs, drain_s=drain_s, pull_debounce_s=0.05)
    load = PairLoad((gateway.address,), token_of, options)
    await load.log_in()
    return load


async def test_everything_offered_is_acknowledged_and_delivered_once(gateway: TcpGateway) -> None:
    load = await loaded(gateway)
    try:
        run = await load.run(rate_per_s=500, seconds=0.4)
        verdict = load.judge(run)
    finally:
        await load.close()
    assert (verdict.offered, verdict.acked, verdict.delivered) == (200, 200, 200)
    assert (verdict.duplicates, verdict.order_breaks, verdict.strangers) == (0, 0, 0)
    assert len(verdict.ack_s) == len(verdict.e2e_s) == 200
    assert min(verdict.e2e_s) > 0
    assert len(run.late_s) == 200
    assert min(run.late_s) >= 0
    assert run.failed == 0


@pytest.mark.contract("LOAD-03", "REG-38")
async def test_reg_38_no_run_meets_the_client_message_ids_of_another(
    gateway: TcpGateway, world: World
) -> None:
    for _ in range(2):
        load = await loaded(gateway)
        try:
            await load.run(rate_per_s=500, seconds=0.1)
            verdict = load.judge(await load.run(rate_per_s=500, seconds=0.1))
        finally:
            await load.close()
        assert verdict.delivered == 50
    assert len(world.commits) == 200  # not one answered from an older commit


class Losing(World):
    """Loses the mailbox entry of every tenth message after its ACK."""

    def deliver(self, user: int, request: CommitRequest, committed: CommittedMessage) -> None:
        if len(self.commits) % 10:
            super().deliver(user, request, committed)


async def test_acknowledged_message_that_never_arrives_is_found() -> None:
    async with TcpGateway(Losing()).serving() as gateway:
        load = await loaded(gateway, drain_s=0.2)
        try:
            verdict = load.judge(await load.run(rate_per_s=500, seconds=0.2))
        finally:
            await load.close()
    assert verdict.acked == 100
    assert verdict.delivered == 90
    assert len(verdict.acked_not_delivered) == 10


async def test_message_that_arrives_under_two_ids_is_a_duplicate() -> None:
    async with TcpGateway(DoublingWorld()).serving() as gateway:
        load = await loaded(gateway, drain_s=0.3)
        try:
            verdict = load.judge(await load.run(rate_per_s=500, seconds=0.2))
        finally:
            await load.close()
    assert verdict.duplicates >= 10
    assert verdict.delivered == 100


async def test_stalled_gateway_shows_in_the_latency_of_what_was_due(
    gateway: TcpGateway, world: World
) -> None:
    load = await loaded(gateway)
    loop = asyncio.get_running_loop()
    world.hold_commits = True
    loop.call_later(0.3, setattr, world, "hold_commits", False)
    try:
        verdict = load.judge(await load.run(rate_per_s=200, seconds=0.5))
    finally:
        await load.close()
    assert verdict.delivered == 100
    assert verdict.offered == 100
    assert max(verdict.ack_s) > 0.05  # settled by a later pull, counted from when they were due
