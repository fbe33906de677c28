from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.latency import percentile, summarize_s


def test_percentiles_of_one_to_hundred_are_their_own_rank() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert [percentile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]


def test_one_slow_message_of_a_hundred_is_the_maximum_and_not_the_p99() -> None:
    summary = summarize_s([0.001] * 99 + [5.0])
    assert summary == {"p50": 1.0, "p95": 1.0, "p99": 1.0, "max": 5000.0}


def test_two_slow_messages_of_a_hundred_are_the_p99() -> None:
    assert summarize_s([5.0, *[0.001] * 98, 5.0])["p99"] == 5000.0


def test_no_sample_is_none_and_never_a_perfect_zero() -> None:
    assert summarize_s([]) == {"p50": None, "p95": None, "p99": None, "max": None}


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        percentile([1.0], share)


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=200),
    st.floats(0.001, 1.0),
)
def test_percentile_is_a_sample_with_enough_samples_at_or_below_it(
    samples: list[float], share: float
) -> None:
    value = percentile(sorted(samples), share)
    at_or_below = sum(sample <= value for sample in samples)
    below = sum(sample < value for sample in samples)
    assert value in samples
    assert at_or_below >= share * len(samples)
    assert below < share * len(samples)
