"""Fetches of a busy consumer keep a distance, by waiting at the broker (docs/decisions/0004-paging.md).

A fetch that is asked to wait for more bytes than there will be comes back after its long poll with everything that
arrived meanwhile, for all partitions: one request and one wake-up a page. Waiting on our side instead would not do: the
next fetch, which aiokafka sends at once, would come back with the first record and block the other partitions.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from stores.paging import Pace

__all__ = ["FetchPace"]

_LEAST_S: Final = 0.005  # shorter distances cost latency and save nothing
_MORE_THAN_COMES_BYTES: Final = 1 << 24


class FetchPace:
    """Sets how the next fetch of one aiokafka consumer waits; touches its private fetcher (see tests/contract_faust)."""

    __slots__ = ("_fetcher", "_pace", "long_poll_ms")

    def __init__(self, fetcher: Any, pace: Pace, long_poll_ms: int) -> None:
        self._fetcher = fetcher
        self._pace = pace
        self.long_poll_ms = long_poll_ms

    def fetched(self, records: int) -> None:
        """Call with each fetch that is taken, before anything suspends: aiokafka has not sent the next one yet."""
        distance_s = self._pace.after(records)
        if distance_s < _LEAST_S:
            return
        self._fetcher._fetch_min_bytes = _MORE_THAN_COMES_BYTES  # noqa: SLF001
        self._fetcher._fetch_max_wait_ms = math.ceil(distance_s * 1000)  # noqa: SLF001
        # The request leaves in the next passes of the loop; the one after it is an ordinary long poll again.
        asyncio.get_running_loop().call_later(distance_s / 2, self.end)

    def end(self) -> None:
        """Answer the next fetch with the first record again."""
        self._fetcher._fetch_min_bytes = 1  # noqa: SLF001
        self._fetcher._fetch_max_wait_ms = self.long_poll_ms  # noqa: SLF001
