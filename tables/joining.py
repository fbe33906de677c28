"""How rows of one key become one row where a changelog may hold rows of two writers. Pure.

A worker that lost its shard may still land rows behind those of its successor. The best row of a key is kept, not the last
one; and because compaction keeps the last one, the best row is written again where it is not the last (`worse`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

__all__ = ["Joined", "LogRow", "RowMerge", "join_rows"]

# (key, row kept so far or None, row read now) -> row to keep
RowMerge = Callable[[bytes, bytes | None, bytes], bytes]


class LogRow(Protocol):
    """What is read of a changelog record."""

    @property
    def offset(self) -> int:
        """Position in the changelog."""

    @property
    def key(self) -> bytes | None:
        """Key of the row."""

    @property
    def value(self) -> bytes | None:
        """The row; None is a tombstone."""


class Joined(NamedTuple):
    """`rows` to keep by key; `worse` are those keys whose last record in the log is another row."""

    rows: dict[bytes, bytes]
    worse: frozenset[bytes]


def join_rows(
    held: Callable[[bytes], bytes | None], records: Iterable[LogRow], merge: RowMerge
) -> Joined:
    """Join records in log order with the rows held already. A tombstone deletes nothing: a rebuild writes new rows."""
    rows: dict[bytes, bytes] = {}
    last: dict[bytes, bytes] = {}
    for record in records:
        if record.key is not None and record.value is not None:
            kept = rows.get(record.key) or held(record.key)
            rows[record.key] = merge(record.key, kept, record.value)
            last[record.key] = record.value
    return Joined(rows, frozenset(key for key, row in rows.items() if last[key] != row))
