"""The follower against a scripted consumer: order of a start, bad records, interruptions, defects."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from gateway.connections import ConnectionRegistry
from gateway.cursor import EpochBoundaries
from gateway.follower import Follower
from gateway.pushes import PushRouter
from gateway.visibility import WatermarkView
from schemas.codec import Codec
from schemas.errors import StartRefused
from schemas.records import PUSH_BATCH, WATERMARK_ROW
from tests.support.gateway import BOB, SEQ
from tests.unit.gateway.test_connections import Device
from tests.unit.gateway.test_pushes import batch
from tests.unit.gateway.test_visibility import row

W, P = TopicPartition("w", 0), TopicPartition("p", 0)
Fetched = dict[TopicPartition, list[Any]]


@dataclass
class Record:
    """What the follower looks at of a ConsumerRecord."""

    value: bytes | None
    offset: int = 0


class FakeConsumer:
    """Gives what the test scripted, then waits; remembers the order of the calls of a start."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.script: deque[Fetched | Exception] = deque()
        self.positions = {W: 0, P: 7}
        self.highwaters: dict[TopicPartition, int | None] = {W: None, P: None}
        self.end = 0
        self.wake = asyncio.Event()
        self._fetcher = SimpleNamespace()  # where the pace of the fetches is set

    async def start(self) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")

    def assign(self, _partitions: list[TopicPartition]) -> None:
        self.calls.append("assign")

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        assert partitions == (P,)
        self.calls.append("seek pushes to end")

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        assert partitions == (W,)
        self.calls.append("seek rows to beginning")

    async def end_offsets(self, _partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self.calls.append("ask for the end of the rows")
        return {W: self.end}

    async def position(self, partition: TopicPartition) -> int:
        self.calls.append(f"position {partition.topic}")
        return self.positions[partition]

    def highwater(self, partition: TopicPartition) -> int | None:
        return self.highwaters[partition]

    async def getmany(self, timeout_ms: int) -> Fetched:
        assert timeout_ms > 0
        while not self.script:
            self.wake.clear()
            await self.wake.wait()
        given = self.script.popleft()
        if isinstance(given, Exception):
            raise given
        return given

    def give(self, given: Fetched | Exception, position: int | None = None) -> None:
        """One answer of getmany; `position` is where the rows stand after it."""
        if position is not None:
            self.positions[W] = self.highwaters[W] = position
        self.script.append(given)
        self.wake.set()


class Bench:
    """A follower of one shard and one push partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.consumer = FakeConsumer()
        monkeypatch.setattr("gateway.follower.AIOKafkaConsumer", lambda **_: self.consumer)
        monkeypatch.setattr("gateway.follower._RETRY_S", 0.0)
        self.view = WatermarkView(1)
        self.registry = ConnectionRegistry(10)
        self.router = PushRouter(self.view, self.registry, 10)
        self.boundaries: EpochBoundaries = ((1, 0), (2, 50))
        self.asked: list[int] = []
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.passes = 0
        self.passed = asyncio.Event()
        self.follower = Follower(
            broker="nowhere:0",
            watermarks_topic="w",
            push_topic="p",
            push_partitions=1,
            view=self.view,
            router=self.router,
            boundaries=self.read_boundaries,
            on_ready=self.show,
            fetch_max_wait_ms=5,
            on_failure=self.failure.set_result,
        )

    async def read_boundaries(self, shard: int) -> EpochBoundaries:
        self.asked.append(shard)
        return self.boundaries

    def show(self) -> None:
        self.passes += 1
        for client, entries in self.router.take().items():
            client.push(entries)
        self.passed.set()

    async def until(self, passes: int) -> None:
        """So many fetches were taken."""
        while self.passes < passes:
            self.passed.clear()
            await asyncio.wait_for(self.passed.wait(), 5)

    async def take(self, given: Fetched) -> None:
        """One fetch, taken."""
        self.passed.clear()
        self.consumer.give(given)
        await asyncio.wait_for(self.passed.wait(), 5)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    made = Bench(monkeypatch)
    yield made
    await made.follower.stop()


async def started(bench: Bench) -> Bench:
    bench.consumer.give({}, position=0)
    await bench.follower.start(5)
    return bench


def records(codec: Codec[Any], values: Sequence[Any]) -> list[Record]:
    """Records are encoded, anything else is the value itself."""
    return [Record(codec.encode(v) if isinstance(v, dict) else v) for v in values]


def rows(*values: Any) -> Fetched:
    return {W: records(WATERMARK_ROW, values)}


def pushes(*values: Any) -> Fetched:
    return {P: records(PUSH_BATCH, values)}


@pytest.mark.contract("TAKE-08")
async def test_push_positions_are_fixed_before_the_end_of_the_rows_is_asked(bench: Bench) -> None:
    await started(bench)
    assert bench.consumer.calls[:6] == [
        "start",
        "assign",
        "seek pushes to end",
        "position p",
        "ask for the end of the rows",
        "seek rows to beginning",
    ]


@pytest.mark.contract("TAKE-08", "REG-46")
async def test_reg_46_caught_up_only_at_the_end_that_fetch_witnessed(bench: Bench) -> None:
    bench.consumer.end = 3
    starting = asyncio.create_task(bench.follower.start(5))
    bench.consumer.give({})  # nothing witnessed yet
    bench.consumer.give(rows(row(1)), position=1)
    await bench.until(2)
    assert (bench.follower.caught_up, starting.done()) == (False, False)
    bench.consumer.give(rows(row(2), row(3)), position=3)
    await starting
    assert (bench.follower.caught_up, starting.done()) == (True, True)
    assert bench.view.shards[0].watermark(0) == SEQ + 3


async def test_a_start_that_takes_too_long_is_refused_and_leaves_nothing(bench: Bench) -> None:
    with pytest.raises(StartRefused):
        await bench.follower.start(0.01)
    assert bench.consumer.calls[-1] == "stop"
    assert not bench.follower.caught_up


@pytest.mark.contract("PUSH-01")
async def test_rows_of_one_fetch_count_before_its_pushes(bench: Bench) -> None:
    await started(bench)
    bob = Device(BOB)
    bench.registry.add(bob)
    await bench.take({**pushes(batch(4, BOB)), **rows(row(4))})
    assert len(bob.pushed) == 1


async def test_bad_records_are_counted_and_skipped(bench: Bench) -> None:
    await started(bench)
    bob = Device(BOB)
    bench.registry.add(bob)
    damaged = {**row(9), "w": b"short"}
    await bench.take(rows(b"rubbish", None, damaged, row(2)))
    assert bench.view.shards[0].watermark(0) == SEQ + 2
    await bench.take(pushes(b"", b"rubbish", batch(2, BOB)))
    assert len(bob.pushed) == 1
    assert bench.follower.bad_records == 4


async def test_a_row_of_a_new_epoch_asks_for_its_boundaries_once(bench: Bench) -> None:
    await started(bench)
    await bench.take(rows(row(49, epoch=2), row(50, epoch=2)))
    assert bench.asked == [0]
    assert bench.view.shards[0].watermark(0) == (2 << 48) + 50
    assert bench.view.shards[0].compose(49) == SEQ + 49


async def test_an_interruption_is_survived(bench: Bench) -> None:
    await started(bench)
    bench.consumer.give(KafkaError("broker is away"))
    await bench.take(rows(row(6)))
    assert bench.view.shards[0].watermark(0) == SEQ + 6
    assert bench.follower.caught_up
    assert not bench.failure.done()


async def test_a_defect_ends_following_and_is_reported(bench: Bench) -> None:
    await started(bench)
    defect = ZeroDivisionError("a defect")
    bench.consumer.give(defect)
    assert await asyncio.wait_for(bench.failure, 5) is defect
    assert bench.follower.failed
    assert not bench.follower.caught_up
