"""What was fetched ahead and dropped must be gone at once, without the collector."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from streams.prefetched import drop_prefetched

TP = TopicPartition("t", 0)


def fetched_ahead(records: int) -> PartitionRecords:
    """Records of one fetch as aiokafka keeps them."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for offset in range(records):
        builder.append(offset, 1000, b"k", b"v", [])
    raw = MemoryRecords(bytes(builder.build()))
    return PartitionRecords(TP, raw, [], 0, None, None, True, 0)


@pytest.mark.parametrize("read", [0, 1, 3, 4])
def test_dropped_records_are_freed_without_the_collector(read: int) -> None:
    pages = fetched_ahead(3)
    for _ in range(read):
        next(pages, None)
    result = FetchResult(TP, assignment=None, partition_records=pages, backoff=0)
    fetched: dict[Any, Any] = {TP: result}
    alive = weakref.ref(pages)
    gc.disable()
    try:
        del pages, result
        drop_prefetched(fetched, TP)
        assert fetched == {}
        assert alive() is None
    finally:
        gc.enable()


def test_errors_and_nothing_are_dropped_as_well() -> None:
    fetched: dict[Any, Any] = {TP: object()}
    drop_prefetched(fetched, TP)
    drop_prefetched(fetched, TP)
    assert fetched == {}
