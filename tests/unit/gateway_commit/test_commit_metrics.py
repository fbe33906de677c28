"""What the commit step measures, and the promise that no request leaves it without an answer."""

import asyncio

import pytest

from schemas.metrics import counter, histogram
from tests.support.commit_fakes import CommitRig, request
from tests.support.virtual_time import run

DROPPED = counter("qim_gateway_backend_dropped_total")
ROUND_TRIP = histogram("qim_gateway_send_round_trip_us")


@pytest.mark.contract("OBS-05", "OBS-07", "GW-12")
def test_obs_07_depth_counts_what_waits_and_a_page_has_one_round_trip() -> None:
    async def script() -> None:
        rig = CommitRig(instances=1)
        await rig.start()
        gate = rig.hooks.block("reserve")
        rig.submit(request(1))
        await asyncio.sleep(0.001)  # its page is under way
        for number in (2, 3, 4):
            rig.submit(request(number))
        assert rig.commit.queue_depth == 3
        assert len(rig.commit.intents) == 4
        trips = ROUND_TRIP.count
        gate.set()
        await rig.settle()
        assert rig.commit.queue_depth == 0
        assert 1 <= ROUND_TRIP.count - trips <= 2  # once a page, not once a message
        await rig.commit.stop()

    run(script())
    assert DROPPED.value == 0


@pytest.mark.contract("GW-12", "REG-17", "OBS-04")
def test_gw_12_a_request_that_ends_without_its_client_being_told_is_counted() -> None:
    async def script() -> None:
        rig = CommitRig(instances=1)
        await rig.start()
        gate = rig.hooks.block("publish")
        rig.submit(request(1))
        rig.submit(request(2))
        await asyncio.sleep(1)  # virtual time: both are reserved and wait to be published
        lost = next(iter(rig.commit.intents._intents.values()))
        lost.waiters.clear()  # the defect that the metric is there for
        rig.waiters.pop(0)
        gate.set()
        await rig.settle()
        while len(rig.commit.intents):  # noqa: ASYNC110 - virtual time: passes at once
            await asyncio.sleep(0.001)
        await rig.commit.stop()

    run(script())
    assert DROPPED.value == 1
