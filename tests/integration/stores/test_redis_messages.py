import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from schemas.errors import StoreFault
from stores.messages import CommitDamaged, MessageStore, ReserveRequest, ReserveResult
from stores.redis_link import RedisLink
from stores.redis_messages import RedisMessageStore, commit_key, conversation_key
from tests.suites.test_messages import MessageSuite
from tests.support.messages import MessageHarness, mark_of, request_of
from tests.support.redis_harness import script_calls
from tests.support.servers import RedisUrls


class RedisMessageHarness(MessageHarness):
    def __init__(self, links: list[RedisLink], app_id: str) -> None:
        self.links = links
        self.prefix = f"{app_id}:"
        self.store: MessageStore = RedisMessageStore(links, app_id)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def link(self, request: ReserveRequest) -> RedisLink:
        return self.links[request.bucket % len(self.links)]

    def commit(self, request: ReserveRequest) -> str:
        key = commit_key(request.bucket, request.tenant, request.sender, request.client_message_id)
        return f"{self.prefix}msgcommit:{key}"

    def owner(self, request: ReserveRequest) -> str:
        key = commit_key(request.bucket, request.tenant, request.sender, request.client_message_id)
        return f"{self.prefix}cmidown:{key[7:]}"

    def conversation(self, family: str, request: ReserveRequest) -> str:
        key = conversation_key(request.bucket, request.tenant, request.conversation_id)
        return f"{self.prefix}{family}:{key}"

    async def expiry_ms(self, request: ReserveRequest) -> int | None:
        found: int = await self.link(request).command("PEXPIRETIME", self.commit(request))
        assert found != -2, "no commit"
        return None if found == -1 else found

    async def history(self, request: ReserveRequest) -> dict[int, bytes]:
        key = self.conversation("msghistory", request)
        flat = await self.link(request).command("ZRANGE", key, 0, -1, "WITHSCORES")
        found = {int(score): record for record, score in zip(flat[::2], flat[1::2], strict=True)}
        assert len(found) == len(flat) // 2
        return found

    async def pass_dedup_ttl(self, request: ReserveRequest) -> None:
        for key in (self.commit(request), self.owner(request)):
            assert await self.link(request).command("PEXPIREAT", key, self.now_ms() - 1) == 1

    async def end_writer_lease(self, region: int, writer: int) -> None:
        await self.links[0].command("DEL", f"{self.prefix}writer:{region}:{writer}")

    async def snapshot(self) -> dict[bytes, tuple[bytes, int]]:
        found = {}
        for link in self.links:
            for key in await link.command("KEYS", f"{self.prefix}*"):
                expiry = await link.command("PEXPIRETIME", key)
                found[key] = (await link.command("DUMP", key), expiry)
        return found


@pytest.fixture
async def messages(redis_urls: RedisUrls, app_id: str) -> AsyncIterator[RedisMessageHarness]:
    links = [RedisLink(url) for url in redis_urls.commit]
    yield RedisMessageHarness(links, app_id)
    for link in links:
        await link.close()


class TestRedisMessages(MessageSuite):
    """The Redis backend, on two instances, passes the shared suite."""


@pytest.mark.contract("COM-12", "REG-43", "DP-09", "REG-42")
async def test_reg_43_a_committed_hash_is_rebuilt_as_a_listpack(
    messages: RedisMessageHarness,
) -> None:
    request = request_of(messages.now_ms())
    link, key = messages.link(request), messages.commit(request)
    await messages.store.reserve_and_record([request])
    assert await link.command("OBJECT", "ENCODING", key) == b"hashtable"  # a long outbox meta
    await messages.store.mark_committed([mark_of(request)])
    assert await link.command("OBJECT", "ENCODING", key) == b"listpack"
    flat = await link.command("HGETALL", key)
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    ids = request.message_id + request.last_activity_id + request.trace_id + request.conversation_id
    assert fields == {
        b"s": b"C",
        b"i": request.identity,
        b"q": b"1",
        b"t": str(request.committed_at_ms).encode(),
        b"k": ids,
        b"o": b"3:70",
    }
    assert max(len(value) for value in fields.values()) <= 64


@pytest.mark.contract("COM-22", "COM-11", "COM-14")
async def test_keys_carry_the_bucket_tag_and_the_owner_ends_with_the_commit(
    messages: RedisMessageHarness,
) -> None:
    request = request_of(messages.now_ms(), conversation=7)
    await messages.store.reserve_and_record([request])
    assert sorted(await messages.snapshot()) == sorted(
        f"{messages.prefix}{name}".encode()
        for name in (
            f"cmidown:0:5:{1:032x}",
            f"msgcommit:{{b007}}:0:5:{1:032x}",
            f"msgcseq:{{b007}}:0:{7:032x}",
            f"msghistory:{{b007}}:0:{7:032x}",
            "msgrecovery",
        )
    )
    await messages.store.mark_committed([mark_of(request)])
    owner = await messages.link(request).command("PEXPIRETIME", messages.owner(request))
    assert owner == await messages.expiry_ms(request) == request.committed_at_ms + 7_200_000
    assert f"{messages.prefix}msgrecovery".encode() not in await messages.snapshot()


@pytest.mark.contract("COM-05", "COM-14")
async def test_the_owner_of_a_late_commit_is_not_born_expired(
    messages: RedisMessageHarness,
) -> None:
    late = request_of(messages.now_ms() - 100 * 3_600_000)
    await messages.store.reserve_and_record([late])
    ends = await messages.link(late).command("PEXPIRETIME", messages.owner(late))
    assert ends >= messages.now_ms() + 7_190_000
    other = request_of(messages.now_ms(), 1, conversation=3)
    assert await messages.store.reserve_and_record([other]) == [ReserveResult("conflict")]


@pytest.mark.contract("COM-06")
async def test_a_continued_reservation_holds_its_record_once(messages: RedisMessageHarness) -> None:
    request = request_of(messages.now_ms())
    await messages.store.reserve_only([request])
    await messages.store.reserve_and_record([request])
    assert await messages.link(request).command("HEXISTS", messages.commit(request), "r") == 0


@pytest.mark.contract("COM-06", "REG-29", "HIST-12")
async def test_a_sequence_that_went_back_is_refused(messages: RedisMessageHarness) -> None:
    request = request_of(messages.now_ms())
    link = messages.link(request)
    await messages.store.reserve_and_record([request, request_of(messages.now_ms(), 2)])
    await link.command("SET", messages.conversation("msgcseq", request), 1)
    before = await messages.snapshot()
    (refused,) = await messages.store.reserve_and_record([request_of(messages.now_ms(), 3)])
    assert isinstance(refused, CommitDamaged)
    assert await messages.snapshot() == before


@pytest.mark.contract("HIST-12", "COM-20")
async def test_another_record_under_the_same_sequence_is_an_error(
    messages: RedisMessageHarness,
) -> None:
    request = request_of(messages.now_ms())
    await messages.store.reserve_only([request])
    history = messages.conversation("msghistory", request)
    await messages.link(request).command("ZADD", history, 1, b"another record")
    before = await messages.snapshot()
    (refused,) = await messages.store.reserve_and_record([request])
    assert isinstance(refused, CommitDamaged)
    assert await messages.store.stale_intents(1, messages.now_ms(), 10) == []
    assert await messages.snapshot() == before


@pytest.mark.contract("HIST-12", "COM-20")
async def test_the_same_record_under_the_same_sequence_is_a_no_op(
    messages: RedisMessageHarness,
) -> None:
    request = request_of(messages.now_ms())
    await messages.store.reserve_only([request])
    record = request.record_head + (1).to_bytes(8, "big") + request.record_tail
    await messages.link(request).command(
        "ZADD", messages.conversation("msghistory", request), 1, record
    )
    (existing,) = await messages.store.reserve_and_record([request])
    assert isinstance(existing, ReserveResult)
    assert (existing.state, existing.record) == ("D", record)


@pytest.mark.contract("COM-06", "COM-20", "REG-48")
@pytest.mark.parametrize(
    ("family", "command", "args"),
    [
        ("msgcommit", "SET", ("text",)),
        ("cmidown", "RPUSH", ("list",)),
        ("msgcseq", "RPUSH", ("list",)),
        ("msgcseq", "SET", ("not a number",)),
        ("msgcseq", "SET", ("9007199254740991",)),
        ("msghistory", "SET", ("text",)),
        ("msgrecovery", "SET", ("text",)),
    ],
)
async def test_reg_48_damage_refuses_a_request_without_a_write_and_is_logged(
    messages: RedisMessageHarness,
    caplog: pytest.LogCaptureFixture,
    family: str,
    command: str,
    args: tuple[str, ...],
) -> None:
    request = request_of(messages.now_ms())
    keys = {
        "msgcommit": messages.commit(request),
        "cmidown": messages.owner(request),
        "msgrecovery": f"{messages.prefix}msgrecovery",
    }
    key = keys.get(family) or messages.conversation(family, request)
    await messages.link(request).command(command, key, *args)
    before = await messages.snapshot()
    other = request_of(messages.now_ms(), 2, conversation=2)
    refused, healthy = await messages.store.reserve_and_record([request, other])
    assert isinstance(refused, CommitDamaged)
    assert isinstance(healthy, ReserveResult)
    after = await messages.snapshot()
    assert {name: value for name, value in after.items() if name in before} == before
    # What is new belongs to the healthy request of the other instance.
    assert not any(b"{b001}" in name for name in after.keys() - before.keys())
    (record,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert family in record.getMessage() or "wrong_type" in record.getMessage()


@pytest.mark.contract("COM-20", "COM-10")
async def test_a_lost_record_fails_the_retry_and_stays_in_the_recovery_index(
    messages: RedisMessageHarness,
) -> None:
    request = request_of(messages.now_ms())
    await messages.store.reserve_and_record([request])
    await messages.link(request).command("DEL", messages.conversation("msghistory", request))
    before = await messages.snapshot()
    (refused,) = await messages.store.reserve_and_record([request])
    assert isinstance(refused, CommitDamaged)
    assert await messages.store.stale_intents(1, messages.now_ms(), 10) == []
    assert await messages.snapshot() == before


async def test_a_damaged_high_water_mark_gives_no_window(messages: RedisMessageHarness) -> None:
    key = f"{messages.prefix}hlc:1:2"
    await messages.links[0].command("SET", key, "damaged")
    with pytest.raises(StoreFault):
        await messages.store.claim_hlc_window(1, 2, 1000)
    assert await messages.links[0].command("GET", key) == b"damaged"


@pytest.mark.contract("REDIS-07", "REG-28")
async def test_a_page_is_one_evalsha_an_instance(messages: RedisMessageHarness) -> None:
    page = [request_of(messages.now_ms(), n, conversation=n) for n in range(1, 41)]
    await messages.store.reserve_and_record(page[:2])  # loads the script

    before = await script_calls(messages.links)
    await messages.store.reserve_and_record(page)
    assert await script_calls(messages.links) - before == 2


@pytest.mark.contract("COM-21", "REG-23", "REG-24")
async def test_a_message_costs_exactly_the_writes_it_needs(messages: RedisMessageHarness) -> None:
    request = request_of(messages.now_ms())
    link = messages.link(request)

    async def calls() -> dict[str, int]:
        info: bytes = await link.command("INFO", "commandstats")
        lines = [line for line in info.decode().splitlines() if line.startswith("cmdstat_")]
        return {x.split(":")[0][8:]: int(x.split("calls=")[1].split(",")[0]) for x in lines}

    before = await calls()
    await messages.store.reserve_and_record([request])
    await messages.store.mark_committed([mark_of(request)])
    made = {name: count - before.get(name, 0) for name, count in (await calls()).items()}
    reads = {"evalsha", "info", "script|load", "time", "type", "hgetall", "hmget", "get", "zcount"}
    assert {name: count for name, count in made.items() if count and name not in reads} == {
        "incr": 1,  # the sequence
        "hset": 2,  # the intent, then what an ACK replay needs
        "zadd": 2,  # record, recovery index
        "set": 1,  # owner of the client_message_id
        "del": 1,
        "pexpireat": 1,
        "zrem": 1,
    }


@pytest.mark.contract("REG-50", "COM-10")
async def test_reg_50_nothing_of_an_unfinished_commit_ever_expires(
    messages: RedisMessageHarness,
) -> None:
    request = request_of(messages.now_ms())
    link, commit = messages.link(request), messages.commit(request)
    await messages.store.reserve_and_record([request])
    assert await link.command("PTTL", commit) == -1
    await messages.store.mark_committed([mark_of(request)])
    assert await link.command("PTTL", commit) > 0


@pytest.mark.contract("REDIS-10")
async def test_identities_of_writers_live_on_the_first_instance(
    messages: RedisMessageHarness,
) -> None:
    await messages.store.claim_hlc_window(1, 3, 1_000_000)
    await messages.store.claim_writer_id(1, "a", 60_000)
    first, second = [await link.command("KEYS", f"{messages.prefix}*") for link in messages.links]
    assert sorted(first) == [
        f"{messages.prefix}{name}".encode() for name in ("hlc:1:3", "writer:1:0")
    ]
    assert second == []


@pytest.mark.contract("COM-10", "SEQ-06")
async def test_a_cancelled_call_leaves_a_usable_store(messages: RedisMessageHarness) -> None:
    request = request_of(messages.now_ms())
    task = asyncio.ensure_future(messages.store.reserve_and_record([request]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (result,) = await messages.store.reserve_and_record([request])
    assert isinstance(result, ReserveResult)
    assert result.conversation_seq == 1
