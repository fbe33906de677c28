"""What 64 independent lanes cost in Redis."""

from collections.abc import AsyncIterator

import pytest

from schemas.constants import LANE_COUNT
from schemas.identifiers import lane_of
from schemas.watermarks import pack_uniform
from stores.leases import RedisShardLeases
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from tests.support.mailboxes import TENANT, Mailbox
from tests.support.redis_harness import RedisHarness, script_calls
from tests.support.servers import RedisUrls


@pytest.fixture
async def harness(redis_urls: RedisUrls, app_id: str) -> AsyncIterator[RedisHarness]:
    links = [RedisLink(url) for url in redis_urls.mailbox]
    leases = RedisShardLeases(links, app_id)
    yield RedisHarness(links, app_id, RedisMailboxStore(links, app_id), leases)
    for link in links:
        await link.close()


@pytest.mark.contract("REG-41", "REDIS-07", "MBX-34")
async def test_reg_41_64_lanes_of_8_shards_cost_one_script_call_an_instance(
    harness: RedisHarness,
) -> None:
    """Conditional writes of each lane alone once let 2 of 20 messages a second through."""
    shards = [Mailbox(harness, shard) for shard in range(8)]
    for mailbox in shards:
        await mailbox.lease()
    users = range(1000)
    assert len({lane_of(TENANT, user) for user in users}) == LANE_COUNT

    await harness.store.append_page([m.section([m.entry(0)]) for m in shards])  # loads the script
    for mailbox in shards:
        mailbox.w = pack_uniform(0)
    page = [m.section([m.entry(1 + n, user=n) for n in users]) for m in shards]
    before = await script_calls(harness.links)
    assert {outcome.code for outcome in await harness.store.append_page(page)} == {"ok"}
    assert await script_calls(harness.links) - before == len(harness.links)
