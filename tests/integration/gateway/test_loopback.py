"""Clients over real loopback TCP against a gateway with in-memory stores."""

import asyncio

import pytest

from schemas.entry import entry_mailbox_seq
from schemas.errors import ErrorCode, QimError, StoreFault
from schemas.frames import Opcode
from stores.mailbox import ScanResult
from tests.support.gateway import ALICE, BOB, SEQ, message_to
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


@pytest.mark.contract("PUSH-05", "GW-18")
async def test_pushes_and_acks_flow_while_the_mailbox_store_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LocalGateway().serving() as gateway:
        bob = await gateway.online(BOB)
        hanging = asyncio.Event()

        async def hang(_scans: object) -> list[ScanResult | QimError]:
            await hanging.wait()
            return [StoreFault("gave up")]

        monkeypatch.setattr(gateway.store, "range_scan", hang)
        await gateway.materialize(0, [BOB], push=False)
        pull = {"after_seq": 0, "up_to_seq": SEQ, "max_items": 0, "max_bytes": 0}
        bob.send(Opcode.PULL_MAILBOX, pull, request_id=4)
        await gateway.materialize(1, [BOB])
        await bob.expect(Opcode.PUSH_EVENTS)
        bob.send(Opcode.SEND_MESSAGE, message_to(ALICE, BOB), request_id=5)
        await eventually(lambda: gateway.fake_committer.waiting)
        gateway.fake_committer.finish()
        assert (await bob.frame()).request_id == 5
        hanging.set()
        assert await bob.refused() is ErrorCode.UNAVAILABLE
