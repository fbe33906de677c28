"""Page writes against a real RocksDB store and a log in memory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from faust.types import TP

from schemas.errors import ServerFault
from tables.pages import PageProducer
from tests.support.tables import FakeKafkaProducer, FakeTable, page_writer

TOPIC = "app-table-changelog"


async def test_rows_are_in_the_changelog_before_they_are_in_the_table(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    producer.gate = asyncio.Event()
    writer = page_writer(producer)

    writing = asyncio.create_task(writer.write(table, 1, [(b"a", b"1"), (b"b", b"2")]))
    await producer.sent.wait()

    assert writer.get(table, 1, b"a") is None, "sent, not acknowledged"
    producer.gate.set()
    await writing
    assert writer.get(table, 1, b"a") == b"1"
    assert writer.get(table, 0, b"a") is None, "the other partition"
    assert producer.rows(TOPIC, 1) == [(b"a", b"1"), (b"b", b"2")]
    assert table.data.persisted_offset(TP(TOPIC, 1)) == 1


async def test_write_that_was_not_acknowledged_leaves_the_table_and_its_offset(
    tmp_path: Path,
) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    writer = page_writer(producer)
    await writer.write(table, 0, [(b"a", b"1")])
    producer.fail_next = True

    with pytest.raises(ServerFault):
        await writer.write(table, 0, [(b"a", b"2")])

    assert writer.get(table, 0, b"a") == b"1"
    assert table.data.persisted_offset(TP(TOPIC, 0)) == 0


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_offset_never_moves_past_rows_that_the_table_lacks(tmp_path: Path, how: str) -> None:
    """The next start must read from the changelog again what the torn write left only there."""
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    writer = page_writer(producer)
    await writer.write(table, 0, [(b"a", b"1")])
    if how == "failed":
        producer.fail_next = True
        with pytest.raises(ServerFault):
            await writer.write(table, 0, [(b"torn", b"2")])
    else:
        producer.gate = asyncio.Event()
        producer.sent.clear()
        torn = asyncio.create_task(writer.write(table, 0, [(b"torn", b"2")]))
        await producer.sent.wait()
        torn.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await torn
        producer.gate.set()

    for _ in range(2):
        with pytest.raises(ServerFault, match="lacks records"):
            await writer.write(table, 0, [(b"c", b"3")])
    await writer.write(table, 1, [(b"d", b"4")])

    assert table.data.persisted_offset(TP(TOPIC, 0)) == 0
    assert table.data.persisted_offset(TP(TOPIC, 1)) == 0, "the other partition is whole"

    await writer.catch_up(table, 0)
    await writer.write(table, 0, [(b"e", b"5")])

    assert writer.get_many(table, 0, [b"a", b"torn", b"c", b"e"]) == [b"1", b"2", b"3", b"5"]
    assert table.data.persisted_offset(TP(TOPIC, 0)) == len(producer.rows(TOPIC, 0)) - 1


async def test_two_writers_of_a_partition_take_turns(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    producer.gate = asyncio.Event()
    writer = page_writer(producer)

    writes = [asyncio.create_task(writer.write(table, 0, [(b"a", b"%d" % n)])) for n in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(producer.batches) == 1
    producer.gate.set()
    await asyncio.gather(*writes)

    assert producer.rows(TOPIC, 0) == [(b"a", b"0"), (b"a", b"1"), (b"a", b"2")]
    assert writer.get(table, 0, b"a") == b"2"
    assert table.data.persisted_offset(TP(TOPIC, 0)) == 2


async def test_page_larger_than_a_batch_is_split_in_order(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer(batch_limit=30)
    writer = page_writer(producer)
    rows: list[tuple[bytes, bytes | None]] = [(b"%02d" % n, b"x" * 10) for n in range(7)]

    await writer.write(table, 0, rows)

    assert [len(batch) for _, _, batch in producer.batches] == [2, 2, 2, 1]
    assert producer.rows(TOPIC, 0) == rows
    assert list(writer.scan(table, 0)) == rows
    assert table.data.persisted_offset(TP(TOPIC, 0)) == 6


async def test_row_larger_than_a_batch_is_refused(tmp_path: Path) -> None:
    writer = page_writer(FakeKafkaProducer(batch_limit=30))

    with pytest.raises(ServerFault, match="larger than a batch"):
        await writer.write(FakeTable(tmp_path), 0, [(b"a", b"1"), (b"b", b"x" * 31)])


async def test_page_must_end_with_a_live_row(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()

    with pytest.raises(ValueError, match="live"):
        await page_writer(producer).write(table, 0, [(b"a", b"1"), (b"b", None)])

    assert producer.batches == []


async def test_deleted_row_is_gone(tmp_path: Path) -> None:
    table = FakeTable(tmp_path)
    writer = page_writer(FakeKafkaProducer())
    await writer.write(table, 0, [(b"a", b"1"), (b"b", b"2")])

    await writer.write(table, 0, [(b"a", None), (b"b", b"3")])

    assert writer.get_many(table, 0, [b"b", b"a", b"x"]) == [b"3", None, None]


async def test_scan_finds_a_prefix_and_never_the_offset_key(tmp_path: Path) -> None:
    table = FakeTable(tmp_path)
    writer = page_writer(FakeKafkaProducer())
    rows: list[tuple[bytes, bytes | None]] = [(b"a1", b"1"), (b"a2", b"2"), (b"b", b"3")]
    await writer.write(table, 0, rows)

    assert list(writer.scan(table, 0, b"a")) == rows[:2]
    assert list(writer.scan(table, 0)) == rows


async def test_produced_pages_tell_the_offset_of_each_record() -> None:
    producer = FakeKafkaProducer(batch_limit=4, first_offset=100)

    class Faust:
        _producer = producer

    pages = PageProducer(Faust)

    offsets = await pages.produce_pages("t", {0: [(b"k", b"v")] * 3, 2: [(None, b"v")], 5: []})

    assert offsets == {0: [100, 101, 102], 2: [100]}
    assert [(topic, p, len(rows)) for topic, p, rows in producer.batches] == [
        ("t", 0, 2),
        ("t", 0, 1),
        ("t", 2, 1),
    ]


async def test_page_that_fails_in_one_partition_fails_as_a_whole() -> None:
    producer = FakeKafkaProducer()
    producer.fail_next = True

    class Faust:
        _producer = producer

    with pytest.raises(ServerFault):
        await PageProducer(Faust).produce_pages("t", {0: [(None, b"a")], 1: [(None, b"b")]})


async def test_producer_that_does_not_run_is_a_fault() -> None:
    class Faust:
        _producer = None

    with pytest.raises(ServerFault):
        await PageProducer(Faust).produce_pages("t", {0: [(None, b"a")]})
