import pytest

from schemas.errors import StartRefused, StoreUnknownOutcome
from stores.redis_gate import RedisRole, check_redis
from stores.redis_link import RedisLink
from tests.support.servers import RedisUrls


@pytest.mark.contract("GATE-08", "GATE-09", "REDIS-03", "REDIS-04", "REDIS-05")
async def test_gate_09_a_real_server_is_judged_by_its_role(
    redis_urls: RedisUrls, caplog: pytest.LogCaptureFixture
) -> None:
    commit, mailbox = RedisLink(redis_urls.commit[0]), RedisLink(redis_urls.mailbox[0])
    try:
        await check_redis(commit, RedisRole.COMMIT)
        await check_redis(mailbox, RedisRole.MAILBOX)
        with pytest.raises(StartRefused, match="appendfsync is everysec"):
            await check_redis(mailbox, RedisRole.COMMIT)
        assert "appendfsync" in caplog.text
        await check_redis(mailbox, RedisRole.COMMIT, allow_unsafe_dev=True)
    finally:
        await commit.close()
        await mailbox.close()


async def test_a_server_that_is_not_there_never_passes() -> None:
    link = RedisLink("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnknownOutcome):
        await check_redis(link, RedisRole.MAILBOX)
