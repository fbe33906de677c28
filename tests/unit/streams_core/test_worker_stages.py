"""The stages of a worker that all shards share: fanout, the mailbox appender, the push writer."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from faust.types import TP

from schemas.errors import ServerFault, StoreFault, StoreUnknownOutcome
from schemas.records import GROUP_DISPATCH
from stores.mailbox import OK, AppendOutcome, MailboxStore, ShardAppend
from streams.app import QimApp
from streams.appender import MailboxAppender
from streams.expand import PlannedPush
from streams.fanout import Fanout
from streams.pages import Page
from streams.push import PushWriter
from streams.shard import PagedEvent
from tests.support.dispatch_fakes import SHARDS, outbox
from tests.support.records import FakeRecord
from tests.support.virtual_time import run

Written = Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]


class FakeLog:
    """What a worker's app gives to fanout: a producer that fails on demand, and the consumer's gates."""

    def __init__(self) -> None:
        self.failures = 0
        self.calls = 0
        self.log: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        self.held: list[int] = []
        self.stale: set[int] = set()
        self.acked: list[tuple[int, int]] = []
        self.told: list[int] = []  # how many calls were made when fanout said that all is written
        self.qim_consumer = self

    def count_written(self) -> None:
        """What fanout tells once it has nothing left to write."""
        self.told.append(self.calls)

    async def produce_pages(self, topic: str, pages: Written) -> dict[int, list[int]]:
        """Everything is written even when the answer is lost, as after a broker's timeout."""
        del topic
        self.calls += 1
        for partition, records in pages.items():
            self.log.setdefault(partition, []).extend(records)
        if self.failures:
            self.failures -= 1
            raise ServerFault("not acknowledged")
        return {}

    def is_current(self, page: Page) -> bool:
        """See QimConsumer."""
        return page.partition not in self.stale

    def hold(self, tp: TP) -> None:
        """See QimConsumer."""
        self.held.append(tp.partition)

    def event(self, partition: int, values: Sequence[bytes | None], first: int = 0) -> PagedEvent:
        """A page of outbox records."""
        records = [FakeRecord(first + at, None, value) for at, value in enumerate(values)]
        page = Page("outbox", partition, records)

        def ack() -> bool:
            self.acked.append((partition, page.offset))
            return True

        return cast("PagedEvent", SimpleNamespace(value=page, ack=ack))


def fan_out(log: FakeLog, events: Sequence[PagedEvent]) -> Fanout:
    """Run the stage over events until it rests."""

    async def main() -> Fanout:
        fanout = Fanout(cast("QimApp", log), "dispatch", SHARDS, on_written=log.count_written)
        for event in events:
            fanout.put(event)
        fanout.start()
        await asyncio.sleep(60)
        assert fanout.stage.idle
        await fanout.stage.stop()
        return fanout

    return run(main())


def sequences(log: FakeLog) -> dict[int, list[int]]:
    """Partition -> conversation_seq in log order."""
    return {
        partition: [GROUP_DISPATCH.decode(value or b"")["conversation_seq"] for _, value in records]
        for partition, records in log.log.items()
    }


@pytest.mark.contract("FAN-01", "DISP-12", "ADAPT-12")
def test_dispatches_go_to_the_partition_of_their_shard_in_order() -> None:
    log = FakeLog()
    fan_out(log, [log.event(0, [outbox(n) for n in (1, 2, 3)]), log.event(0, [outbox(4)], first=3)])
    assert log.calls == 1  # everything that was queued is one page
    assert log.acked == [(0, 2), (0, 3)]
    for partition, records in log.log.items():
        for key, value in records:
            dispatch = GROUP_DISPATCH.decode(value or b"")
            assert dispatch["target_mailbox_shard"] == partition
            assert dispatch["dispatch_id"] == key
    assert set(map(tuple, sequences(log).values())) == {(1, 2, 3, 4)}


@pytest.mark.contract("REG-15", "FAN-01")
def test_reg_15_all_that_is_queued_is_one_produce_call() -> None:
    log = FakeLog()
    pages = [[outbox(4 * page + n, recipient=2000 + n) for n in range(1, 5)] for page in range(50)]
    fan_out(log, [log.event(0, values, first=4 * at) for at, values in enumerate(pages)])
    assert log.calls == 1
    assert len(log.acked) == 50
    assert len({key for records in log.log.values() for key, _ in records}) >= 200


def test_dispatches_are_called_written_once_all_of_them_are() -> None:
    log = FakeLog()
    log.failures = 1
    pages = [log.event(0, [outbox(n)], first=n) for n in range(65)]  # one more than a page takes
    fan_out(log, pages)
    assert log.calls == 3
    assert log.told == [3]


@pytest.mark.contract("FAN-01", "FAN-02")
def test_nothing_is_acknowledged_before_every_dispatch_is_and_an_unknown_outcome_repeats() -> None:
    log = FakeLog()
    log.failures = 2
    fan_out(log, [log.event(0, [outbox(1), outbox(2)])])
    assert log.calls == 3
    assert log.acked == [(0, 1)]
    for found in sequences(log).values():
        assert found == [1, 2] * 3  # duplicates, in order: dispatch_id absorbs them


@pytest.mark.contract("FAN-04", "LOG-06")
@pytest.mark.parametrize("bad", [None, b"", b"\x01damaged"])
def test_a_record_that_cannot_be_planned_stops_its_partition_alone(bad: bytes | None) -> None:
    log = FakeLog()
    events = [
        log.event(0, [outbox(1)]),
        log.event(0, [outbox(2), bad], first=1),
        log.event(0, [outbox(3)], first=3),
        log.event(1, [outbox(4)]),
    ]
    fanout = fan_out(log, events)
    assert log.acked == [(0, 0), (1, 0)]
    assert log.held == [0]
    assert set(map(tuple, sequences(log).values())) == {(1, 4)}
    assert fanout.not_ready() == "stopped outbox partitions: [0]"


def test_pages_of_before_a_restart_are_dropped() -> None:
    log = FakeLog()
    log.stale = {0}
    fan_out(log, [log.event(0, [outbox(1)])])
    assert (log.acked, log.log) == ([], {})


# --- the mailbox appender ------------------------------------------------------------------------------------


class OneStore:
    """append_page that records its pages and answers as told."""

    def __init__(self) -> None:
        self.pages: list[list[int]] = []
        self.error: Exception | None = None

    async def append_page(self, appends: Sequence[ShardAppend]) -> list[AppendOutcome]:
        """See MailboxStore."""
        self.pages.append([append.shard for append in appends])
        await asyncio.sleep(0.01)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return [OK if a.shard != 9 else AppendOutcome("fenced", "test") for a in appends]


def section(shard: int) -> ShardAppend:
    return ShardAppend(shard, 1, 1, None, bytes(19), 1, [])


def test_appends_of_all_shards_share_a_call_and_are_judged_alone() -> None:
    async def main() -> None:
        store = OneStore()
        appender = MailboxAppender(cast("MailboxStore", store), 1)
        appender.start()
        first = asyncio.ensure_future(appender.append(section(1)))
        await asyncio.sleep(0.005)
        others = [asyncio.ensure_future(appender.append(section(n))) for n in (2, 9, 3)]
        codes = [outcome.code for outcome in await asyncio.gather(first, *others)]
        assert codes == ["ok", "ok", "fenced", "ok"]
        assert store.pages == [[1], [2, 9, 3]]
        await appender.stop()

    run(main())


def test_shards_of_two_instances_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        store = OneStore()
        appender = MailboxAppender(cast("MailboxStore", store), 2)
        appender.start()
        await asyncio.gather(*(appender.append(section(n)) for n in range(4)))
        assert sorted(store.pages) == [[0, 2], [1, 3]]
        assert asyncio.get_running_loop().time() < 0.015
        await appender.stop()

    run(main())


@pytest.mark.parametrize("error", [StoreUnknownOutcome("x"), StoreFault("x"), KeyError("x")])
def test_whatever_the_store_raises_reaches_every_shard_and_the_next_page_runs(
    error: Exception,
) -> None:
    async def main() -> None:
        store = OneStore()
        appender = MailboxAppender(cast("MailboxStore", store), 1)
        appender.start()
        store.error = error
        results = await asyncio.gather(
            *(appender.append(section(n)) for n in range(3)), return_exceptions=True
        )
        assert results == [error] * 3
        assert (await appender.append(section(1))).code == "ok"
        await appender.stop()

    run(main())


# --- the push writer -----------------------------------------------------------------------------------------


@pytest.mark.contract("PUSH-01", "QUOTA-05", "SESS-20")
def test_pushes_that_do_not_fit_are_dropped_and_counted() -> None:
    log = FakeLog()

    async def main() -> None:
        writer = PushWriter("push", log.produce_pages)
        push = PlannedPush(2, b"value")
        for _ in range(200):
            writer.push([push] * 100)
        assert writer.dropped == 200 * 100 - len(writer.stage)
        kept = len(writer.stage)
        writer.start()
        await asyncio.sleep(1)
        assert len(log.log[2]) == kept
        log.failures = 1
        dropped = writer.dropped
        writer.push([push] * 3)
        await asyncio.sleep(1)
        assert writer.dropped == dropped + 3
        writer.push([push])
        await asyncio.sleep(1)
        assert writer.stage.idle  # it goes on after a refused page
        await writer.stage.stop()

    run(main())
