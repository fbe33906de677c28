import pytest

from gateway.metrics import ALWAYS_ZERO, GatewayMetrics, Histogram


def test_histogram_counts_up_to_and_including_its_bounds() -> None:
    histogram = Histogram()
    for value_us in (0, 500, 501, 150_000, 10_000_000):
        histogram.observe(value_us)
    lines = histogram.render("qim_x_us")
    assert lines[0] == "# TYPE qim_x_us histogram"
    assert 'qim_x_us_bucket{le="500"} 2' in lines
    assert 'qim_x_us_bucket{le="1000"} 3' in lines
    assert 'qim_x_us_bucket{le="150000"} 4' in lines
    assert 'qim_x_us_bucket{le="+Inf"} 5' in lines
    assert lines[-2:] == ["qim_x_us_sum 10151001", "qim_x_us_count 5"]


@pytest.mark.contract("OBS-01", "OBS-02")
def test_page_names_every_counter_and_gauge_once() -> None:
    metrics = GatewayMetrics()
    metrics.acks = 7
    metrics.gauges["qim_gateway_connections"] = lambda: 3
    page = metrics.render().splitlines()
    assert "qim_gateway_acks_total 7" in page
    assert "qim_gateway_connections 3" in page
    names = [line.split()[2] for line in page if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert all(name.startswith("qim_") for name in names)


@pytest.mark.contract("OBS-03", "OBS-04")
def test_always_zero_metrics_break_the_promise_when_they_move() -> None:
    metrics = GatewayMetrics()
    assert metrics.broken_promises() == []
    metrics.backend_dropped += 1
    assert metrics.broken_promises() == ["qim_gateway_backend_dropped_total"]
    assert set(ALWAYS_ZERO) <= set(metrics.counters())
