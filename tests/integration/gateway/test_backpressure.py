"""Back-pressure and the ends of connections over real loopback TCP."""

import asyncio

import pytest

from gateway.limits import GatewayLimits
from schemas.entry import entry_mailbox_seq
from schemas.errors import ErrorCode
from schemas.frames import Opcode
from schemas.metrics import counter
from tests.support.gateway import ALICE, BOB, SEQ, FakeCommitter, committed, message_to
from tests.support.local_gateway import LocalGateway, TcpPeer, eventually


async def log_in(
    gateway: LocalGateway, user: int, number: int = 1
) -> tuple[TcpPeer, dict[str, int]]:
    peer = await gateway.connect()
    peer.send(Opcode.AUTH, gateway.auth(user, number))
    ok: dict[str, int] = await peer.expect(Opcode.AUTH_OK)
    return peer, ok


@pytest.mark.contract("COM-17", "GW-12", "REG-17")
async def test_reg_17_a_full_backend_stops_reading_and_drops_nothing() -> None:
    committer = FakeCommitter(capacity=4)
    async with LocalGateway(committer=committer).serving() as gateway:
        alice = await gateway.online(ALICE)
        bob = await gateway.online(BOB)
        for number in range(500):
            alice.send(Opcode.SEND_MESSAGE, message_to(number=number + 1), request_id=number)
        bob.send(Opcode.SEND_MESSAGE, message_to(ALICE, BOB), request_id=9)

        async def answer_all() -> None:
            while len(committer.submitted) < 501 or committer.waiting:
                if committer.waiting:
                    committer.finish()
                await asyncio.sleep(0)

        answering = asyncio.create_task(answer_all())
        ids = [(await alice.frame()).request_id for _ in range(500)]
        assert ids == list(range(500))  # every one, in order
        assert (await bob.frame()).request_id == 9
        await answering
        assert committer.most_waiting == 4
        assert gateway.metrics.reading_paused >= 1
        assert counter("qim_gateway_backend_dropped_total").value == 0
        # Fair: bob's one message did not wait behind all of alice's.
        users = [request.user for request in committer.submitted]
        assert users.index(BOB) < 499


async def test_one_connections_unanswered_sends_are_bounded() -> None:
    limits = GatewayLimits(max_sends_in_flight=8)
    gateway = LocalGateway(limits)
    async with gateway.serving():
        alice = await gateway.online(ALICE)
        bob = await gateway.online(BOB)
        # More than the kernel's and our read buffers hold, so that reading has to stop in between.
        for number in range(400):
            body = bytes(16_000)
            alice.send(Opcode.SEND_MESSAGE, message_to(number=number + 1, body=body), number)
        committer = gateway.fake_committer
        for number in range(400):
            await eventually(lambda: committer.waiting)
            committer.finish()
            assert (await alice.frame()).request_id == number
        assert committer.most_waiting < 50
        assert gateway.metrics.reading_paused >= 1
        bob.send(Opcode.PING, {"client_time_ms": 1, "foreground": True})
        await bob.expect(Opcode.PONG)


@pytest.mark.contract("GW-05", "GATE-07")
async def test_pong_overtakes_a_big_batch_on_the_socket() -> None:
    async with LocalGateway().serving() as gateway:
        for offset in range(160):
            await gateway.materialize(offset, [BOB], push=False, body=bytes(6_000))
        bob, ok = await log_in(gateway, BOB)
        request = {
            "after_seq": 0,
            "up_to_seq": ok["sync_to_seq"],
            "max_items": 2000,
            "max_bytes": 1 << 20,
        }
        for number in range(4):
            bob.send(Opcode.PULL_MAILBOX, request, request_id=number)
        bob.send(Opcode.PING, {"client_time_ms": 7, "foreground": True}, request_id=99)
        frames = [await bob.frame() for _ in range(5)]
        assert frames[0].opcode is Opcode.PONG or frames[1].opcode is Opcode.PONG
        assert sum(f.opcode is Opcode.MAILBOX_BATCH for f in frames) == 4


async def test_a_peer_that_reads_nothing_misses_pushes_and_is_told_the_last() -> None:
    limits = GatewayLimits(push_queue_bytes=64 * 1024, socket_buffer_high_bytes=64 * 1024)
    async with LocalGateway(limits).serving() as gateway:
        bob = await gateway.online(BOB)
        bob.writer.transport.pause_reading()  # type: ignore[attr-defined]
        offset = 0
        while not gateway.metrics.pushes_dropped and offset < 2000:
            await gateway.materialize(offset, [BOB], body=bytes(20_000))
            await asyncio.sleep(0)
            offset += 1
        assert gateway.metrics.pushes_dropped >= 1
        bob.writer.transport.resume_reading()  # type: ignore[attr-defined]
        last = -1
        while last != SEQ + offset - 1:
            entries = (await bob.expect(Opcode.PUSH_EVENTS))["entries"]
            assert entry_mailbox_seq(entries[0]) > last
            last = entry_mailbox_seq(entries[-1])
        batch = await bob.pull(SEQ, last)
        assert batch["entries"]


async def test_a_peer_that_never_reads_is_torn_down() -> None:
    limits = GatewayLimits(write_stall_ms=0, linger_ms=0, socket_buffer_high_bytes=64 * 1024)
    async with LocalGateway(limits).serving() as gateway:
        bob = await gateway.online(BOB)
        bob.writer.transport.pause_reading()  # type: ignore[attr-defined]
        offset = 0
        while not gateway.hub.blocked and offset < 3000:  # the kernel's buffers take megabytes
            await gateway.materialize(offset, [BOB], body=bytes(20_000))
            await asyncio.sleep(0)
            offset += 1
        await eventually(lambda: not gateway.hub.connections)
        assert len(gateway.registry) == 0
        assert gateway.metrics.closed_by_error == 1


@pytest.mark.contract("COM-18")
async def test_answers_for_a_closed_connection_find_nobody() -> None:
    async with LocalGateway().serving() as gateway:
        alice = await gateway.online(ALICE)
        alice.send(Opcode.SEND_MESSAGE, message_to())
        await eventually(lambda: gateway.fake_committer.waiting)
        await alice.close()
        await eventually(lambda: not gateway.hub.connections)
        gateway.fake_committer.finish(committed())
        assert len(gateway.registry) == 0


async def test_drain_answers_what_is_in_flight_and_refuses_the_rest() -> None:
    async with LocalGateway().serving() as gateway:
        alice = await gateway.online(ALICE)
        stranger = await gateway.connect()
        stranger.send(Opcode.PING, b"")  # so that the server has accepted it
        assert await stranger.refused() is ErrorCode.NOT_AUTHENTICATED
        assert await stranger.ended()
        idle = await gateway.online(BOB)
        alice.send(Opcode.SEND_MESSAGE, message_to(), request_id=5)
        await eventually(lambda: gateway.fake_committer.waiting)
        draining = asyncio.create_task(gateway.server.drain())
        assert await idle.refused() is ErrorCode.DRAINING
        assert await idle.ended()
        gateway.fake_committer.finish()
        assert (await alice.frame()).opcode is Opcode.SEND_ACK
        assert await alice.refused() is ErrorCode.DRAINING
        assert await alice.ended()
        await draining
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*gateway.address)


async def test_connections_are_bounded() -> None:
    async with LocalGateway(GatewayLimits(max_connections=1)).serving() as gateway:
        alice = await gateway.online(ALICE)
        late = await gateway.connect()
        with pytest.raises((ConnectionResetError, AssertionError)):
            await late.frame()
        assert gateway.metrics.refused_connections == 1
        alice.send(Opcode.PING, {"client_time_ms": 1, "foreground": True})
        await alice.expect(Opcode.PONG)


async def test_rubbish_is_answered_and_closed_while_others_are_served() -> None:
    async with LocalGateway().serving() as gateway:
        alice = await gateway.online(ALICE)
        bad = await gateway.connect()
        bad.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 4)  # a TLS greeting
        assert await bad.refused() is ErrorCode.BAD_FRAME
        assert await bad.ended()
        alice.send(Opcode.PING, {"client_time_ms": 1, "foreground": True})
        await alice.expect(Opcode.PONG)


async def test_the_last_word_arrives_though_the_peer_went_on_sending() -> None:
    async with LocalGateway().serving() as gateway:
        alice = await gateway.online(ALICE)
        alice.writer.write(bytes(4 << 20))  # rubbish, far more than one read of the server takes
        assert await alice.refused() is ErrorCode.BAD_FRAME
        assert await alice.ended()
        await eventually(lambda: not gateway.hub.connections)
