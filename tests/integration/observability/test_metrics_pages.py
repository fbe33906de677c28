"""What operators see of a real gateway and a real worker: metrics, health, page counters."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from ops.stack import Stack
from schemas.catalogue import CATALOGUE, LABELS
from tests.support.traffic import Traffic
from tests.support.web_pages import fetch, metrics_of

StartStack = Callable[..., Awaitable[Stack]]

_QUEUES = (
    "qim_stage_queue_depth",
    "qim_shard_queue_depth",
    "qim_agent_queue_depth",
    "qim_gateway_backend_queue_depth",
    "qim_writer_requests_inflight",
    "qim_producer_pending_batches",
)


def _web(stack: Stack) -> tuple[str, str]:
    return stack.addresses["gateway-web-0"], stack.addresses["worker-web-0"]


@pytest.mark.contract("OBS-01", "OBS-02", "OBS-05", "OBS-06", "OBS-07", "OBS-08")
async def test_obs_02_every_process_shows_its_part_of_the_chain(start_stack: StartStack) -> None:
    stack = await start_stack()
    gateway_web, worker_web = _web(stack)
    traffic = Traffic(stack, pairs=3)
    await traffic.connect()
    await traffic.run(rate_per_s=50, seconds=1.0)
    counts = await traffic.judge()
    await traffic.close()
    assert not any(counts.values())

    gateway, worker = await metrics_of(gateway_web), await metrics_of(worker_web)
    for page in (gateway, worker):
        # The parser takes _total off a counter's family.
        assert {f"{n}_total" if t == "counter" else n for n, t in page.types.items()} <= set(
            CATALOGUE
        )
        assert page.labels <= LABELS.keys()
        assert page.value("qim_runtime_lag_us_count") > 10
        assert page.value("qim_process_resident_memory_bytes") > 10_000_000
        assert page.value("qim_redis_call_us_count") > 0
    # OBS-08: each part of the chain is seen apart.
    assert gateway.value("qim_gateway_acks_total") == 50
    assert gateway.value("qim_send_ack_latency_us_count") == 50
    assert gateway.value("qim_gateway_send_round_trip_us_count") > 0
    assert gateway.value("qim_page_records_total", stage="commit.mark") >= 50
    assert worker.value("qim_page_records_total", stage="fanout") == 50
    assert worker.value("qim_fanout_dispatches_per_batch_sum") >= 50
    assert worker.value("qim_fanout_dispatch_ack_wait_us_count") > 0
    assert worker.value("qim_mailbox_dispatch_broker_to_enqueue_us_count") > 0
    assert worker.value("qim_mailbox_dispatch_fifo_wait_us_count") > 0
    assert worker.value("qim_mailbox_materialize_us_count") > 0
    assert worker.value("qim_table_write_us_count", table="watermarks") > 0
    assert worker.value("qim_shards", state="running") == stack.settings.mailbox_shard_count
    # All partitions of all consumed topics, and nothing left in any queue.
    topics = stack.settings.outbox_partitions + stack.settings.mailbox_shard_count
    lags = [key for key in worker.samples if key[0] == "qim_consumer_lag_records"]
    assert len(lags) == topics
    assert worker.value("qim_consumer_lag_records") == 0
    for page, name in ((page, name) for page in (gateway, worker) for name in _QUEUES):
        if any(sample == name for sample, _ in page.samples):
            assert page.value(name) == 0, name

    for web in (gateway_web, worker_web):
        assert await fetch(web, "/healthz") == (200, (await fetch(web, "/healthz"))[1])
        assert (await fetch(web, "/ready"))[0] == 200
        stats = json.loads((await fetch(web, "/stats"))[1])
        assert all({"pages", "records"} == counts.keys() for counts in stats["pages"].values())
