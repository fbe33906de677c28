"""The list of metrics keeps to the rules of the contract, and what breaks them is refused."""

import re
from importlib.resources import files

import pytest

from schemas.catalogue import CATALOGUE, LABELS, Kind, read_catalogue
from schemas.errors import Bug

# OBS-01: what may be a label at all. Nothing that grows with users, conversations or messages.
ALLOWED_LABELS = {
    "lane",
    "partition",
    "reason",
    "server",
    "shard",
    "stage",
    "state",
    "table",
    "topic",
}

# OBS-05, with the prefix of OBS-01 where the contract's oldest names lack it. Names of parts that do not exist yet
# (session snapshots, projection) come with those parts.
NAMED_BY_THE_CONTRACT = {
    "qim_send_ack_latency_us",
    "qim_writer_request_permit_wait_us",
    "qim_writer_requests_inflight",
    "qim_gateway_send_round_trip_us",
    "qim_gateway_backend_queue_depth",
    "qim_gateway_backend_dropped_total",
    "qim_runtime_lag_us",
    "qim_fanout_dispatch_ack_wait_us",
    "qim_fanout_offset_commit_us",
    "qim_fanout_dispatches_per_batch",
    "qim_mailbox_dispatch_partition_paused_total",
    "qim_mailbox_dispatch_broker_to_enqueue_us",
    "qim_stale_epoch_dispatch_dropped_total",
    "qim_lane_watermark_stall_ms",
}


@pytest.mark.contract("OBS-01")
def test_obs_01_names_have_the_prefix_and_labels_are_few_and_bounded() -> None:
    assert LABELS.keys() == ALLOWED_LABELS
    for metric in CATALOGUE.values():
        assert re.fullmatch(r"qim_[a-z0-9_]+", metric.name)
        assert set(metric.labels) <= ALLOWED_LABELS
        assert len(metric.labels) <= 2


@pytest.mark.contract("OBS-05")
def test_obs_05_the_names_of_the_contract_are_listed() -> None:
    assert CATALOGUE.keys() >= NAMED_BY_THE_CONTRACT


@pytest.mark.contract("OBS-04")
def test_obs_04_always_zero_metrics_are_counters_without_labels() -> None:
    always_zero = [metric for metric in CATALOGUE.values() if metric.always_zero]
    assert "qim_gateway_backend_dropped_total" in {metric.name for metric in always_zero}
    assert "qim_watermark_below_floor_total" in {metric.name for metric in always_zero}
    for metric in always_zero:  # without labels they are shown as 0 from the start
        assert (metric.kind, metric.labels) == (Kind.COUNTER, ())


def test_units_are_the_endings_of_names_and_bounds_ascend() -> None:
    assert CATALOGUE["qim_runtime_lag_us"].unit == "µs"
    assert CATALOGUE["qim_lane_watermark_stall_ms"].unit == "ms"
    assert CATALOGUE["qim_process_cpu_seconds_total"].unit == "s"
    assert CATALOGUE["qim_consumer_lag_records"].unit == "records"
    assert CATALOGUE["qim_gateway_acks_total"].unit == "count"
    for metric in CATALOGUE.values():
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.bounds)
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert metric.meaning


@pytest.mark.contract("OBS-07")
def test_obs_07_every_bounded_queue_has_a_depth_and_every_drop_a_counter() -> None:
    names = CATALOGUE.keys()
    assert {name for name in names if "depth" in name or "waiting" in name} == {
        "qim_stage_queue_depth",
        "qim_redis_calls_waiting",
        "qim_gateway_backend_queue_depth",
        "qim_gateway_pull_queue_depth",
        "qim_gateway_login_queue_depth",
        "qim_agent_queue_depth",
        "qim_shard_queue_depth",
    }
    assert {name for name in names if "dropped" in name} == {
        "qim_gateway_backend_dropped_total",
        "qim_gateway_held_pushes_dropped_total",
        "qim_gateway_pushes_dropped_total",
        "qim_push_dropped_total",
        "qim_stale_epoch_dispatch_dropped_total",
    }


GOOD = '[labels]\nshard = "x"\n[metrics.qim_a_total]\nkind = "counter"\nprocess = "both"\nmeaning = "m"\n'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("qim_a_total", "a_total"),  # prefix
        ("qim_a_total", "qim_a"),  # a counter by its ending
        ('"counter"', '"gauge"'),  # and nothing else by that ending
        ('"counter"', '"timer"'),
        ('"both"', '"broker"'),
        ("meaning", "means"),
        ('meaning = "m"', 'meaning = "m"\nlabels = ["user_id"]'),
        ("[labels]", "[names]"),
        ('"m"', '"m'),
    ],
)
def test_a_catalogue_that_breaks_a_rule_ends_the_start(old: str, new: str) -> None:
    assert read_catalogue(GOOD)[1].keys() == {"qim_a_total"}
    with pytest.raises(Bug, match=r"metrics\.toml"):
        read_catalogue(GOOD.replace(old, new))


def test_the_catalogue_ships_with_the_package() -> None:
    text = files("schemas").joinpath("metrics.toml").read_text("utf-8")
    assert read_catalogue(text)[1] == CATALOGUE
