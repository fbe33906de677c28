"""Records that aiokafka fetched ahead and nobody wants any more.

Half-read ones hold themselves: object -> generator -> frame -> object. Only a full collection would free them, which a server
process hardly ever makes (schemas/collector.py), and each holds its whole fetch response: a megabyte of memory that the
collector does not see. So the circle is cut by hand.
"""

# ruff: noqa: SLF001  # a seam to private parts of aiokafka

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

__all__ = ["drop_prefetched"]


def drop_prefetched(fetched: MutableMapping[Any, Any], tp: object) -> None:
    """Drop what was fetched ahead of a partition, from aiokafka's dict of fetch results and errors."""
    dropped = fetched.pop(tp, None)
    pages = getattr(
        dropped, "_partition_records", None
    )  # an error has none, nor what was read to its end
    if pages is not None and pages._records_iterator is not None:
        pages._records_iterator.close()
        pages._records_iterator = None
