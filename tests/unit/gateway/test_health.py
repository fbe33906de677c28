"""The health pages over loopback HTTP with checks that the test decides."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from gateway.health import HealthPages
from gateway.metrics import GatewayMetrics
from schemas.errors import StoreFault
from schemas.metrics import MetricsPage, counter
from stores.paging import PageCounter, stage_readings


class Parts:
    """What the pages ask."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.death: str | None = None
        self.asked = 0
        self.port = 0
        self.metrics = GatewayMetrics()
        self.pages = HealthPages(
            metrics=MetricsPage("gateway", [self.metrics.readings, stage_readings]),
            checks={"store": self.check},
            alive=lambda: self.death,
        )

    async def check(self) -> None:
        self.asked += 1
        if self.failure is not None:
            raise self.failure


@pytest.fixture
async def parts() -> AsyncIterator[Parts]:
    made = Parts()
    made.port = await made.pages.start("127.0.0.1", 0)
    yield made
    await made.pages.stop()


async def fetch(parts: Parts, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{parts.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


@pytest.mark.contract("COM-19", "REG-46")
async def test_reg_46_ready_asks_its_parts_each_time(parts: Parts) -> None:
    status, _ = await fetch(parts, "/ready")
    assert (status, parts.asked) == (503, 0)  # not listening for clients yet
    parts.pages.serving = True
    assert (await fetch(parts, "/ready"))[0] == 200
    assert (await fetch(parts, "/ready"))[0] == 200
    assert parts.asked == 2


async def test_a_part_that_fails_is_named_with_its_reason(parts: Parts) -> None:
    parts.pages.serving = True
    parts.failure = StoreFault("redis is loading")
    assert await fetch(parts, "/ready") == (
        503,
        '{"ready": false, "reasons": {"store": "redis is loading"}}',
    )
    parts.failure = ValueError("secret text of a library")
    status, text = await fetch(parts, "/ready")
    assert (status, "ValueError" in text, "secret" in text) == (503, True, False)
    parts.failure = None
    assert (await fetch(parts, "/ready"))[0] == 200


async def test_healthz_is_about_this_process_only(parts: Parts) -> None:
    parts.failure = StoreFault("redis is away")
    assert (await fetch(parts, "/healthz"))[0] == 200
    parts.death = "the log is not followed"
    assert await fetch(parts, "/healthz") == (
        503,
        '{"ok": false, "reason": "the log is not followed"}',
    )


@pytest.mark.contract("OBS-02", "OBS-03")
async def test_obs_02_an_always_zero_metric_that_moved_turns_healthz_to_503(parts: Parts) -> None:
    dropped = counter("qim_gateway_backend_dropped_total")
    dropped.add()
    status, text = await fetch(parts, "/healthz")
    assert (status, "qim_gateway_backend_dropped_total" in text) == (503, True)
    dropped.value = 0
    assert (await fetch(parts, "/healthz"))[0] == 200


@pytest.mark.contract("OBS-02")
async def test_page_sizes_of_every_stage_are_shown(parts: Parts) -> None:
    PageCounter.named("test.stage").add(3)
    assert '{"pages": {' in (await fetch(parts, "/stats"))[1]
    assert '"test.stage": {"pages": 1, "records": 3}' in (await fetch(parts, "/stats"))[1]
    assert 'qim_page_records_total{stage="test.stage"} 3.0' in (await fetch(parts, "/metrics"))[1]
