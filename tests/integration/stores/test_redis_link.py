import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from lua import Script
from schemas.errors import StoreFault, StoreUnknownOutcome
from stores.redis_link import RedisLink, redacted, redacted_url
from tests.support.servers import RedisUrls

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def fake_server(handle: Handler) -> AsyncIterator[str]:
    """A server that answers the client's greeting and then behaves as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"redis://127.0.0.1:{port}/0?lib_name=&lib_version="


async def read_commands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[bytes]
) -> bytes:
    """Answer CLIENT commands; return the first other command."""
    while True:
        data = await reader.read(65536)
        seen.append(data)
        if b"CLIENT" not in data:
            return data
        writer.write(b"+OK\r\n" * data.count(b"CLIENT"))


@pytest.mark.contract("MBX-62")
async def test_a_connection_lost_after_sending_is_an_unknown_outcome_and_is_not_repeated() -> None:
    seen: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_commands(reader, writer, seen)

    async with fake_server(hang_up) as url:
        link = RedisLink(url)
        with pytest.raises(StoreUnknownOutcome):
            await link.command("INCR", "counter")
        assert sum(data.count(b"INCR") for data in seen) == 1
        await link.close()


@pytest.mark.contract("MBX-62")
async def test_no_answer_in_time_is_an_unknown_outcome() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_commands(reader, writer, [])
        await reader.read()  # until the client gives up

    async with fake_server(silent) as url:
        link = RedisLink(url, timeout_s=0.05)
        with pytest.raises(StoreUnknownOutcome):
            await link.command("PING")
        await link.close()


async def test_a_server_that_is_not_there_is_an_unknown_outcome() -> None:
    link = RedisLink("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnknownOutcome):
        await link.command("PING")


async def test_a_restarted_server_costs_one_failure_not_one_for_each_connection(
    redis_urls: RedisUrls,
) -> None:
    link = RedisLink(redis_urls.mailbox[0], connections=4)
    await asyncio.gather(*(link.command("PING") for _ in range(4)))
    other = RedisLink(redis_urls.mailbox[0])
    # Ends every connection but its own, as a restart would.
    await other.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    failures = 0
    for _ in range(5):
        try:
            await link.command("PING")
        except StoreUnknownOutcome:
            failures += 1
    assert failures <= 1
    await link.close()
    await other.close()


@pytest.mark.contract("COM-23")
async def test_calls_beyond_the_connections_wait_their_turn(redis_urls: RedisUrls) -> None:
    link = RedisLink(redis_urls.mailbox[0], connections=2)
    replies = await asyncio.gather(*(link.command("ECHO", str(n)) for n in range(50)))
    assert replies == [str(n).encode() for n in range(50)]
    await link.close()


@pytest.mark.contract("REDIS-07")
async def test_a_server_that_forgot_its_scripts_gets_them_again(redis_urls: RedisUrls) -> None:
    link = RedisLink(redis_urls.mailbox[0])
    source = "#!lua\nreturn {KEYS[1], ARGV[1]}"
    # The digest is Redis' own, so the loader's way of hashing is not used twice.
    sha1 = (await link.command("SCRIPT", "LOAD", source)).decode()
    script = Script("echo", source, sha1)
    await link.command("SCRIPT", "FLUSH")
    assert await link.run(script, "value", keys=("key",)) == [b"key", b"value"]
    assert await link.run(script, "value", keys=("key",)) == [b"key", b"value"]
    await link.close()


@pytest.mark.contract("REG-48")
async def test_reg_48_a_failed_script_tells_its_cause(
    redis_urls: RedisUrls, caplog: pytest.LogCaptureFixture
) -> None:
    link = RedisLink(redis_urls.mailbox[0])
    source = "#!lua\nreturn redis.call('GET')"
    sha1 = (await link.command("SCRIPT", "LOAD", source)).decode()
    with pytest.raises(StoreUnknownOutcome, match="Wrong number of args"):
        await link.run(Script("broken", source, sha1))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "Wrong number of args" in record.getMessage()
    await link.close()


@pytest.mark.contract("REDIS-03")
async def test_a_server_out_of_memory_refuses_before_the_script_runs(
    redis_urls: RedisUrls, app_id: str
) -> None:
    link = RedisLink(redis_urls.mailbox[0])
    source = f"#!lua\nredis.call('DEL', 'x') redis.call('SET', '{app_id}:oom', '1') return 1"
    sha1 = (await link.command("SCRIPT", "LOAD", source)).decode()
    await link.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreFault, match="maxmemory") as refused:
            await link.run(Script("write", source, sha1))
        assert not isinstance(refused.value, StoreUnknownOutcome)
    finally:
        await link.command("CONFIG", "SET", "maxmemory", "0")
    assert await link.command("EXISTS", f"{app_id}:oom") == 0
    await link.close()


@pytest.mark.contract("REG-48")
def test_reg_48_what_is_logged_shows_no_secrets() -> None:
    assert redacted_url("redis://user:secret@host:6379/2?x=y") == "redis://host:6379/2"
    assert redacted_url("unix://u:s@/run/redis.sock?db=1") == "unix:///run/redis.sock"
    assert "secret" not in RedisLink("redis://:secret@127.0.0.1:1/0").name
    assert redacted("line\nbreak\x00" + "x" * 1000) == "line?break?" + "x" * 289
