"""Counting cells and the page that shows them."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from schemas.catalogue import CATALOGUE
from schemas.errors import Bug
from schemas.metrics import Histogram, MetricsPage, Reading, counter, histogram


def samples(page: MetricsPage) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(sample name, sorted labels) -> value of everything on a page."""
    text = page.render().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_cell_is_one_for_the_process_and_a_new_one_for_other_labels() -> None:
    first = histogram("qim_table_write_us", "test-cells")
    assert histogram("qim_table_write_us", "test-cells") is first
    assert histogram("qim_table_write_us", "test-others") is not first
    assert counter("qim_push_dropped_total") is counter("qim_push_dropped_total")


@pytest.mark.contract("OBS-01")
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("qim_unheard_of_total", ()),
        ("qim_runtime_lag_us", ()),  # a histogram
        ("qim_push_dropped_total", ("user-7",)),  # a label that the list does not have
        ("qim_shard_restarts_total", ()),  # and one too few
    ],
)
def test_obs_01_what_is_not_listed_cannot_be_counted(name: str, labels: tuple[str, ...]) -> None:
    with pytest.raises(Bug, match=name):
        counter(name, *labels)


def test_histogram_counts_up_to_and_including_its_bounds() -> None:
    own = Histogram((100, 250))
    for value_us in (0, 100, 100.5, 250, 10_000):
        own.observe(value_us)
    assert own.cumulative() == [("100", 2.0), ("250", 4.0), ("+Inf", 5.0)]
    assert (own.count, own.total) == (5, 10_450.5)


@pytest.mark.contract("OBS-02")
def test_obs_02_the_page_is_prometheus_text_of_cells_and_sources() -> None:
    latency = Histogram((1_000, 2_000))
    latency.observe(1_500)

    def source() -> Iterator[Reading]:
        yield Reading("qim_shard_queue_depth", 3, ("5",))
        yield Reading("qim_shard_queue_depth", 0, ("6",))
        yield Reading("qim_shard_restarts_total", 2, ("5",))
        yield Reading("qim_send_ack_latency_us", latency)

    found = samples(MetricsPage("worker", [source]))
    assert found["qim_shard_queue_depth", (("shard", "5"),)] == 3
    assert found["qim_shard_queue_depth", (("shard", "6"),)] == 0
    assert found["qim_shard_restarts_total", (("shard", "5"),)] == 2
    assert found["qim_send_ack_latency_us_bucket", (("le", "1000"),)] == 0
    assert found["qim_send_ack_latency_us_bucket", (("le", "+Inf"),)] == 1
    assert found["qim_send_ack_latency_us_sum", ()] == 1_500
    assert found["qim_process_resident_memory_bytes", ()] > 1_000_000


def test_counters_without_labels_are_shown_before_they_are_counted() -> None:
    gateway, worker = samples(MetricsPage("gateway")), samples(MetricsPage("worker"))
    assert gateway["qim_gateway_backend_dropped_total", ()] == 0
    assert worker["qim_push_dropped_total", ()] == 0


@pytest.mark.contract("OBS-03", "OBS-04", "ACC-M3")
@pytest.mark.parametrize(
    "name", [metric.name for metric in CATALOGUE.values() if metric.always_zero]
)
def test_obs_04_a_promise_of_zero_is_broken_by_one(name: str) -> None:
    cell, page = counter(name), MetricsPage("worker")
    assert page.broken_promises() == []
    cell.add()
    assert page.broken_promises() == [name]


def test_a_source_may_only_read_what_is_listed() -> None:
    page = MetricsPage("worker", [lambda: [Reading("qim_unheard_of", 1)]])
    with pytest.raises(KeyError):
        page.render()
