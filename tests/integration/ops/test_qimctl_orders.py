"""Whom an order reaches: workers on ports of their own, played by small web servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from ops.qimctl.shards import restart_shard, shard_lines
from ops.qimctl.system import System, open_system
from ops.servers.ports import LOOPBACK
from schemas.config import Settings
from schemas.errors import ServerFault


@dataclass(slots=True)
class FakeWorker:
    """Shards with their terms, and the orders that came."""

    terms: dict[int, int]
    state: str = "running"
    orders: list[tuple[int, str]] = field(default_factory=list)
    address: str = ""
    slow_answers: int = 0  # so many looks show the shard still recovering after an order

    async def _shards(self, _request: web.Request) -> web.Response:
        state, self.slow_answers = ("recovering" if self.slow_answers else self.state), max(
            0, self.slow_answers - 1
        )
        report = {
            "state": state,
            "failure": "bad",
            "table_w": [1, 2],
            "queued_pages": 3,
            "restarts": 4,
        }
        shards = {str(s): {**report, "lease_term": term} for s, term in self.terms.items()}
        return web.json_response({"shards": shards})

    async def _restart(self, request: web.Request) -> web.Response:
        shard = int(request.match_info["shard"])
        self.orders.append((shard, request.headers.get("Authorization", "")))
        self.terms[shard] += 1
        return web.json_response({"shard": shard}, status=202)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen on a port that the system chooses."""
        app = web.Application()
        app.router.add_get("/control/shards", self._shards)
        app.router.add_post("/control/shards/{shard}/restart", self._restart)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, LOOPBACK, 0).start()
            self.address = f"{LOOPBACK}:{runner.addresses[0][1]}"
            yield
        finally:
            await runner.cleanup()


@pytest.fixture
async def system(redis_settings: Settings) -> AsyncIterator[System]:
    token = redis_settings.model_copy(update={"web_port": 1})
    async with open_system(token) as made:
        yield made


@asynccontextmanager
async def workers(*fakes: FakeWorker) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        for fake in fakes:
            await stack.enter_async_context(fake.serving())
        yield [fake.address for fake in fakes]


@pytest.mark.contract("REG-39")
async def test_reg_39_an_order_reaches_the_present_owner_on_whatever_port_it_listens(
    system: System,
) -> None:
    former, owner, other = (
        FakeWorker({3: 7}),
        FakeWorker({3: 9}, slow_answers=5),
        FakeWorker({4: 1}),
    )
    async with workers(former, owner, other) as addresses:
        said = await restart_shard(system, 3, addresses, timeout_s=30)
    assert said == "shard 3 runs under term 10"
    assert [len(fake.orders) for fake in (former, owner, other)] == [0, 1, 0]


async def test_an_owner_that_registered_its_address_with_the_lease_is_found(system: System) -> None:
    owner = FakeWorker({3: 9})
    async with workers(owner) as (address,):
        link = system.mailbox[3 % len(system.mailbox)]
        key = f"{system.settings.app_id}:shardlease:3"
        await link.command("HSET", key, "owner", "w", "term", 9, "web", address)
        lines = await shard_lines(system, [])
        assert (lines[3].owner, lines[3].term, lines[3].table_w) == ("w", 9, [1, 2])
        assert lines[2].owner is None
        await restart_shard(system, 3, [], timeout_s=30)
    assert len(owner.orders) == 1


async def test_an_order_that_fails_says_why(system: System) -> None:
    failed = FakeWorker({3: 9}, state="failed")
    async with workers(failed) as addresses:
        with pytest.raises(ServerFault, match="shard 3 failed again: bad"):
            await restart_shard(system, 3, addresses, timeout_s=30)
        with pytest.raises(ServerFault, match="no worker that answers holds shard 5"):
            await restart_shard(system, 5, addresses, timeout_s=30)
        failed.state = "recovering"
        with pytest.raises(ServerFault, match=r"does not run after 0\.3 s"):
            await restart_shard(system, 3, addresses, timeout_s=0.3)
