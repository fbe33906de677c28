"""The two queues between connections and the loop."""

import asyncio

from gateway.connections import ConnectionRegistry
from gateway.hub import Hub
from gateway.limits import GatewayLimits
from gateway.metrics import GatewayMetrics
from tests.support.gateway import FakeCommitter
from tests.unit.gateway.test_login import Desk
from tests.unit.gateway.test_mailbox import Reader


class Socket:
    """Counts what it is asked to do; takes one unit of commit capacity a turn."""

    def __init__(self, hub: Hub, turns: list["Socket"]) -> None:
        self.hub = hub
        self.turns = turns
        self.wanted = 1
        self.writes = 0

    def write_out(self) -> None:
        self.writes += 1

    def go_on(self) -> None:
        self.turns.append(self)
        self.wanted -= 1
        if self.wanted:
            self.hub.starve(self)

    def check(self, now_ms: int) -> None:
        """Not asked here."""

    def drain(self) -> None:
        """Not asked here."""

    def abort(self) -> None:
        """Not asked here."""


def make_hub(committer: FakeCommitter) -> Hub:
    return Hub(
        limits=GatewayLimits(),
        committer=committer,
        desk=Desk().desk,
        reader=Reader().reader,
        registry=ConnectionRegistry(1),
        metrics=GatewayMetrics(),
        now_us=lambda: 12_345_678,
    )


async def test_a_connection_writes_once_a_pass_however_often_it_is_scheduled() -> None:
    hub = make_hub(FakeCommitter())
    first, second = Socket(hub, []), Socket(hub, [])
    for _ in range(3):
        hub.schedule_write(first)
    hub.schedule_write(second)
    assert (first.writes, second.writes) == (0, 0)
    await asyncio.sleep(0)
    assert (first.writes, second.writes) == (1, 1)
    hub.schedule_write(first)
    await asyncio.sleep(0)
    assert (first.writes, second.writes) == (2, 1)


async def test_starved_connections_take_turns_in_the_order_they_came() -> None:
    committer = FakeCommitter()
    hub = make_hub(committer)
    turns: list[Socket] = []
    busy, other = Socket(hub, turns), Socket(hub, turns)
    busy.wanted = 3
    for socket in (busy, other):
        hub.starve(socket)
    hub.feed_starved()
    assert turns == [busy, other]
    hub.feed_starved()
    hub.feed_starved()
    assert turns == [busy, other, busy, busy]
    assert hub.starved == 0


async def test_nobody_is_fed_without_capacity() -> None:
    committer = FakeCommitter(capacity=0)
    hub = make_hub(committer)
    turns: list[Socket] = []
    hub.starve(Socket(hub, turns))
    hub.feed_starved()
    assert (turns, hub.starved) == ([], 1)
    committer.capacity = 1
    hub.feed_starved()
    assert len(turns) == 1


async def test_one_clock_in_two_units() -> None:
    hub = make_hub(FakeCommitter())
    assert (hub.now_us(), hub.now_ms()) == (12_345_678, 12_345)
