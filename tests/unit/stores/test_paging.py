"""The paging rule: a page is what piled up, an idle stage starts at once, one page at a time, in order."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.paging import (
    BUSY_MESSAGES_PER_S,
    FULL_PAGE_MESSAGES,
    Pace,
    PageCounter,
    PagedStage,
    failed_stages,
    page_counters,
)
from tests.support.virtual_time import run

Process = Callable[[list[int]], Awaitable[None]]


def stage(process: Process, name: str = "test", interval_s: float = 0.0) -> PagedStage[int]:
    return PagedStage(name, process, max_records=10, pace=Pace(interval_s, 1 / BUSY_MESSAGES_PER_S))


class Pages:
    """Remembers pages and the times at which they began; each takes `takes_s`."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.pages: list[list[int]] = []
        self.times: list[float] = []
        self.running = 0
        self._takes_s = takes_s

    async def __call__(self, page: list[int]) -> None:
        self.running += 1
        assert self.running == 1
        self.pages.append(page)
        self.times.append(round(asyncio.get_running_loop().time(), 6))
        await asyncio.sleep(self._takes_s)
        self.running -= 1


def test_an_idle_stage_takes_a_page_of_one_at_once() -> None:
    async def main() -> None:
        pages = Pages(takes_s=1)
        own = stage(pages, interval_s=5)
        own.start()
        await asyncio.sleep(100)
        own.put(1)
        await asyncio.sleep(2)
        assert (pages.pages, pages.times) == ([[1]], [100])
        assert own.idle
        await own.stop()

    run(main())


def test_the_next_page_is_what_piled_up_meanwhile() -> None:
    async def main() -> None:
        pages = Pages(takes_s=1)
        own = stage(pages)
        own.start()
        own.put(1)
        await asyncio.sleep(0.5)
        own.put_many(range(2, 15))
        assert (len(own), own.idle) == (13, False)
        await asyncio.sleep(10)
        assert pages.pages == [[1], list(range(2, 12)), [12, 13, 14]]
        assert pages.times == [0, 1, 2]
        await own.stop()

    run(main())


def test_pages_of_a_busy_stage_start_an_interval_apart() -> None:
    async def main() -> None:
        pages = Pages(takes_s=0.001)
        own = stage(pages, interval_s=0.01)
        own.start()
        for number in range(30):
            own.put(number)
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        assert pages.times[:4] == [0, 0.01, 0.02, 0.03]
        assert [n for page in pages.pages for n in page] == list(range(30))
        await own.stop()

    run(main())


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=12))
def test_every_item_is_processed_once_and_in_order(bursts: list[tuple[int, int]]) -> None:
    async def main() -> None:
        pages = Pages(takes_s=0.001)
        own = stage(pages)
        own.start()
        sent = 0
        for size, pause_ms in bursts:
            own.put_many(range(sent, sent + size))
            sent += size
            await asyncio.sleep(pause_ms / 1000)
        await asyncio.sleep(1)
        assert own.idle
        assert [n for page in pages.pages for n in page] == list(range(sent))
        assert all(0 < len(page) <= 10 for page in pages.pages)
        await own.stop()

    run(main())


def test_pages_and_records_are_counted_by_stage() -> None:
    async def main() -> None:
        own: PagedStage[str] = PagedStage("count.me", nothing, max_records=10, records_in=len)
        own.put_many(["ab", "cde"])
        own.start()
        await asyncio.sleep(1)
        await own.stop()

    async def nothing(page: list[str]) -> None:
        del page

    run(main())
    assert page_counters()["count.me"] == {"pages": 1, "records": 5}
    assert PageCounter.named("count.me").records == 5


@pytest.mark.contract("REG-46")
@pytest.mark.parametrize("told", [True, False])
def test_a_stage_that_fails_is_named_and_takes_nothing_more(told: bool) -> None:  # noqa: FBT001
    failures: list[BaseException] = []

    async def fail(page: list[int]) -> None:
        raise ValueError(page)

    async def main() -> None:
        own = PagedStage("bad", fail, max_records=10, on_failure=failures.append if told else None)
        own.start()
        assert failed_stages() is None
        own.put(1)
        await asyncio.sleep(1)
        assert failed_stages() == "bad: ValueError"
        own.put(2)
        await asyncio.sleep(1)
        assert (len(own), len(failures)) == (1, int(told))
        await own.stop()
        assert failed_stages() is None

    run(main())


def test_a_stage_may_be_started_twice_and_stopped_twice() -> None:
    async def main() -> None:
        pages = Pages()
        own = stage(pages)
        await own.stop()
        own.start()
        own.start()
        own.put(1)
        await asyncio.sleep(1)
        await own.stop()
        await own.stop()
        assert pages.pages == [[1]]

    run(main())


@pytest.mark.parametrize("busy", [True, False])
def test_page_of_a_busy_stage_waits_until_nobody_feeds_it(busy: bool) -> None:  # noqa: FBT001
    async def main() -> None:
        pages = Pages()
        own = PagedStage("settle", pages, max_records=100, settle_s=0.001)
        own.start()
        own.put_many(range(8) if busy else range(2))
        await asyncio.sleep(1)
        for number in range(5):  # half a settle time apart
            own.put(number)
            await asyncio.sleep(0.0005)
        await asyncio.sleep(1)
        if busy:
            assert pages.pages[1:] == [list(range(5))]
            assert 1.003 < pages.times[1] < 1.005
        else:
            assert pages.pages[1] == [0]
            assert pages.times[1] == 1
        await own.stop()

    run(main())


def test_a_stage_that_is_fed_without_a_pause_does_not_settle_for_ever() -> None:
    async def main() -> None:
        pages = Pages()
        own = PagedStage("settle", pages, max_records=1000, settle_s=0.001)
        own.start()
        own.put_many(range(8))
        await asyncio.sleep(1)
        for number in range(100):
            own.put(number)
            await asyncio.sleep(0.0005)
        assert 1.009 <= pages.times[1] <= 1.011
        await own.stop()

    run(main())


@pytest.mark.parametrize("records_per_message", [1, 3])
def test_distance_grows_with_the_page_to_its_limit_and_shrinks_when_pages_are_full(
    records_per_message: int,
) -> None:
    pace = Pace(0.1, records_per_message)
    assert pace.after(0) == 0
    assert pace.after(records_per_message) == pytest.approx(1 / BUSY_MESSAGES_PER_S)
    full = FULL_PAGE_MESSAGES * records_per_message
    assert pace.after(full) == 0.1
    assert pace.after(4 * full) == pytest.approx(0.05)
    assert max(map(pace.after, range(20 * full))) == 0.1


@pytest.mark.parametrize("rate_per_s", [500, 1000, 3000, 10_000])
def test_distance_settles_at_any_rate(rate_per_s: int) -> None:
    pace, distance_s, seen = Pace(0.11), 0.0, []
    for _ in range(50):
        distance_s = pace.after(max(1, math.ceil(rate_per_s * distance_s)))
        seen.append(distance_s)
    assert max(seen[-5:]) / min(seen[-5:]) < 1.05
    assert seen[-1] >= 0.04, "pages grow with the rate, only slower than it"


def test_pace_of_zero_never_waits() -> None:
    assert {Pace().after(records) for records in (0, 1, 100, 10_000)} == {0.0}
