"""What may be committed: never more than an unbroken run of acknowledged pages."""

import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from streams.acks import AckLedger
from streams.pages import Page
from tests.support.records import page, records

A = TP("t", 0)


def delivered(ledger: AckLedger, *pages: Page) -> list[Page]:
    for one in pages:
        assert ledger.stamp(A, one)
    return list(pages)


def test_acknowledged_page_moves_the_position_to_its_end() -> None:
    ledger = AckLedger()
    ledger.start(A, 7)
    (first,) = delivered(ledger, page(7, 9))

    assert ledger.position(A) == 7
    assert ledger.ack(A, first)
    assert ledger.position(A) == 10


def test_second_acknowledgement_of_a_page_is_ignored() -> None:
    ledger = AckLedger()
    ledger.start(A, 0)
    first, second = delivered(ledger, page(0, 4), page(5, 9))
    ledger.ack(A, first)
    ledger.ack(A, second)

    assert not ledger.ack(A, first)
    assert ledger.position(A) == 10


@pytest.mark.contract("ADAPT-06")
def test_page_that_was_never_acknowledged_is_not_committed_over() -> None:
    ledger = AckLedger()
    ledger.start(A, 0)
    _lost, second, third = delivered(ledger, page(0, 4), page(5, 9), page(10, 14))

    assert not ledger.ack(A, second)
    assert not ledger.ack(A, third)
    assert ledger.position(A) == 0


def test_holes_of_the_log_do_not_stop_the_position() -> None:
    ledger = AckLedger()
    ledger.start(A, 0)
    first = Page("t", 0, records([3, 4]))
    second = Page("t", 0, records([9]))
    delivered(ledger, first, second)

    assert ledger.ack(A, first)
    assert ledger.ack(A, second)
    assert ledger.position(A) == 10


def test_page_of_an_older_run_is_void() -> None:
    ledger = AckLedger()
    ledger.start(A, 0)
    _first, old = delivered(ledger, page(0, 4), page(5, 9))
    ledger.start(A, 5)
    (new,) = delivered(ledger, page(5, 9))

    assert not ledger.is_current(A, old)
    assert ledger.is_current(A, new)
    assert not ledger.ack(A, old)
    assert ledger.position(A) == 5


def test_partition_without_a_run_takes_no_pages() -> None:
    ledger = AckLedger()
    one = page(0, 1)

    assert not ledger.stamp(A, one)
    assert not ledger.ack(A, one)
    assert ledger.position(A) is None

    ledger.start(A, 0)
    ledger.forget(A)
    assert not ledger.stamp(A, one)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_position_is_the_end_of_the_acknowledged_run_in_any_order(
    sizes: list[int], order: object
) -> None:
    ledger = AckLedger()
    ledger.start(A, 0)
    pages, end = [], 0
    for size in sizes:
        pages.append(page(end, end + size - 1))
        end += size
    delivered(ledger, *pages)
    done: set[int] = set()
    shuffled = pages.copy()
    order.shuffle(shuffled)  # type: ignore[attr-defined]

    for one in shuffled:
        ledger.ack(A, one)
        done.add(one.first)
        expected = next((p.first for p in pages if p.first not in done), end)
        assert ledger.position(A) == expected
