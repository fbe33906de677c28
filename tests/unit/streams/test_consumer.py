"""The consumer's own rules, on a fake of the aiokafka side: flow, start positions, delivery, commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from schemas.errors import StartRefused
from stores.paging import Pace
from streams.acks import AckLedger
from streams.catchup import CatchUp
from streams.gates import Gates, Reason
from streams.pacing import Pacemaker
from streams.transport import QimConsumer
from tests.support.records import records

A, B, LOG = TP("t", 0), TP("t", 1), TP("app-table-changelog", 0)
LONG_POLL_MS = 500


class FakeInline:
    """What is fetched and from where; `log` maps a partition to its first and end offset."""

    def __init__(self) -> None:
        self.flowing: set[TP] = set()
        self.positions: dict[TP, int] = {}
        self.wait_ms = LONG_POLL_MS
        self.log = {A: (0, 100), B: (0, 100)}
        self.committed = {A: 40}
        self.places: list[Mapping[TP, int]] = []

    def assignment(self) -> set[TP]:
        return {A, B, LOG}

    def assigned(self, partitions: Iterable[TP]) -> list[TP]:
        return [tp for tp in partitions if tp in self.assignment()]

    def pause(self, partitions: Iterable[TP]) -> None:
        self.flowing -= set(partitions)

    def resume(self, partitions: Iterable[TP]) -> None:
        self.flowing |= set(partitions)

    def wait_at_most(self, limit_ms: int) -> None:
        self.wait_ms = limit_ms

    def place(self, starts: Mapping[TP, int]) -> None:
        self.places.append(dict(starts))
        self.positions |= starts

    async def committed_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        return {tp: self.committed[tp] for tp in partitions if tp in self.committed}

    async def first_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        return {tp: self.log[tp][0] for tp in partitions}

    async def end_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        return {tp: self.log[tp][1] for tp in partitions}


class Recovery:
    in_recovery = False

    def __init__(self) -> None:
        self.applied: list[TP] = []

    def apply(self, tp: TP, _records: object) -> None:
        self.applied.append(tp)


@pytest.fixture
def inline() -> FakeInline:
    return FakeInline()


@pytest.fixture
def consumer(inline: FakeInline) -> QimConsumer:
    """A consumer after its assignment: Faust has paused everything, no start position is known."""
    made = QimConsumer.__new__(QimConsumer)
    made.gates, made.ledger, made.catch_up = Gates(), AckLedger(), CatchUp()
    made._thread = inline  # type: ignore[assignment]
    made._active_partitions, made._paused_partitions = set(), set()
    made._committed_offset, made._read_offset = {}, {}
    made._acked, made._unacked_messages = {}, set()
    made.flow_active = True
    made.delivered = []  # type: ignore[attr-defined]
    tables = SimpleNamespace(changelog_topics={LOG.topic}, recovery=Recovery())
    made.app = SimpleNamespace(  # type: ignore[assignment]
        qim=SimpleNamespace(
            start_timeout_s=5.0,
            page_records=4,
            drain_timeout_s=0.01,
            fetch_max_wait_ms=LONG_POLL_MS,
        ),
        tables=tables,
        positioned=asyncio.Event(),
        start_offsets=None,
        drain_shards=None,
        in_recovery=False,
        should_stop=False,
        consumer_generation_id=-1,
    )

    made.pacemaker = Pacemaker(Pace(), set(), made._close, made._open_all)

    async def callback(message: Any) -> None:
        made.delivered.append(message)  # type: ignore[attr-defined]

    made.callback = callback
    made._close({A, B, LOG}, Reason.FAUST)
    made._close({A, B}, Reason.START)
    return made


def hook(consumer: QimConsumer, starts: dict[TP, int]) -> None:
    async def start_offsets(_partitions: set[TP]) -> dict[TP, int]:
        return starts

    consumer.app.start_offsets = start_offsets  # type: ignore[attr-defined]


@pytest.mark.contract("TAKE-07")
async def test_nothing_is_fetched_before_the_seek(
    consumer: QimConsumer, inline: FakeInline
) -> None:
    hook(consumer, {A: 7, B: 0})

    consumer.resume_partitions({A, B})  # Faust does so before it lets us seek
    assert inline.flowing == set()

    await consumer.perform_seek()
    assert inline.flowing == {A, B}
    assert inline.positions == {A: 7, B: 0}


@pytest.mark.contract("TAKE-02")
async def test_word_of_the_application_goes_before_the_committed_offset(
    consumer: QimConsumer, inline: FakeInline
) -> None:
    hook(consumer, {A: 7})

    await consumer.perform_seek()

    assert inline.positions[A] == 7
    assert inline.positions[B] == 0, "nothing committed: the oldest record"


async def test_without_a_word_the_committed_offset_counts(
    consumer: QimConsumer, inline: FakeInline
) -> None:
    await consumer.perform_seek()

    assert inline.positions == {A: 40, B: 0}


@pytest.mark.contract("LOG-08")
@pytest.mark.parametrize("start", [9, 101], ids=["below", "above"])
async def test_start_outside_the_log_fails_closed(
    consumer: QimConsumer, inline: FakeInline, start: int
) -> None:
    inline.log[A] = (10, 100)
    hook(consumer, {A: start, B: 0})
    consumer.resume_partitions({A, B})

    with pytest.raises(StartRefused, match="outside the log"):
        await consumer.perform_seek()

    assert inline.flowing == set()
    assert inline.places == []


@pytest.mark.contract("LOG-10", "REG-14")
@pytest.mark.parametrize("why", ["flow stopped", "worker stopping"])
async def test_reg_14_seek_of_the_stopped_flow_moves_nothing(
    consumer: QimConsumer, inline: FakeInline, why: str
) -> None:
    consumer.flow_active = why != "flow stopped"
    consumer.app.should_stop = why == "worker stopping"  # type: ignore[misc]

    await consumer.perform_seek()

    assert inline.places == []


async def started(consumer: QimConsumer) -> None:
    hook(consumer, {A: 0, B: 0})
    consumer.resume_partitions({A, B})
    await consumer.perform_seek()


@pytest.mark.contract("FAN-10")
async def test_held_partition_is_not_opened_by_its_agents_queue(
    consumer: QimConsumer, inline: FakeInline
) -> None:
    await started(consumer)

    consumer.on_buffer_full(A)
    consumer.hold(A)
    consumer.on_buffer_drop(A)
    assert inline.flowing == {B}
    assert inline.wait_ms < LONG_POLL_MS, "a release must not wait for a long poll"

    consumer.release(A)
    assert inline.flowing == {A, B}
    assert inline.wait_ms == LONG_POLL_MS


async def test_repositioned_shard_is_released_and_its_old_pages_are_void(
    consumer: QimConsumer, inline: FakeInline
) -> None:
    await started(consumer)
    await consumer._deliver(A, records(range(8)))
    old = [message.value for message in consumer.delivered]  # type: ignore[attr-defined]
    consumer.hold(A)

    await consumer.reposition({A: 4})

    assert inline.flowing == {A, B}
    assert inline.positions[A] == 4
    assert inline.positions[B] == 0
    assert not any(consumer.is_current(page) for page in old)
    await consumer._deliver(A, records(range(4, 8)))
    assert consumer.is_current(consumer.delivered[-1].value)  # type: ignore[attr-defined]


async def test_reposition_outside_the_log_fails_and_stays_held(
    consumer: QimConsumer, inline: FakeInline
) -> None:
    await started(consumer)
    consumer.hold(A)

    with pytest.raises(StartRefused):
        await consumer.reposition({A: 500})

    assert inline.flowing == {B}


async def test_records_become_pages_and_changelog_records_go_to_recovery(
    consumer: QimConsumer,
) -> None:
    await started(consumer)
    recovery = consumer.app.tables.recovery  # type: ignore[attr-defined]

    await consumer._deliver(A, records(range(10)))
    await consumer._deliver(LOG, records(range(3)))
    assert recovery.applied == []
    recovery.in_recovery = True
    await consumer._deliver(LOG, records(range(3)))

    pages = [message.value for message in consumer.delivered]  # type: ignore[attr-defined]
    assert [(p.first, p.offset) for p in pages] == [(0, 3), (4, 7), (8, 9)]
    assert recovery.applied == [LOG]


async def test_page_of_a_partition_without_a_start_is_not_delivered(
    consumer: QimConsumer,
) -> None:
    await consumer._deliver(A, records(range(3)))

    assert consumer.delivered == []  # type: ignore[attr-defined]


async def test_offset_to_commit_moves_with_acknowledged_pages_only(
    consumer: QimConsumer,
) -> None:
    await started(consumer)
    await consumer._deliver(A, records(range(12)))
    first, second, third = consumer.delivered  # type: ignore[attr-defined]
    assert consumer._new_offset(A) is None

    consumer.ack(first)
    consumer.ack(third)
    assert consumer._new_offset(A) == 4
    assert consumer._new_offset(A) is None, "told once"
    consumer.ack(second)
    assert consumer._new_offset(A) == 12
    assert not consumer.ack(second)


@pytest.mark.contract("TAKE-08")
async def test_catch_up_ends_with_the_acknowledgement_of_what_was_there(
    consumer: QimConsumer, inline: FakeInline
) -> None:
    inline.log = {A: (0, 4), B: (0, 0)}
    await started(consumer)
    assert consumer.catch_up.remaining(consumer.ledger.position) == {A: 4}

    await consumer._deliver(A, records(range(4)))
    consumer.ack(consumer.delivered[0])  # type: ignore[attr-defined]

    assert consumer.catch_up.remaining(consumer.ledger.position) == {}
