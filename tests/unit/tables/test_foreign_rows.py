"""Rows of another writer in a changelog: noticed by the next write, joined by catch_up, written again where they are worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from faust.types import TP

from schemas.errors import ErrorCode, ServerFault, StoreFault
from tables.joining import join_rows
from tests.support.records import FakeRecord
from tests.support.tables import FakeKafkaProducer, FakeTable, page_writer

TOPIC = "app-table-changelog"


def largest(key: bytes, old: bytes | None, new: bytes) -> bytes:
    """A merge that keeps the larger row."""
    del key
    return max(old or b"", new)


MERGES = {"table": largest}


def test_joined_rows_name_those_whose_last_record_is_worse() -> None:
    log = [(b"a", b"3"), (b"a", b"1"), (b"b", b"1"), (b"b", b"2"), (b"c", b"4"), (b"c", None)]
    records = [FakeRecord(n, *row) for n, row in enumerate(log)]

    joined = join_rows({b"c": b"9"}.get, records, largest)

    assert joined.rows == {b"a": b"3", b"b": b"2", b"c": b"9"}
    assert joined.worse == {b"a", b"c"}


@pytest.mark.contract("TAKE-01", "DP-03")
async def test_write_that_meets_rows_of_another_fails_until_they_are_read(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    writer = page_writer(producer, MERGES)
    await writer.write(table, 0, [(b"a", b"5")])
    producer.write_as_another(TOPIC, 0, [(b"a", b"2"), (b"b", b"7")])

    with pytest.raises(ServerFault, match="lacks records"):
        await writer.write(table, 0, [(b"c", b"1")])
    assert table.data.persisted_offset(TP(TOPIC, 0)) == 0
    await writer.catch_up(table, 0)
    await writer.write(table, 0, [(b"d", b"1")])

    assert writer.get_many(table, 0, [b"a", b"b", b"c", b"d"]) == [b"5", b"7", b"1", b"1"]
    assert dict(producer.rows(TOPIC, 0))[b"a"] == b"5", "the last row, which compaction keeps"
    assert table.data.persisted_offset(TP(TOPIC, 0)) == len(producer.rows(TOPIC, 0)) - 1


@pytest.mark.contract("TAKE-01")
async def test_owner_that_comes_back_reads_what_was_written_meanwhile(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    writer = page_writer(producer, MERGES)
    await writer.write(table, 0, [(b"a", b"1")])
    producer.write_as_another(TOPIC, 0, [(b"a", b"8")])

    await writer.catch_up(table, 0)

    assert writer.get(table, 0, b"a") == b"8"
    assert len(producer.rows(TOPIC, 0)) == 2, "nothing was worse, nothing is written again"
    await writer.catch_up(table, 0)
    await writer.write(table, 0, [(b"a", b"9")])
    assert len(producer.rows(TOPIC, 0)) == 3


async def test_worse_row_that_recovery_read_is_replaced_when_the_shard_is_taken(
    tmp_path: Path,
) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    writer = page_writer(producer, MERGES)
    producer.write_as_another(TOPIC, 0, [(b"a", b"8"), (b"b", b"1"), (b"a", b"2")])
    log = [FakeRecord(n, *row) for n, row in enumerate(producer.rows(TOPIC, 0))]
    writer.take_records(table, 0, log[:2], 1)
    writer.take_records(table, 0, log[2:], 2)

    await writer.catch_up(table, 0)

    assert producer.rows(TOPIC, 0)[3:] == [(b"a", b"8")]
    assert writer.get(table, 0, b"a") == b"8"


async def test_worse_row_stays_known_while_it_cannot_be_written(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    writer = page_writer(producer, MERGES)
    await writer.write(table, 0, [(b"a", b"5")])
    producer.write_as_another(TOPIC, 0, [(b"a", b"2")])
    producer.fail_next = True

    with pytest.raises(ServerFault, match="failed"):
        await writer.catch_up(table, 0)
    await writer.catch_up(table, 0)

    assert producer.rows(TOPIC, 0)[-1] == (b"a", b"5")
    assert writer.get(table, 0, b"a") == b"5"


async def test_a_changelog_that_lost_its_end_stops_the_shard(tmp_path: Path) -> None:
    """Its rows are in the table alone: whoever has to read them from the log would miss them."""
    table = FakeTable(tmp_path)
    await page_writer(FakeKafkaProducer()).write(table, 0, [(b"a", b"1"), (b"b", b"2")])
    shorter = FakeKafkaProducer()
    shorter.write_as_another(TOPIC, 0, [(b"a", b"1")])

    with pytest.raises(StoreFault, match="ends at 1") as stopped:
        await page_writer(shorter).catch_up(table, 0)
    assert stopped.value.code is ErrorCode.INTERNAL


async def test_lack_is_seen_where_nothing_is_written(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer()
    writer = page_writer(producer, MERGES)
    assert not writer.lacks(table, 0, 9), "nobody has taken it yet"
    await writer.write(table, 0, [(b"a", b"5")])
    assert not writer.lacks(table, 0, 1)

    producer.write_as_another(TOPIC, 0, [(b"a", b"2")])

    assert writer.lacks(table, 0, producer.end(TOPIC, 0))
    await writer.catch_up(table, 0)
    assert not writer.lacks(table, 0, producer.end(TOPIC, 0))


async def test_batches_with_rows_of_another_in_between_are_noticed(tmp_path: Path) -> None:
    table, producer = FakeTable(tmp_path), FakeKafkaProducer(batch_limit=4)
    writer = page_writer(producer, MERGES)
    await writer.catch_up(table, 0)
    send = producer.send_batch

    async def with_a_row_behind(*batch: object, **where: object) -> object:
        sent = await send(*batch, **where)  # type: ignore[arg-type]
        producer.write_as_another(TOPIC, 0, [(b"z", b"1")])
        return sent

    producer.send_batch = with_a_row_behind  # type: ignore[method-assign,assignment]

    with pytest.raises(ServerFault, match="lacks records"):
        await writer.write(table, 0, [(b"a1", b"1"), (b"a2", b"2")])
