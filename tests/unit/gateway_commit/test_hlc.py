"""The hybrid logical clock: no id twice, whatever clock, crash or restart does."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.hlc import HybridClock, physical_ms_of
from schemas.constants import HLC_RENEW_LEAD_MS, HLC_WINDOW_MS
from schemas.errors import Bug, ServerFault
from stores.memory_messages import MemoryMessageStore

NOW = 1_764_468_000_000


def clock_with(*windows: tuple[int, int], writer: int = 7) -> HybridClock:
    clock = HybridClock(region=3, writer=writer)
    for window in windows:
        clock.install(*window)
    return clock


@pytest.mark.contract("SEQ-02", "OPEN-01")
def test_layout_of_a_message_id() -> None:
    clock = clock_with((NOW, NOW + 10))
    first, second = clock.mint(NOW), clock.mint(NOW)
    assert first == NOW << 80 | 0 << 64 | 3 << 48 | 7 << 32
    assert second == NOW << 80 | 1 << 64 | 3 << 48 | 7 << 32
    assert physical_ms_of(second) == NOW


@pytest.mark.contract("REG-32", "SEQ-02")
def test_reg_32_two_writers_in_one_millisecond_mint_different_ids() -> None:
    ids = {clock_with((NOW, NOW + 10), writer=writer).mint(NOW) for writer in range(100)}
    assert len(ids) == 100


@pytest.mark.contract("SEQ-02", "SEQ-03")
@settings(max_examples=100)
@given(st.lists(st.integers(-50, 70), max_size=60))
def test_ids_grow_whatever_the_clock_does(steps: list[int]) -> None:
    clock, now = clock_with((NOW, NOW + 5_000)), NOW
    last = -1
    for step in steps:
        now += step
        minted = clock.mint(now)
        assert minted > last
        assert physical_ms_of(minted) >= NOW
        last = minted


@pytest.mark.contract("HLC-03")
def test_a_clock_that_steps_back_keeps_counting() -> None:
    clock = clock_with((NOW, NOW + 100))
    before = clock.mint(NOW + 50)
    after = clock.mint(NOW - 86_400_000)
    assert after == before + (1 << 64)


def test_a_full_counter_moves_to_the_next_millisecond() -> None:
    clock = clock_with((NOW, NOW + 2))
    ids = [clock.mint(NOW) for _ in range(2 * (1 << 16))]
    assert physical_ms_of(ids[-1]) == NOW + 1
    assert len(set(ids)) == len(ids)
    with pytest.raises(ServerFault):
        clock.mint(NOW)  # both milliseconds of the window are used up


@pytest.mark.contract("HLC-02")
def test_without_a_window_nothing_is_minted() -> None:
    with pytest.raises(ServerFault):
        clock_with().mint(NOW)


@pytest.mark.contract("HLC-02")
@pytest.mark.parametrize("late_ms", [0, 1, 86_400_000])
def test_a_used_up_window_refuses_until_the_next_is_installed(late_ms: int) -> None:
    clock = clock_with((NOW, NOW + 10))
    last = clock.mint(NOW + 9)
    with pytest.raises(ServerFault):
        clock.mint(NOW + 10 + late_ms)
    assert clock.exhausted(NOW + 10)
    clock.install(NOW + 10 + late_ms, NOW + 20 + late_ms)
    assert clock.mint(NOW + 10 + late_ms) > last


@pytest.mark.contract("HLC-02")
def test_a_new_window_is_wanted_20_s_before_the_end() -> None:
    clock = clock_with((NOW, NOW + HLC_WINDOW_MS))
    wanted_from = NOW + HLC_WINDOW_MS - HLC_RENEW_LEAD_MS
    assert HLC_RENEW_LEAD_MS == 20_000
    assert not clock.needs_window(wanted_from - 1)
    assert clock.needs_window(wanted_from)
    assert not clock.exhausted(NOW + HLC_WINDOW_MS - 1)
    assert HybridClock(1, 1).needs_window(NOW)


@pytest.mark.contract("HLC-02")
def test_the_lead_is_counted_from_the_ids_when_the_clock_lags() -> None:
    clock = clock_with((NOW, NOW + 60_000))
    clock.mint(NOW + 50_000)
    assert clock.needs_window(NOW)


@pytest.mark.contract("HLC-01", "HLC-02")
@pytest.mark.parametrize(
    "window", [(NOW, NOW + 5), (NOW + 9, NOW + 20), (NOW + 20, NOW + 20), (5, 9)]
)
def test_a_window_that_is_not_above_the_last_is_a_bug(window: tuple[int, int]) -> None:
    with pytest.raises(Bug):
        clock_with((NOW, NOW + 10), window)


def test_a_window_below_minted_ids_is_a_bug_even_when_the_old_one_is_gone() -> None:
    clock = clock_with((NOW, NOW + 10))
    clock.mint(NOW + 9)
    with pytest.raises(ServerFault):
        clock.mint(NOW + 10)
    with pytest.raises(Bug):
        clock.install(NOW + 9, NOW + 30)


@pytest.mark.contract("HLC-03")
def test_a_writer_that_lost_its_id_mints_nothing() -> None:
    clock = clock_with((NOW, NOW + 10))
    clock.revoke()
    assert clock.exhausted(NOW)
    with pytest.raises(ServerFault):
        clock.mint(NOW)


@pytest.mark.contract("HLC-01", "HLC-03")
@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(-200_000, 200_000), st.integers(0, 5)), min_size=1, max_size=12)
)
def test_restarts_with_one_writer_id_never_reissue(lives: list[tuple[int, int]]) -> None:
    """Each life claims a window and mints under a clock that may have stepped either way."""
    store = MemoryMessageStore()
    ids: list[int] = []
    end = -1
    for shift_ms, count in lives:
        start, stop = asyncio.run(store.claim_hlc_window(3, 7, NOW + shift_ms))
        assert start > end - 1 or end == -1
        assert stop - start == HLC_WINDOW_MS
        assert start >= end
        end = stop
        clock = clock_with((start, stop))
        ids.extend(clock.mint(NOW + shift_ms) for _ in range(count))
    assert len(set(ids)) == len(ids)
    assert ids == sorted(ids)
