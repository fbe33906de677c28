import pytest

from gateway.connections import ConnectionRegistry
from gateway.pushes import PushRouter
from gateway.visibility import WatermarkView
from schemas.identifiers import lane_of
from schemas.records import PushBatch
from schemas.watermarks import LaneMark, pack_w
from tests.support.gateway import ALICE, BOB, SEQ
from tests.unit.gateway.test_connections import Device
from tests.unit.gateway.test_visibility import row


class Bench:
    """A router with one shard."""

    def __init__(self, max_held: int = 100) -> None:
        self.view = WatermarkView(1)
        self.registry = ConnectionRegistry(100)
        self.router = PushRouter(self.view, self.registry, max_held)

    def connect(self, user: int, device: int = 1, sync_to_seq: int = 0) -> Device:
        client = Device(user, device, sync_to_seq=sync_to_seq)
        self.registry.add(client)
        return client

    def advance(self, offset: int) -> None:
        self.view.shards[0].update(row(offset))
        self.router.release(0)

    def show(self) -> None:
        for client, entries in self.router.take().items():
            client.push(entries)


def batch(
    offset: int, *users: int, sender: int = ALICE, origin: int = 1, shard: int = 0
) -> PushBatch:
    return {
        "tenant_id": bytes(16),
        "mailbox_shard": shard,
        "mailbox_seq": SEQ + offset,
        "origin_device_id": origin.to_bytes(16, "big"),
        "sender_id": sender,
        "common_encoded_body": b"-common",
        "recipients": [
            {"user_id": user, "entry_heads": [b"%d-%d" % (offset, user)]} for user in users
        ],
    }


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.contract("PUSH-01")
def test_a_push_waits_until_w_covers_it(bench: Bench) -> None:
    bob = bench.connect(BOB)
    bench.router.offer(batch(0, BOB))
    bench.router.offer(batch(1, BOB))
    bench.show()
    assert (bob.pushed, bench.router.held) == ([], 2)
    bench.advance(0)
    bench.show()
    assert (bob.pushed, bench.router.held) == ([b"0-1002-common"], 1)
    bench.advance(1)
    bench.show()
    assert bob.pushed == [b"0-1002-common", b"1-1002-common"]
    assert bench.router.held == 0


@pytest.mark.contract("PUSH-01", "WM-10")
def test_each_recipient_waits_for_the_own_lane_only(bench: Bench) -> None:
    alice, bob = bench.connect(ALICE), bench.connect(BOB)
    marks = [LaneMark(0, 0, 0)] * 64
    marks[lane_of(0, BOB)] = LaneMark(5, 5, 5)
    bench.view.shards[0].update(row(pack_w(marks)))
    bench.router.offer(batch(5, ALICE, BOB, sender=1))
    bench.show()
    assert (alice.pushed, len(bob.pushed)) == ([], 1)
    bench.advance(5)
    bench.show()
    assert (len(alice.pushed), len(bob.pushed)) == (1, 1)


def test_every_device_but_the_sending_one_is_shown_the_own_message(bench: Bench) -> None:
    phone, laptop = bench.connect(ALICE, 1), bench.connect(ALICE, 2)
    bob = bench.connect(BOB, 1)  # a recipient's device is no origin, whatever its id
    bench.advance(3)
    bench.router.offer(batch(3, ALICE, BOB, sender=ALICE, origin=1))
    bench.show()
    assert (phone.pushed, len(laptop.pushed), len(bob.pushed)) == ([], 1, 1)


@pytest.mark.contract("CUR-06")
def test_what_the_login_pulls_is_not_pushed(bench: Bench) -> None:
    bob = bench.connect(BOB, sync_to_seq=SEQ + 4)
    bench.advance(9)
    for offset in (3, 4, 5):
        bench.router.offer(batch(offset, BOB))
    bench.show()
    assert bob.pushed == [b"5-1002-common"]


def test_a_login_that_overtakes_its_watermark_still_gets_the_push(bench: Bench) -> None:
    bench.router.offer(batch(0, BOB))  # nobody is connected, W is not there yet
    bob = bench.connect(BOB, sync_to_seq=0)  # logs in with the older W
    bench.advance(0)
    bench.show()
    assert bob.pushed == [b"0-1002-common"]


def test_entries_of_one_pass_are_grouped_by_connection(bench: Bench) -> None:
    bench.connect(ALICE)
    bob = bench.connect(BOB)
    bench.advance(9)
    for offset in (1, 2, 3):
        bench.router.offer(batch(offset, BOB, sender=7))
    assert bench.router.take() == {bob: [b"1-1002-common", b"2-1002-common", b"3-1002-common"]}
    assert bench.router.take() == {}


def test_waiting_pushes_are_bounded_and_counted() -> None:
    bench = Bench(max_held=2)
    for offset in range(4):
        bench.router.offer(batch(offset, BOB))
    assert (bench.router.held, bench.router.dropped) == (2, 2)


@pytest.mark.parametrize("shard", [-1, 1, 70_000])
def test_a_push_of_another_shard_layout_is_counted_and_ignored(bench: Bench, shard: int) -> None:
    bench.router.offer(batch(0, BOB, shard=shard))
    assert (bench.router.held, bench.router.dropped) == (0, 1)
