"""The outbox is the pacemaker of a busy worker: after a page of it the next one is fetched when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from stores.paging import BUSY_MESSAGES_PER_S, Pace
from streams.gates import Gates
from streams.pacing import Pacemaker
from streams.transport import QimConsumer
from tests.support.records import records
from tests.support.virtual_time import run

OUTBOX, DISPATCH, LOG = TP("outbox", 0), TP("dispatch", 0), TP("app-table-changelog", 0)
LONG_POLL_MS = 50
INTERVAL_S = 0.08
MANY = int(BUSY_MESSAGES_PER_S * INTERVAL_S) * 2  # more than the interval allows without waiting
Script = Callable[["QimConsumer", "FakeInline"], Coroutine[None, None, None]]


class FakeInline:
    """Which partitions are fetched, and how the next fetch waits."""

    def __init__(self) -> None:
        self.flowing = self.assignment()
        self.wait_ms = LONG_POLL_MS

    def assignment(self) -> set[TP]:
        return {OUTBOX, DISPATCH, LOG}

    def assigned(self, partitions: Iterable[TP]) -> list[TP]:
        return [tp for tp in partitions if tp in self.assignment()]

    def pause(self, partitions: Iterable[TP]) -> None:
        self.flowing -= set(partitions)

    def resume(self, partitions: Iterable[TP]) -> None:
        self.flowing |= set(partitions)

    def wait_at_most(self, limit_ms: int) -> None:
        self.wait_ms = limit_ms


def play(script: Script, *, interval_s: float = INTERVAL_S) -> None:
    """Run the script with a started consumer, in virtual time."""

    async def main() -> None:
        consumer, inline = QimConsumer.__new__(QimConsumer), FakeInline()
        consumer.gates, consumer._thread = Gates(), inline  # type: ignore[assignment]
        consumer._stopped, consumer._crashed = asyncio.Event(), asyncio.Event()  # type: ignore[assignment]
        consumer.app = SimpleNamespace(  # type: ignore[assignment]
            qim=SimpleNamespace(fetch_max_wait_ms=LONG_POLL_MS), in_recovery=False
        )
        consumer.pacemaker = Pacemaker(
            Pace(interval_s), {OUTBOX.topic}, consumer._close, consumer._open_all
        )
        await script(consumer, inline)

    run(main())


def polled(consumer: QimConsumer, fetched: dict[TP, list[Any]]) -> None:
    """What delivery does with each poll."""
    consumer.pacemaker.polled(fetched, {OUTBOX, DISPATCH})
    consumer._choose_wait()


def test_outbox_stays_closed_until_the_next_page_is_due() -> None:
    async def script(consumer: QimConsumer, inline: FakeInline) -> None:
        polled(consumer, {OUTBOX: records(range(MANY))})
        consumer.gathered()
        assert inline.flowing == {DISPATCH, LOG}

        await asyncio.sleep(INTERVAL_S - 0.001)
        assert inline.flowing == {DISPATCH, LOG}
        await asyncio.sleep(0.002)
        assert inline.flowing == inline.assignment()
        assert inline.wait_ms == LONG_POLL_MS

    play(script)


def test_what_follows_from_the_page_is_fetched_once_all_of_it_is_written() -> None:
    async def script(consumer: QimConsumer, inline: FakeInline) -> None:
        polled(consumer, {OUTBOX: records(range(MANY))})
        assert inline.flowing == {LOG}
        await asyncio.sleep(0.02)
        assert inline.flowing == {LOG}

        consumer.gathered()
        assert inline.flowing == {DISPATCH, LOG}
        assert (INTERVAL_S - 0.02) * 1000 <= inline.wait_ms <= (INTERVAL_S - 0.02) * 1000 + 1
        polled(consumer, {DISPATCH: records(range(MANY))})
        assert inline.flowing == {DISPATCH, LOG}, "dispatches neither open nor close anything"

        await asyncio.sleep(INTERVAL_S)
        assert inline.flowing == inline.assignment()

    play(script)


def test_whoever_never_tells_holds_up_nothing_for_longer_than_a_page() -> None:
    async def script(consumer: QimConsumer, inline: FakeInline) -> None:
        polled(consumer, {OUTBOX: records(range(MANY))})
        await asyncio.sleep(INTERVAL_S + 0.001)
        assert inline.flowing == inline.assignment()

    play(script)


@pytest.mark.parametrize(
    ("interval_s", "fetched"),
    [
        (INTERVAL_S, {OUTBOX: records([0])}),
        (INTERVAL_S, {DISPATCH: records(range(MANY))}),
        (INTERVAL_S, {}),
        (0.0, {OUTBOX: records(range(MANY))}),
    ],
    ids=["lone record", "dispatches only", "silence", "pacing is off"],
)
def test_nothing_waits_at_a_low_rate(interval_s: float, fetched: dict[TP, list[Any]]) -> None:
    async def script(consumer: QimConsumer, inline: FakeInline) -> None:
        polled(consumer, fetched)
        assert inline.flowing == inline.assignment()
        assert inline.wait_ms == LONG_POLL_MS

    play(script, interval_s=interval_s)


@pytest.mark.contract("FAN-10")
def test_end_of_the_pause_does_not_open_what_a_shard_holds() -> None:
    async def script(consumer: QimConsumer, inline: FakeInline) -> None:
        polled(consumer, {OUTBOX: records(range(MANY))})
        consumer.hold(OUTBOX)
        consumer.hold(DISPATCH)
        consumer.gathered()
        await asyncio.sleep(INTERVAL_S * 2)
        assert inline.flowing == {LOG}

        consumer.release(OUTBOX)
        consumer.release(DISPATCH)
        assert inline.flowing == inline.assignment()

    play(script)


def test_worker_that_stops_while_the_outbox_waits_fetches_nothing_more() -> None:
    async def script(consumer: QimConsumer, inline: FakeInline) -> None:
        polled(consumer, {OUTBOX: records(range(MANY))})
        consumer._stopped.set()
        await asyncio.sleep(INTERVAL_S * 2)
        assert inline.flowing == {LOG}

    play(script)
