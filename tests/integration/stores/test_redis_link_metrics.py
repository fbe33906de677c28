"""What a link tells about its instance: latency, waiting calls, failures."""

import asyncio

import pytest

from ops.servers.ports import LOOPBACK, free_ports
from schemas.errors import StoreFault, StoreUnknownOutcome
from schemas.metrics import counter, histogram
from stores.redis_link import RedisLink, link_readings
from tests.support.servers import RedisUrls


def waiting(link: RedisLink) -> float:
    found = {r.labels: r.value for r in link_readings() if r.name == "qim_redis_calls_waiting"}
    return float(str(found[(link.name,)]))


@pytest.mark.contract("OBS-07", "COM-23")
async def test_obs_07_calls_beyond_the_connections_wait_visibly(redis_urls: RedisUrls) -> None:
    link = RedisLink(redis_urls.mailbox[0], connections=1)
    latency = histogram("qim_redis_call_us", link.name)
    before = latency.count
    try:
        calls = [asyncio.create_task(link.command("PING")) for _ in range(4)]
        await asyncio.sleep(0)
        assert waiting(link) == 3
        assert await asyncio.gather(*calls) == [b"PONG"] * 4
        assert waiting(link) == 0
        assert latency.count - before == 4
    finally:
        await link.close()


async def test_refused_and_unanswered_calls_are_counted_by_instance(redis_urls: RedisUrls) -> None:
    link = RedisLink(redis_urls.mailbox[0])
    failures = counter("qim_redis_failures_total", link.name)
    before = failures.value
    try:
        with pytest.raises((StoreFault, StoreUnknownOutcome)):
            await link.command("NO-SUCH-COMMAND")
        assert failures.value - before == 1
    finally:
        await link.close()
    (port,) = free_ports(1)
    away = RedisLink(f"redis://name:pass-word@{LOOPBACK}:{port}/0")
    with pytest.raises(StoreUnknownOutcome):
        await away.command("PING")
    assert counter("qim_redis_failures_total", away.name).value == 1


@pytest.mark.contract("OBS-01", "OBS-10")
async def test_obs_01_the_label_of_an_instance_has_no_credentials(redis_urls: RedisUrls) -> None:
    link = RedisLink("redis://name:pass-word@host:1234/0?lib_name=x")
    (labels,) = {r.labels for r in link_readings() if "1234" in r.labels[0]}
    assert labels == ("redis://host:1234/0",)
    assert link.name == labels[0]
