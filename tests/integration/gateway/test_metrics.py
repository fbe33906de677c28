"""What a gateway counts while clients wait: permits, blocked sockets, queues."""

import asyncio

import pytest

from schemas.errors import ErrorCode, RequestError
from schemas.frames import Opcode
from stores.paging import PagedStage, stage_readings
from tests.support.gateway import ALICE, BOB, FakeCommitter, message_to
from tests.support.local_gateway import LocalGateway, eventually


@pytest.mark.contract("REG-16", "OBS-05")
async def test_reg_16_the_wait_for_a_permit_is_measured_and_part_of_the_latency() -> None:
    committer = FakeCommitter(capacity=1)
    gateway = LocalGateway(committer=committer)
    async with gateway.serving():
        alice = await gateway.online(ALICE)
        for number in (1, 2):
            alice.send(Opcode.SEND_MESSAGE, message_to(number=number), number)
        await eventually(lambda: gateway.hub.starved == 1)
        assert gateway.metrics.permit_wait.count == 0
        await asyncio.sleep(0.02)  # the time that is measured
        committer.finish()
        await alice.expect(Opcode.SEND_ACK)
        await eventually(lambda: len(committer.submitted) == 2)
        committer.finish()
        await alice.expect(Opcode.SEND_ACK)
        assert gateway.hub.starved == 0

        metrics = gateway.metrics
        assert metrics.permit_wait.count == 1
        assert metrics.permit_wait.total >= 20_000
        assert metrics.send_ack_latency.count == 2
        assert metrics.send_ack_latency.total >= metrics.permit_wait.total + 20_000

        alice.send(Opcode.SEND_MESSAGE, message_to(number=3), 3)
        await eventually(lambda: committer.waiting)
        committer.finish(RequestError("no", ErrorCode.RATE_LIMITED))
        await alice.refused()
        assert metrics.permit_wait.count == 1  # nobody waited this time
        assert (metrics.sends, metrics.acks, metrics.send_errors) == (3, 2, 1)


@pytest.mark.contract("OBS-07")
async def test_obs_07_sockets_that_take_no_bytes_are_counted_until_they_are_gone() -> None:
    async with LocalGateway().serving() as gateway:
        bob = await gateway.online(BOB)
        offset = 0
        while (
            not gateway.hub.blocked and offset < 2_000
        ):  # more than all buffers of the kernel hold
            await gateway.materialize(offset, [BOB], sender=ALICE, body=bytes(7_000))
            offset += 1
            await asyncio.sleep(0)
        assert gateway.hub.blocked == 1
        await bob.close()
        await eventually(lambda: not gateway.hub.connections)
        assert gateway.hub.blocked == 0


@pytest.mark.contract("OBS-06", "OBS-07")
async def test_obs_06_depth_of_a_stage_is_what_waits_and_ends_with_the_stage() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def process(page: list[int]) -> None:
        begun.set()
        await go_on.wait()

    def depth() -> float:
        readings = {
            r.labels: r.value for r in stage_readings() if r.name == "qim_stage_queue_depth"
        }
        return float(str(readings[("test.depth",)]))

    stage = PagedStage("test.depth", process, max_records=10)
    other = PagedStage("test.depth", process, max_records=10)
    wait, work = stage.counter.wait, stage.counter.process
    stage.put(1)
    other.put(2)  # never started: what waits for two instances of a store adds up
    stage.start()
    await begun.wait()
    assert depth() == 1
    stage.put_many([3, 4, 5])
    assert depth() == 4
    assert (wait.count, work.count) == (1, 0)
    go_on.set()
    await eventually(lambda: work.count == 2)
    assert (wait.count, depth()) == (2, 1)
    stage.put(6)
    assert depth() == 2
    await stage.stop()  # also in the middle of a page
    assert depth() == 1
    await other.stop()
    assert depth() == 0
