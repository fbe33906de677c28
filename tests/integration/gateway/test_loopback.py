"""Clients over real loopback TCP against a gateway with in-memory stores."""

import asyncio

import pytest

from gateway.limits import GatewayLimits
from schemas.entry import entry_mailbox_seq
from schemas.errors import ErrorCode
from schemas.frames import Opcode
from tests.support.gateway import ALICE, BOB, SEQ, FakeCommitter, committed, message_to
from tests.support.local_gateway import LocalGateway, TcpPeer, eventually


async def log_in(
    gateway: LocalGateway, user: int, number: int = 1
) -> tuple[TcpPeer, dict[str, int]]:
    peer = await gateway.connect()
    peer.send(Opcode.AUTH, gateway.auth(user, number))
    ok: dict[str, int] = await peer.expect(Opcode.AUTH_OK)
    return peer, ok


async def test_offline_messages_are_pulled_in_batches_and_the_rest_is_pushed() -> None:
    async with LocalGateway().serving() as gateway:
        for offset in range(25):
            await gateway.materialize(offset, [BOB])
        bob, ok = await log_in(gateway, BOB)
        assert (ok["cursor_seq"], ok["sync_to_seq"]) == (0, SEQ + 24)
        assert ok["has_offline"]
        assert ok["pending_entry_count_hint"] == 25
        await gateway.materialize(25, [BOB])  # during the barrier: above sync_to_seq
        (pushed,) = (await bob.expect(Opcode.PUSH_EVENTS))["entries"]
        assert entry_mailbox_seq(pushed) == SEQ + 25
        got: list[int] = []
        after, more = 0, True
        while more:
            batch = await bob.pull(after, SEQ + 24, items=10)
            got += [entry_mailbox_seq(e) for e in batch["entries"]]
            after, more = batch["covered_through_seq"], batch["has_more"]
        assert got == [SEQ + n for n in range(25)]
        bob.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": ok["sync_to_seq"]})
        ready = await bob.expect(Opcode.ONLINE_READY)
        await bob.close()
        # The cursor handed out continues at sync_to_seq: only what was pushed is owed again.
        bob = await gateway.connect()
        bob.send(Opcode.AUTH, gateway.auth(BOB, kind=2, cursor=ready["cursor"]))
        again = await bob.expect(Opcode.AUTH_OK)
        assert (again["cursor_seq"], again["sync_to_seq"]) == (SEQ + 24, SEQ + 25)


@pytest.mark.contract("MBX-53", "SEQ-08")
async def test_reg_01_zero_cursor_sees_offset_zero_of_the_partition() -> None:
    async with LocalGateway().serving() as gateway:
        await gateway.materialize(0, [BOB], push=False)
        bob, ok = await log_in(gateway, BOB)
        assert ok["has_offline"]
        batch = await bob.pull(0, ok["sync_to_seq"])
        assert [entry_mailbox_seq(e) for e in batch["entries"]] == [SEQ]
        past = await bob.pull(SEQ, 0)  # a cursor that applied (1, 0) excludes it
        assert past["entries"] == []


@pytest.mark.contract("ACC-M4", "EVT-06")
async def test_acc_m4_a_group_of_four_is_one_batch_whatever_max_items_says() -> None:
    async with LocalGateway().serving() as gateway:
        for offset in range(3):
            await gateway.materialize(offset, [BOB], types=(0, 1, 2, 3))
        bob, ok = await log_in(gateway, BOB)
        after, seen, more = 0, [], []
        for _ in range(3):
            batch = await bob.pull(after, ok["sync_to_seq"], items=1)
            assert len(batch["entries"]) == 4
            seen += batch["entries"]
            after = batch["covered_through_seq"]
            more.append(batch["has_more"])
        assert more == [True, True, False]
        assert [entry_mailbox_seq(e) - SEQ for e in seen] == [0] * 4 + [1] * 4 + [2] * 4
        assert [e[9] >> 1 for e in seen] == [0, 1, 2, 3] * 3  # ordinals inside each group


async def test_several_devices_of_one_user_get_the_same_events() -> None:
    async with LocalGateway().serving() as gateway:
        phone = await gateway.online(ALICE, 1)
        laptop = await gateway.online(ALICE, 2)
        await gateway.materialize(0, [ALICE], sender=BOB)
        first = await phone.expect(Opcode.PUSH_EVENTS)
        assert await laptop.expect(Opcode.PUSH_EVENTS) == first
        await gateway.materialize(1, [ALICE], sender=ALICE)  # sent by the phone, which is device 1
        await gateway.materialize(2, [ALICE], sender=BOB)
        seqs = [entry_mailbox_seq(e) for e in (await laptop.expect(Opcode.PUSH_EVENTS))["entries"]]
        assert seqs == [SEQ + 1]
        assert [
            entry_mailbox_seq(e) for e in (await phone.expect(Opcode.PUSH_EVENTS))["entries"]
        ] == [SEQ + 2]


@pytest.mark.contract("GW-10", "CON-23", "SEQ-23")
async def test_the_same_device_is_replaced_and_an_older_session_refused() -> None:
    async with LocalGateway().serving() as gateway:
        first = await gateway.online(ALICE, 1, epoch=3)
        other = await gateway.online(ALICE, 2, epoch=1)
        second = await gateway.online(ALICE, 1, epoch=3)
        assert (await first.expect(Opcode.KICKED)) == {"reason": "REPLACED"}
        assert await first.ended()
        late = await gateway.connect()
        late.send(Opcode.AUTH, gateway.auth(ALICE, 1, epoch=2))
        assert await late.refused() is ErrorCode.SESSION_SUPERSEDED
        assert await late.ended()
        await gateway.materialize(0, [ALICE], sender=BOB)
        for peer in (second, other):
            await peer.expect(Opcode.PUSH_EVENTS)
        assert gateway.metrics.kicked == 1


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
        assert gateway.metrics.backend_dropped == 0
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
        for offset in range(400):
            await gateway.materialize(offset, [BOB], body=bytes(20_000))
            await asyncio.sleep(0)
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


@pytest.mark.contract("REB-02", "REB-07", "ACC-M7")
async def test_acc_m7_a_rebuild_pulls_nothing_old_and_misses_nothing_new() -> None:
    async with LocalGateway().serving() as gateway:
        for offset in range(5):
            await gateway.materialize(offset, [BOB])
        await gateway.store.truncate_before(0, BOB, 0, 1, SEQ + 3)
        peer, first = await log_in(gateway, BOB)
        batch = await peer.pull(0, first["sync_to_seq"], items=1)
        await peer.close()
        await gateway.store.truncate_before(
            0, BOB, 0, 1, SEQ + 5
        )  # the device lags behind the trim
        bob = await gateway.connect()
        bob.send(Opcode.AUTH, gateway.auth(BOB, kind=2, cursor=batch["cursor"]))
        expired = await bob.expect(Opcode.ERROR)
        assert (expired["code"], expired["rebuild_required"]) == (ErrorCode.CURSOR_EXPIRED, True)
        bob.send(Opcode.AUTH, gateway.auth(BOB, kind=1))  # on the same connection
        ok = await bob.expect(Opcode.AUTH_OK)
        assert not ok["has_offline"]
        assert (ok["cursor_seq"], ok["sync_to_seq"]) == (SEQ + 4, SEQ + 4)
        await gateway.materialize(5, [BOB])  # meanwhile: the live path
        await bob.expect(Opcode.PUSH_EVENTS)
        bob.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": ok["sync_to_seq"]})
        ready = await bob.expect(Opcode.ONLINE_READY)
        await bob.close()
        again = await gateway.connect()
        again.send(Opcode.AUTH, gateway.auth(BOB, kind=2, cursor=ready["cursor"]))
        ok = await again.expect(Opcode.AUTH_OK)
        assert (ok["cursor_seq"], ok["sync_to_seq"]) == (SEQ + 4, SEQ + 5)


@pytest.mark.contract("SEQ-22", "CUR-01")
async def test_each_device_of_a_user_has_a_cursor_of_its_own() -> None:
    async with LocalGateway().serving() as gateway:
        for offset in range(4):
            await gateway.materialize(offset, [ALICE], push=False)
        phone, ok = await log_in(gateway, ALICE, 1)
        laptop, _ = await log_in(gateway, ALICE, 2)
        ahead = await phone.pull(0, ok["sync_to_seq"])
        behind = await laptop.pull(0, SEQ + 1)
        await phone.close()
        await laptop.close()
        for number, cursor, at in ((1, ahead["cursor"], SEQ + 3), (2, behind["cursor"], SEQ + 1)):
            peer = await gateway.connect()
            peer.send(Opcode.AUTH, gateway.auth(ALICE, number, kind=2, cursor=cursor))
            assert (await peer.expect(Opcode.AUTH_OK))["cursor_seq"] == at
        stranger = await gateway.connect()
        stranger.send(Opcode.AUTH, gateway.auth(ALICE, 2, kind=2, cursor=ahead["cursor"]))
        assert await stranger.refused() is ErrorCode.CURSOR_INVALID
