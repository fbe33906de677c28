import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import GatewayMetrics
from schemas.catalogue import CATALOGUE
from schemas.metrics import MetricsPage


@pytest.mark.contract("OBS-01", "OBS-02", "OBS-05")
def test_every_counter_of_the_gateway_is_on_its_page_under_its_listed_name() -> None:
    metrics = GatewayMetrics()
    names = {reading.name for reading in metrics.readings()}
    assert names <= CATALOGUE.keys()
    assert {
        "qim_send_ack_latency_us",
        "qim_writer_request_permit_wait_us",
    } <= names
    metrics.acks = 7
    metrics.send_ack_latency.observe(1200)
    text = MetricsPage("gateway", [metrics.readings]).render().decode()
    assert "qim_gateway_acks_total 7.0" in text
    assert 'qim_send_ack_latency_us_bucket{le="2500"} 1.0' in text
    assert len({family.name for family in text_string_to_metric_families(text)}) > len(names)
