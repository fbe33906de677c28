import pytest

from schemas.metrics import histogram
from streams.segments import ShardSegments
from tests.support.records import page

_NAMES = (
    "qim_mailbox_dispatch_broker_to_enqueue_us",
    "qim_mailbox_dispatch_fifo_wait_us",
    "qim_mailbox_materialize_us",
)


@pytest.mark.contract("OBS-06", "OBS-09")
def test_obs_06_a_page_is_measured_once_in_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_us = iter([1_000.0, 1_200.0, 5_000.0, 9_500.0])
    monkeypatch.setattr("streams.segments.now_us", lambda: next(clock_us))
    cells = [histogram(name, "61") for name in _NAMES]
    before = [(cell.count, cell.total) for cell in cells]
    segments = ShardSegments(61)
    first, second = page(5, 9), page(10, 12)
    first.read_us, second.read_us = 400.0, 900.0

    segments.queued(first)
    segments.queued(second)
    begin_us = segments.taken([first, second])
    segments.durable(begin_us)

    grown = [
        (cell.count - count, cell.total - total)
        for cell, (count, total) in zip(cells, before, strict=True)
    ]
    assert grown == [
        (2, 600.0 + 300.0),  # from having the page, not from when it was written (OBS-09)
        (1, 4_000.0),  # the oldest of what is taken together
        (1, 4_500.0),
    ]


def test_pages_that_did_not_come_from_the_broker_have_no_way_from_it() -> None:
    cell = histogram(_NAMES[0], "62")
    segments = ShardSegments(62)
    segments.queued(page(0, 1))
    segments.taken([])
    assert cell.count == 0
