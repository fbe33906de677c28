import asyncio
from collections.abc import AsyncIterator

import pytest

from schemas.errors import StartRefused, StoreFault
from stores.leases import LeaseGrant, RedisShardLeases, ShardLeases, claim_layout
from stores.redis_link import RedisLink
from tests.suites.test_leases import TTL_MS, LeaseHarness, LeaseSuite
from tests.support.servers import RedisUrls


class RedisLeaseHarness(LeaseHarness):
    def __init__(self, links: list[RedisLink], app_id: str) -> None:
        self.links = links
        self.app_id = app_id
        self.leases: ShardLeases = RedisShardLeases(links, app_id)

    async def run(self, shard: int, command: str, family: str, *args: str | int) -> object:
        link = self.links[shard % len(self.links)]
        return await link.command(command, f"{self.app_id}:{family}:{shard}", *args)

    async def run_out(self, shard: int) -> None:
        assert await self.run(shard, "PEXPIREAT", "shardlease", 1) == 1


@pytest.fixture
async def system(redis_urls: RedisUrls, app_id: str) -> AsyncIterator[RedisLeaseHarness]:
    links = [RedisLink(url) for url in redis_urls.mailbox]
    yield RedisLeaseHarness(links, app_id)
    for link in links:
        await link.close()


class TestRedisLeases(LeaseSuite):
    """Leases on two Redis instances pass the shared suite."""


async def test_a_lease_ends_with_its_ttl_and_its_counters_never(system: RedisLeaseHarness) -> None:
    await system.leases.acquire(3, "a", TTL_MS)
    remaining = await system.run(3, "PTTL", "shardlease")
    assert isinstance(remaining, int)
    assert 0 < remaining <= TTL_MS
    assert await system.run(3, "PTTL", "shardterm") == -1
    assert await system.run(3, "PTTL", "shardepochs") == -1


@pytest.mark.contract("TAKE-03", "REDIS-03")
async def test_a_term_lost_with_the_end_of_an_aof_is_not_given_again(
    system: RedisLeaseHarness,
) -> None:
    lost = await system.leases.acquire(3, "a", TTL_MS)
    for family in ("shardlease", "shardterm"):
        await system.run(3, "DEL", family)
    # A Redis that comes back takes longer than the millisecond of a term.
    await asyncio.sleep(0.002)
    again = await system.leases.acquire(3, "b", TTL_MS)
    assert isinstance(lost, LeaseGrant)
    assert isinstance(again, LeaseGrant)
    assert again.term > lost.term


@pytest.mark.parametrize("family", ["shardlease", "shardterm", "shardepochs"])
async def test_damaged_lease_keys_grant_nothing(system: RedisLeaseHarness, family: str) -> None:
    await system.run(3, "ZADD", family, 1, "x")
    with pytest.raises(StoreFault):
        await system.leases.acquire(3, "a", TTL_MS)


async def test_boundaries_are_read_in_order_and_damage_is_refused(
    system: RedisLeaseHarness,
) -> None:
    await system.run(3, "HSET", "shardepochs", "10", 70, "2", 40, "1", 0)
    assert await system.leases.boundaries(3) == [(1, 0), (2, 40), (10, 70)]
    await system.run(3, "HSET", "shardepochs", "11", 69)
    with pytest.raises(StoreFault):
        await system.leases.boundaries(3)


@pytest.mark.contract("REDIS-09", "LOG-11")
async def test_another_layout_than_the_recorded_one_refuses_the_start(
    system: RedisLeaseHarness,
) -> None:
    await claim_layout(system.links, system.app_id, "mailbox", 8)
    await claim_layout(system.links, system.app_id, "mailbox", 8)
    await claim_layout(system.links[:1], system.app_id, "commit", 256)
    for links, parts in ((system.links[::-1], 8), (system.links[:1], 8), (system.links, 16)):
        with pytest.raises(StartRefused, match="was set up as"):
            await claim_layout(links, system.app_id, "mailbox", parts)
