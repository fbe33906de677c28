"""Fetched records for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streams.pages import Page

__all__ = ["FakeRecord", "page", "records"]


@dataclass(frozen=True, slots=True)
class FakeRecord:
    """One fetched record."""

    offset: int
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    timestamp: int = 1_700_000_000_000


def records(offsets: Iterable[int]) -> list[FakeRecord]:
    """Records at these offsets."""
    return [FakeRecord(offset) for offset in offsets]


def page(first: int, last: int, partition: int = 0) -> Page:
    """A page of consecutive records."""
    return Page("t", partition, records(range(first, last + 1)))
