"""The inline consumer's dealings with aiokafka, on a fake of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ConsumerStoppedError, OffsetOutOfRangeError
from faust.types import TP

from schemas.errors import StartRefused, StoreFault
from streams.fetching import InlineConsumer

A, B = TP("t", 0), TP("t", 1)


class Fetcher:
    def __init__(self) -> None:
        self._records: dict[TP, object] = {}
        self._closed = False
        self.next: dict[TP, list[Any]] | Exception = {}

    async def fetched_records(self, partitions: object, **_limits: object) -> Any:
        assert not partitions, "all partitions: aiokafka's pause is the truth"
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


class Subscription:
    def __init__(self) -> None:
        self.paused: set[TP] = set()
        self.states = {tp: SimpleNamespace(position=0, highwater=7) for tp in (A, B)}
        self.subscription = SimpleNamespace(
            assignment=SimpleNamespace(state_value=self.states.__getitem__)
        )

    def pause(self, tp: TP) -> None:
        self.paused.add(tp)

    def resume(self, tp: TP) -> None:
        self.paused.discard(tp)
        if self.states[tp].highwater is None:
            self.states[tp].highwater = 12


class Kafka:
    """aiokafka's consumer: the parts that are touched."""

    def __init__(self) -> None:
        self._fetcher = Fetcher()
        self._subscription = Subscription()
        self._closed = False
        self.sought: dict[TP, int] = {}

    def seek(self, tp: TP, offset: int) -> None:
        self.sought[tp] = offset

    async def end_offsets(self, partitions: list[TP]) -> dict[TP, int]:
        return dict.fromkeys(partitions, 9)

    async def committed(self, tp: TP) -> int | None:
        return 5 if tp == A else None


@pytest.fixture
def kafka() -> Kafka:
    return Kafka()


@pytest.fixture
async def inline(kafka: Kafka) -> InlineConsumer:
    made = InlineConsumer.__new__(InlineConsumer)
    made._consumer = kafka
    made._topics = frozenset()
    made.thread_loop = asyncio.get_running_loop()
    return made


async def test_pause_drops_what_was_fetched_ahead_so_that_others_are_not_blocked(
    inline: InlineConsumer, kafka: Kafka
) -> None:
    kafka._fetcher._records = {A: object(), B: object()}

    inline.pause([A])

    assert kafka._subscription.paused == {A}
    assert set(kafka._fetcher._records) == {B}
    inline.resume([A])
    assert kafka._subscription.paused == set()


@pytest.mark.contract("LOG-08")
async def test_position_out_of_range_is_a_fault(inline: InlineConsumer, kafka: Kafka) -> None:
    kafka._fetcher.next = OffsetOutOfRangeError({A: 5})

    with pytest.raises(StoreFault):
        await inline.poll(1.0, 100)


async def test_closed_consumer_stops_the_delivery(inline: InlineConsumer, kafka: Kafka) -> None:
    kafka._closed = True

    with pytest.raises(ConsumerStoppedError):
        await inline.poll(1.0, 100)


async def test_highwater_comes_from_fetch_and_leaves_the_partitions_paused(
    inline: InlineConsumer, kafka: Kafka
) -> None:
    kafka._subscription.paused = {A, B}

    found = await inline._highwaters([A, B])

    assert found == {A: 12, B: 12}, "not the 9 of ListOffsets"
    assert kafka.sought == {A: 9, B: 9}
    assert kafka._subscription.paused == {A, B}


async def test_committed_offsets_leave_out_partitions_without_one(inline: InlineConsumer) -> None:
    assert await inline.committed_offsets([A, B]) == {A: 5}


async def test_same_topics_again_change_nothing_and_other_topics_are_refused(
    inline: InlineConsumer,
) -> None:
    inline._topics = frozenset({"t"})

    await inline.subscribe(["t"])
    with pytest.raises(StartRefused, match="topics changed"):
        await inline.subscribe(["t", "u"])


async def test_calls_run_here_whether_they_are_coroutines_or_not(inline: InlineConsumer) -> None:
    async def later(value: int) -> int:
        return value

    assert await inline.call_thread(later, 3) == 3
    assert await inline.call_thread(lambda value: value, 4) == 4
