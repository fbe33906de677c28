"""Table recovery by fetched lists, on a real RocksDB store, without a broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from schemas.errors import StartRefused
from streams.recovery import BatchRecovery
from tests.support.records import FakeRecord
from tests.support.tables import FakeKafkaProducer, FakeTable, page_writer

A, B = TP("app-table-changelog", 0), TP("app-table-changelog", 1)


class Positions:
    """The consumer as recovery sees it."""

    def __init__(self, **positions: int) -> None:
        by_name = {"a": A, "b": B}
        self.positions = {by_name[name]: position for name, position in positions.items()}
        self.inline = self

    def fetch_position(self, tp: TP) -> int:
        return self.positions[tp]


def recovery_of(table: FakeTable, stall_s: float = 30.0, merge: Any = None) -> BatchRecovery:
    app: Any = SimpleNamespace(
        conf=SimpleNamespace(stream_recovery_delay=0.0),
        qim=SimpleNamespace(recovery_stall_s=stall_s),
        page_writer=page_writer(FakeKafkaProducer(), {table.name: merge} if merge else {}),
        in_recovery=False,
    )
    recovery = BatchRecovery(app, SimpleNamespace())  # type: ignore[arg-type]
    recovery.tp_to_table = {A: table, B: table}  # type: ignore[dict-item]
    recovery.active_tps = {A, B}
    recovery.active_offsets = Counter({A: -1, B: -1})
    recovery.active_highwaters = Counter({A: 9, B: 4})
    return recovery


def rows(table: FakeTable, partition: int = 0) -> dict[bytes, bytes]:
    return {k: v for k, v in table.data._dbs[partition].items() if k != table.data.offset_key}


def test_records_become_rows_and_tombstones_remove_them(tmp_path: Path) -> None:
    table = FakeTable(tmp_path)
    recovery = recovery_of(table)

    recovery.apply(A, [FakeRecord(0, b"a", b"1"), FakeRecord(1, b"b", b"2")])
    recovery.apply(A, [FakeRecord(5, b"a", None), FakeRecord(7, b"c", b"3")])

    assert rows(table) == {b"b": b"2", b"c": b"3"}
    assert table.data.persisted_offset(A) == 7
    assert rows(table, 1) == {}


def test_records_that_the_table_holds_already_are_passed_over(tmp_path: Path) -> None:
    table = FakeTable(tmp_path)
    recovery = recovery_of(table)
    recovery.active_offsets[A] = 6

    recovery.apply(A, [FakeRecord(5, b"old", b"1"), FakeRecord(6, b"old", b"2")])
    assert table.data.persisted_offset(A) is None
    recovery.apply(A, [FakeRecord(6, b"old", b"2"), FakeRecord(7, b"new", b"3")])

    assert rows(table) == {b"new": b"3"}
    assert table.data.persisted_offset(A) == 7


def test_merge_chooses_among_the_row_kept_and_all_rows_read(tmp_path: Path) -> None:
    table = FakeTable(tmp_path)
    largest = lambda _key, old, new: max(old or b"", new)  # noqa: E731
    recovery = recovery_of(table, merge=largest)

    recovery.apply(A, [FakeRecord(0, b"W", b"5"), FakeRecord(1, b"W", b"3")])
    assert rows(table) == {b"W": b"5"}
    recovery.apply(A, [FakeRecord(2, b"W", b"4")])

    assert rows(table) == {b"W": b"5"}
    assert table.data.persisted_offset(A) == 2


def test_recovery_ends_when_every_position_is_at_its_end(tmp_path: Path) -> None:
    recovery = recovery_of(FakeTable(tmp_path))
    recovery._set_recovery_started()
    recovery.step(Positions(a=10, b=5))  # type: ignore[arg-type]
    assert (
        recovery.in_recovery
    )  # positions stand where the end of the logs was asked for: nothing was read yet
    recovery.positioned = True

    recovery.step(Positions(a=10, b=4))  # type: ignore[arg-type]
    assert recovery.in_recovery
    assert not recovery.signal_recovery_end.is_set()

    recovery.step(Positions(a=10, b=5))  # type: ignore[arg-type]
    assert recovery.signal_recovery_end.is_set()
    assert not recovery.app.in_recovery


def test_end_that_compaction_emptied_is_reached_all_the_same(tmp_path: Path) -> None:
    recovery = recovery_of(FakeTable(tmp_path))
    recovery._set_recovery_started()
    recovery.positioned = True
    recovery.apply(A, [FakeRecord(3, b"a", b"1")])  # offsets 4 to 9 are gone

    recovery.step(Positions(a=10, b=5))  # type: ignore[arg-type]

    assert recovery.signal_recovery_end.is_set()


async def test_reading_starts_behind_the_last_applied_row(tmp_path: Path) -> None:
    recovery = recovery_of(FakeTable(tmp_path))
    seen: dict[TP, int] = {}

    class Consumer:
        async def seek_wait(self, starts: dict[TP, int]) -> None:
            seen.update(starts)

    recovery.active_offsets = Counter({A: 41, B: -1})
    await recovery._seek_offsets(Consumer(), {A, B}, recovery.active_offsets, "active")  # type: ignore[arg-type]

    assert seen == {A: 42, B: 0}


async def test_recovery_that_stops_moving_fails_the_start(tmp_path: Path) -> None:
    recovery = recovery_of(FakeTable(tmp_path), stall_s=0.0)
    recovery._set_recovery_started()
    recovery.active_offsets[B] = 4

    with pytest.raises(StartRefused, match="stopped moving") as refused:
        async with asyncio.timeout(10):
            await BatchRecovery._slurp_changelogs.fun(recovery)

    assert "partition=0" in str(refused.value)
    assert "partition=1" not in str(refused.value)


async def test_answer_that_does_not_come_fails_the_start(tmp_path: Path) -> None:
    recovery = recovery_of(FakeTable(tmp_path))

    with pytest.raises(StartRefused, match="no answer"):
        await recovery._wait(asyncio.Event().wait(), timeout=0.01)
