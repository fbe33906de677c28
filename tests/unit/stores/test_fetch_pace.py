"""The distance between fetches of a busy consumer, on aiokafka's own fetcher as far as the private fields go."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace

import pytest
from aiokafka.consumer.fetcher import Fetcher

from stores.fetch_pace import FetchPace
from stores.paging import Pace
from tests.support.virtual_time import run

LONG_POLL_MS = 500
INTERVAL_S = 0.03


def fetcher() -> SimpleNamespace:
    return SimpleNamespace(_fetch_min_bytes=1, _fetch_max_wait_ms=LONG_POLL_MS)


def test_aiokafka_reads_both_fields_anew_for_each_request() -> None:
    source = inspect.getsource(Fetcher._get_actions_per_node)
    order = [source.index(part) for part in ("FetchRequest(", "_fetch_max_wait_ms", "_fetch_min_b")]
    assert order == sorted(order)
    given = inspect.signature(Fetcher.__init__).parameters
    assert {"fetch_min_bytes", "fetch_max_wait_ms"} <= given.keys()


def test_fetch_after_a_large_page_waits_at_the_broker_and_the_one_after_it_does_not() -> None:
    async def main() -> None:
        private = fetcher()
        pace = FetchPace(private, Pace(INTERVAL_S), LONG_POLL_MS)

        pace.fetched(100)
        assert private._fetch_max_wait_ms == INTERVAL_S * 1000
        assert private._fetch_min_bytes > 1 << 23

        await asyncio.sleep(INTERVAL_S)  # before the paced fetch is back the next one is chosen
        assert (private._fetch_min_bytes, private._fetch_max_wait_ms) == (1, LONG_POLL_MS)

    run(main())


@pytest.mark.parametrize("records", [0, 1])
def test_silence_and_a_lone_record_are_not_paced(records: int) -> None:
    async def main() -> None:
        private = fetcher()
        FetchPace(private, Pace(INTERVAL_S), LONG_POLL_MS).fetched(records)
        assert (private._fetch_min_bytes, private._fetch_max_wait_ms) == (1, LONG_POLL_MS)

    run(main())
