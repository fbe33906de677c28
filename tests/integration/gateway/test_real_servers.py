"""A whole gateway on a real broker and real Redis; the test plays the worker."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiokafka import AIOKafkaProducer
from pydantic import SecretStr

from gateway.main import Gateway
from gateway.tokens import AccessTokens, Identity
from schemas.config import Settings, child_environment
from schemas.constants import SECONDS_PER_DAY
from schemas.entry import encode_entry_head, entry_mailbox_seq
from schemas.errors import ErrorCode, ServerFault, StartRefused
from schemas.frames import Opcode
from schemas.identifiers import shard_of
from schemas.metrics import counter
from schemas.records import PUSH_BATCH, WATERMARK_ROW
from schemas.topics import WATERMARKS_TABLE, changelog_topic, push_topic
from schemas.watermarks import pack_uniform
from stores.leases import LeaseGrant, RedisShardLeases
from stores.mailbox import OK, EntryWrite, ShardAppend
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from tests.support.gateway import ALICE, BOB, SEQ, message_to
from tests.support.local_gateway import TcpPeer, device


class Worker:
    """Writes what a worker writes, in its order: entries and W, the watermark row, the push."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.links = [RedisLink(url) for url in settings.mailbox_redis]
        self.leases = RedisShardLeases(self.links, settings.app_id)
        self.store = RedisMailboxStore(self.links, settings.app_id)
        self.producer = AIOKafkaProducer(bootstrap_servers=settings.broker, acks="all")
        self.terms: dict[int, int] = {}
        self.w: dict[int, bytes] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Worker"]:
        await self.producer.start()
        try:
            yield self
        finally:
            await self.producer.stop()
            for link in self.links:
                await link.close()

    async def deliver(self, user: int, offset: int, *, push: bool = True) -> None:
        shard = shard_of(0, user, self.settings.mailbox_shard_count)
        if shard not in self.terms:
            grant = await self.leases.acquire(shard, "test", 60_000)
            assert isinstance(grant, LeaseGrant)
            self.terms[shard] = grant.term
        head = encode_entry_head(SEQ + offset, 0, bytes(8), 1, 0, None)
        day = int(time.time()) // SECONDS_PER_DAY
        write = EntryWrite(0, user, offset, SEQ + offset, day, head + b"common")
        new_w = pack_uniform(offset)
        append = ShardAppend(shard, self.terms[shard], 1, self.w.get(shard), new_w, 1, [write])
        assert await self.store.append_page([append]) == [OK]
        self.w[shard] = new_w
        await self.row(shard, offset)
        if push:
            await self.push(shard, user, offset, head)

    async def row(self, shard: int, offset: int) -> None:
        topic = changelog_topic(self.settings.app_id, WATERMARKS_TABLE)
        value = WATERMARK_ROW.encode(
            {
                "lease_term": self.terms.get(shard, 1),
                "epoch": 1,
                "base_epoch": 1,
                "page_number": offset,
                "w": pack_uniform(offset),
            }
        )
        await self.producer.send_and_wait(topic, value, key=b"W", partition=shard)

    async def push(self, shard: int, user: int, offset: int, head: bytes) -> None:
        value = PUSH_BATCH.encode(
            {
                "tenant_id": bytes(16),
                "mailbox_shard": shard,
                "mailbox_seq": SEQ + offset,
                "origin_device_id": device(9),
                "sender_id": 1,
                "common_encoded_body": b"common",
                "recipients": [{"user_id": user, "entry_heads": [head]}],
            }
        )
        await self.producer.send_and_wait(push_topic(self.settings.app_id), value, partition=0)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Gateway]:
    gateway = Gateway(settings)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()


@asynccontextmanager
async def connected(
    gateway: Gateway, settings: Settings, user: int, kind: int = 0
) -> AsyncIterator[TcpPeer]:
    peer = TcpPeer(*await asyncio.open_connection(*gateway.address))
    tokens = AccessTokens(settings.token_secret.get_secret_value().encode())
    identity = Identity(0, user, device(1), 1)
    peer.send(
        Opcode.AUTH,
        {
            "access_token": tokens.mint(identity, int(time.time()) + 60),
            "device_id": device(1),
            "cursor_kind": kind,
            "cursor": b"",
            "foreground": True,
        },
    )
    try:
        yield peer
    finally:
        await peer.close()


async def page(gateway: Gateway, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{gateway.web_port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


@pytest.mark.contract("PUSH-01", "TAKE-08", "REG-46")
async def test_reg_46_a_new_gateway_knows_all_of_w_before_it_listens(settings: Settings) -> None:
    async with Worker(settings).running() as worker:
        for offset in range(3):
            await worker.deliver(BOB, offset)
        async with running(settings) as gateway, connected(gateway, settings, BOB) as bob:
            ok = await bob.expect(Opcode.AUTH_OK)
            assert (ok["sync_to_seq"], ok["pending_entry_count_hint"]) == (SEQ + 2, 3)
            batch = await bob.pull(0, ok["sync_to_seq"])
            assert [entry_mailbox_seq(e) for e in batch["entries"]] == [SEQ, SEQ + 1, SEQ + 2]
            bob.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": ok["sync_to_seq"]})
            await bob.expect(Opcode.ONLINE_READY)
            await worker.deliver(BOB, 3)
            (pushed,) = (await bob.expect(Opcode.PUSH_EVENTS))["entries"]
            assert entry_mailbox_seq(pushed) == SEQ + 3


@pytest.mark.contract("PUSH-01")
async def test_a_push_that_overtakes_its_watermark_row_waits_for_it(settings: Settings) -> None:
    async with (
        Worker(settings).running() as worker,
        running(settings) as gateway,
        connected(gateway, settings, BOB, kind=1) as bob,
    ):
        await bob.expect(Opcode.AUTH_OK)
        shard = shard_of(0, BOB, settings.mailbox_shard_count)
        head = encode_entry_head(SEQ, 0, bytes(8), 1, 0, None)
        await worker.push(shard, BOB, 0, head)
        async with asyncio.timeout(60):
            while not gateway.router.held:  # noqa: ASYNC110 - the log has no event for this
                await asyncio.sleep(0.005)
        bob.send(Opcode.PING, {"client_time_ms": 1, "foreground": True})
        assert (await bob.expect(Opcode.PONG))["lane_watermark"] == 0  # nothing was shown before
        await worker.row(shard, 0)
        (pushed,) = (await bob.expect(Opcode.PUSH_EVENTS))["entries"]
        assert entry_mailbox_seq(pushed) == SEQ


@pytest.mark.contract("COM-01", "COM-04")
async def test_a_sent_message_is_committed_and_a_retry_gets_the_same_coordinates(
    settings: Settings,
) -> None:
    async with (
        running(settings) as gateway,
        connected(gateway, settings, ALICE, kind=1) as alice,
    ):
        ok = await alice.expect(Opcode.AUTH_OK)
        alice.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": ok["sync_to_seq"]})
        await alice.expect(Opcode.ONLINE_READY)
        alice.send(Opcode.SEND_MESSAGE, message_to(), request_id=1)
        first = await alice.expect(Opcode.SEND_ACK)
        alice.send(Opcode.SEND_MESSAGE, message_to(), request_id=2)
        again = await alice.frame()
        assert again.request_id == 2
        assert {**first, "duplicate": True} == again.record
        alice.send(Opcode.SEND_MESSAGE, message_to(body=b"other"), request_id=3)
        assert await alice.refused() is ErrorCode.IDEMPOTENCY_CONFLICT


@pytest.mark.contract("COM-19", "OBS-02", "REG-44", "REG-46")
async def test_reg_44_ready_asks_redis_broker_producer_and_view(settings: Settings) -> None:
    gateway = Gateway(settings)
    try:
        gateway.web_port = await gateway.health.start("127.0.0.1", 0)
        status, text = await page(gateway, "/ready")
        assert (status, "starting" in text) == (503, True)
        gateway.health.serving = True
        status, text = await page(gateway, "/ready")  # Redis answers, the rest was not started
        assert status == 503
        assert "writer" in text
        assert "watermarks" in text
        assert "redis" not in text
    finally:
        await gateway.stop()
    async with running(settings) as started:
        assert (await page(started, "/ready"))[0] == 200
        assert (await page(started, "/healthz"))[0] == 200
        metrics = (await page(started, "/metrics"))[1]
        assert "qim_gateway_backend_dropped_total 0" in metrics
        assert "qim_gateway_connections 0" in metrics
        counter("qim_gateway_backend_dropped_total").add()
        assert (await page(started, "/healthz"))[0] == 503
        started.follower.failed = True
        assert "watermarks" in (await page(started, "/ready"))[1]


@pytest.mark.parametrize("field", ["token_secret", "cursor_secret"])
def test_missing_secrets_refuse_the_start(redis_settings: Settings, field: str) -> None:
    broken = redis_settings.model_copy(update={field: SecretStr("short")})
    with pytest.raises(StartRefused, match=field.upper()):
        Gateway(broken)


async def test_an_unreachable_broker_refuses_the_start_in_time(redis_settings: Settings) -> None:
    away = redis_settings.model_copy(update={"broker": "127.0.0.1:9", "start_timeout_s": 2.0})
    gateway = Gateway(away)
    try:
        with pytest.raises(ServerFault, match=r"127\.0\.0\.1:9"):
            await gateway.start()
    finally:
        await gateway.stop()


async def test_the_process_serves_until_sigterm_and_ends_clean(settings: Settings) -> None:
    values = {
        "QIM_APP_ID": settings.app_id,
        "QIM_BROKER": settings.broker,
        "QIM_MAILBOX_REDIS": ",".join(settings.mailbox_redis),
        "QIM_COMMIT_REDIS": ",".join(settings.commit_redis),
        "QIM_TOKEN_SECRET": settings.token_secret.get_secret_value(),
        "QIM_CURSOR_SECRET": settings.cursor_secret.get_secret_value(),
        "QIM_GATEWAY_LISTEN": "127.0.0.1:0",
        "QIM_GATEWAY_WEB_PORT": "0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from gateway.main import main; raise SystemExit(main([]))",
        env=child_environment(values),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        host, port = line.split()[3].rstrip(",").split(":")
        peer = TcpPeer(*await asyncio.open_connection(host, int(port)))
        peer.send(Opcode.PING, b"")
        assert await peer.refused() is ErrorCode.NOT_AUTHENTICATED
        await peer.close()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
