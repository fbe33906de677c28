from collections.abc import AsyncIterator

import pytest

from stores.leases import RedisShardLeases
from stores.mailbox import MailboxStore
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from tests.support.mailbox_suite import MailboxSuite
from tests.support.redis_harness import RedisHarness
from tests.support.servers import RedisUrls


@pytest.fixture
async def harness(redis_urls: RedisUrls, app_id: str) -> AsyncIterator[RedisHarness]:
    links = [RedisLink(url) for url in redis_urls.mailbox]
    store: MailboxStore = RedisMailboxStore(links, app_id)
    yield RedisHarness(links, app_id, store, RedisShardLeases(links, app_id))
    for link in links:
        await link.close()


class TestRedisMailbox(MailboxSuite):
    """The Redis backend, on two instances, passes the shared suite."""
