"""The rows of both tables: what is kept, and what a late row of a fenced worker may change."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RecordError
from schemas.records import (
    DISPATCH_PROGRESS,
    SHARD_EPOCHS,
    WATERMARK_ROW,
    DispatchProgress,
    WatermarkRow,
)
from schemas.watermarks import ABSENT, LaneMark, pack_uniform, pack_w
from tables.progress import EPOCHS_KEY, ProgressTable, merge_progress
from tables.watermarks import WATERMARK_KEY, WatermarksTable, merge_rows, supersedes
from tests.support.tables import FakeKafkaProducer, FakeTable, page_writer


def mark(term: int, w: int, page_number: int = 1) -> WatermarkRow:
    return {
        "lease_term": term,
        "epoch": 1,
        "base_epoch": 1,
        "page_number": page_number,
        "w": pack_uniform(w),
    }


def lanes(term: int, *marks: int) -> WatermarkRow:
    row = mark(term, 0)
    padded = [LaneMark(w, w, w) for w in marks] + [ABSENT] * (64 - len(marks))
    row["w"] = pack_w(padded)
    return row


def progress(offset: int) -> DispatchProgress:
    return {
        "payload_digest": bytes(32),
        "canonical_log_offset": offset,
        "max_observed_offset": offset,
        "last_seen_ms": 1,
        "completed_at_ms": 1,
        "manifest": b"DPM\x02",
        "expected": 1,
        "done": 1,
        "unfinished_lanes": [],
    }


async def test_progress_rows_are_found_by_dispatch_id(tmp_path: Path) -> None:
    producer = FakeKafkaProducer()
    table = ProgressTable(page_writer(producer), FakeTable(tmp_path))
    ids = [bytes([n]) * 16 for n in range(3)]
    rows = [(ids[n], DISPATCH_PROGRESS.encode(progress(n))) for n in (0, 2)]

    await table.write(1, rows)

    assert table.get_many(1, ids) == {ids[0]: progress(0), ids[2]: progress(2)}
    assert table.get_many(0, ids) == {}
    assert table.get_many(1, []) == {}
    assert table.scan(1) == {ids[0]: progress(0), ids[2]: progress(2)}


async def test_watermark_row_is_one_a_shard(tmp_path: Path) -> None:
    table = WatermarksTable(page_writer(FakeKafkaProducer()), FakeTable(tmp_path))
    assert table.get(0) is None

    await table.write(0, mark(1, 5))
    await table.write(0, mark(1, 9))

    assert table.get(0) == mark(1, 9)
    assert table.get(1) is None


async def test_damaged_watermark_row_is_refused(tmp_path: Path) -> None:
    fake = FakeTable(tmp_path)
    writer = page_writer(FakeKafkaProducer())
    await writer.write(fake, 0, [(WATERMARK_KEY, b"\x01damaged")])

    with pytest.raises(RecordError):
        WatermarksTable(writer, fake).get(0)


@pytest.mark.contract("WM-04", "ADAPT-05")
@pytest.mark.parametrize(
    ("new", "old", "kept"),
    [
        (mark(2, 3), mark(1, 9), "new"),  # a new owner may have started lower
        (mark(1, 9), mark(2, 3), "old"),  # the late row of the fenced one
        (mark(1, 9), mark(1, 8), "new"),
        (mark(1, 8), mark(1, 9), "old"),
        (mark(1, 9, 5), mark(1, 9, 4), "new"),
        (mark(1, 9, 4), mark(1, 9, 5), "old"),
        (lanes(1, 5, 5), lanes(1, 5, 4), "new"),
        (lanes(1, 9, 4), lanes(1, 5, 5), "old"),  # one lane would go back
        (mark(1, 0), lanes(1), "new"),
    ],
)
def test_row_with_the_larger_term_then_the_larger_w_is_kept(
    new: WatermarkRow, old: WatermarkRow, kept: str
) -> None:
    encoded = {"new": WATERMARK_ROW.encode(new), "old": WATERMARK_ROW.encode(old)}

    assert merge_rows(WATERMARK_KEY, encoded["old"], encoded["new"]) == encoded[kept]


def test_first_row_is_kept() -> None:
    row = WATERMARK_ROW.encode(mark(1, 1))
    assert merge_rows(WATERMARK_KEY, None, row) == row


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), min_size=1, max_size=8))
def test_row_kept_after_any_log_is_a_largest_one(log: list[tuple[int, int]]) -> None:
    kept: bytes | None = None
    for term, w in log:
        kept = merge_rows(WATERMARK_KEY, kept, WATERMARK_ROW.encode(mark(term, w)))

    assert kept is not None
    row = WATERMARK_ROW.decode(kept)
    assert (row["lease_term"], row["w"]) == max((t, pack_uniform(w)) for t, w in log)
    assert supersedes(row, row)


def row_of(done: int, unfinished: list[int], *, seen: int = 5, digest: int = 1) -> bytes:
    return DISPATCH_PROGRESS.encode(
        {
            "payload_digest": bytes([digest]) * 32,
            "canonical_log_offset": 5,
            "max_observed_offset": seen,
            "last_seen_ms": seen,
            "completed_at_ms": 1,
            "manifest": b"",
            "expected": 3,
            "done": done,
            "unfinished_lanes": unfinished,
        }
    )


ROW_KEY = b"d" * 16


@pytest.mark.contract("TAKE-01", "TAKE-09", "DP-03")
@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (row_of(1, [2, 3]), row_of(3, []), row_of(3, [])),
        (row_of(3, []), row_of(1, [2, 3]), row_of(3, [])),  # the late row of a fenced worker
        (row_of(2, [3], seen=9), row_of(2, [2, 3]), row_of(2, [3], seen=9)),
        (row_of(3, []), row_of(1, [2], digest=2), row_of(1, [2], digest=2)),
    ],
)
def test_what_was_finished_stays_finished_whoever_wrote_last(
    first: bytes, second: bytes, kept: bytes
) -> None:
    assert merge_progress(ROW_KEY, first, second) == kept
    assert merge_progress(ROW_KEY, None, first) == first


def block(first: int, ids: bytes) -> bytes:
    return first.to_bytes(8, "big") + b"".join(bytes([one]) * 16 for one in ids)


@pytest.mark.contract("TAKE-01")
@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (block(0, b"ab"), block(0, b"abcd"), block(0, b"abcd")),
        (block(0, b"abcd"), block(0, b"ab"), block(0, b"abcd")),  # late
        (block(2, b"cd"), block(0, b"abc"), block(0, b"abcd")),
        (block(0, b"ab"), block(2, b"cd"), block(0, b"abcd")),  # they touch
        (block(0, b"abcdef"), block(2, b"cd"), block(0, b"abcdef")),
        (block(0, b"a"), block(3, b"d"), block(3, b"d")),  # a hole between them
        (block(0, b"ab"), block(0, b"xbc"), block(0, b"xbc")),  # another log
    ],
)
def test_blocks_of_one_log_are_joined(first: bytes, second: bytes, kept: bytes) -> None:
    assert merge_progress(b"\x00block\0\0\0\0\0\0", first, second) == kept


@pytest.mark.contract("TAKE-04")
def test_an_epoch_never_goes_back_by_a_late_row() -> None:
    one, two = (
        SHARD_EPOCHS.encode(
            {
                "lease_term": 10 - newest,
                "owner": "w",
                "boundaries": [{"epoch": e, "first_offset": e - 1} for e in range(1, newest + 1)],
            }
        )
        for newest in (1, 2)
    )
    assert merge_progress(EPOCHS_KEY, one, two) == two
    assert merge_progress(EPOCHS_KEY, two, one) == two


@pytest.mark.parametrize(
    ("key", "good"),
    [
        (WATERMARK_KEY, WATERMARK_ROW.encode(mark(1, 5))),
        (b"i" * 16, DISPATCH_PROGRESS.encode(progress(1))),
        (b"\x00block" + bytes(6), bytes(8) + b"i" * 16),
    ],
)
def test_damage_stays_for_its_shard_to_find_and_does_not_end_the_recovery_of_all(
    key: bytes, good: bytes
) -> None:
    merge = merge_rows if key == WATERMARK_KEY else merge_progress
    assert merge(key, good, b"\x01damaged") == b"\x01damaged"
    assert merge(key, b"\x01damaged", good) == good
