"""The asyncio shell on real loopback sockets, against the gateway's protocol core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from clients.client import Client
from clients.config import ClientConfig, Login
from clients.events import EntriesShown, Kicked, Offline, Online, SessionEvent
from clients.faults import Link, LossyLink
from clients.pending import FoundBy
from schemas.errors import ErrorCode, RequestError
from schemas.frames import Opcode, encode_frame
from tests.support.gateway_pair import World, device
from tests.support.tcp_gateway import TcpGateway

ALICE, BOB = 11, 22
FAST = ClientConfig(
    ack_timeout_s=0.2,
    detection_limit_s=0.6,
    pull_debounce_s=0.02,
    reconnect_delays_s=(0.01,),
    refused_retry_s=0.05,
)


class Host:
    """Clients of one test and what they reported; closes all of them."""

    def __init__(self, gateway: TcpGateway) -> None:
        self.gateway = gateway
        self.clients: list[Client] = []
        self.events: dict[int, list[SessionEvent]] = {}
        self._news = asyncio.Event()

    def client(self, user: int, number: int = 1, link: Link | None = None) -> Client:
        """A client of a user's device."""
        seen: list[SessionEvent] = []

        def note(event: SessionEvent) -> None:
            seen.append(event)
            self._news.set()

        login = Login(0, user, device(number), f"{user}")
        client = Client(self.gateway.address, login, FAST, on_event=note, link=link)
        self.events[id(client)] = seen
        self.clients.append(client)
        return client

    async def online(self, user: int, number: int = 1, link: Link | None = None) -> Client:
        """A client that is logged in."""
        client = self.client(user, number, link)
        await client.connect(5.0)
        return client

    def of(self, client: Client) -> list[SessionEvent]:
        """What a client reported."""
        return self.events[id(client)]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; it is looked at again after every event of any client."""
        async with asyncio.timeout(5.0):
            while not holds():
                self._news.clear()
                await self._news.wait()

    async def shows(self, client: Client, *bodies: bytes) -> None:
        """Wait until a client's timeline holds exactly these bodies."""
        await self.until(lambda: len(client.timeline.entries) >= len(bodies))
        assert [e.decode()["event"]["body"] for e in client.timeline.entries] == list(bodies)

    async def reports(self, client: Client, kind: type[SessionEvent], count: int = 1) -> None:
        """Wait until a client has reported `count` events of a kind."""
        await self.until(lambda: sum(isinstance(e, kind) for e in self.of(client)) >= count)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with TcpGateway(World()).serving() as gateway:
        host = Host(gateway)
        yield host
        for client in host.clients:
            await client.close()


async def test_message_travels_from_socket_to_socket(host: Host) -> None:
    alice, bob = await host.online(ALICE), await host.online(BOB, 2)
    coordinates = await alice.committed(alice.send(BOB, b"hello"))
    assert (coordinates.conversation_seq, coordinates.found_by) == (1, FoundBy.ACK)
    await host.shows(bob, b"hello")


async def test_pushed_messages_are_pulled_once_and_the_cursor_follows(host: Host) -> None:
    alice, bob = await host.online(ALICE), await host.online(BOB, 2)
    for n in range(50):
        alice.send(BOB, b"%d" % n)
    await host.shows(bob, *(b"%d" % n for n in range(50)))
    await host.until(lambda: bob.timeline.cursor_seq == host.gateway.world.watermark)
    assert len(bob.timeline.entries) == 50
    assert len(host.gateway.world.pulls) < 10


async def test_all_sends_of_one_loop_pass_leave_in_one_write(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await host.online(ALICE)
    reads: list[int] = []
    receive = host.gateway.world.desks[0].receive

    def count(data: bytes) -> None:
        reads.append(len(data))
        receive(data)

    monkeypatch.setattr(host.gateway.world.desks[0], "receive", count)
    messages = [alice.send(BOB, b"x") for _ in range(100)]
    for message in messages:
        await alice.committed(message)
    assert len(reads) == 1


@pytest.mark.contract("GW-09", "COM-04")
async def test_ack_lost_on_the_way_is_retried_with_the_same_coordinates(host: Host) -> None:
    lost = asyncio.Event()
    link = LossyLink(lambda _message: lost.set())
    alice = await host.online(ALICE, link=link)
    with link.losing(Opcode.SEND_ACK):
        message = alice.send(BOB, b"hello")
        await asyncio.wait_for(lost.wait(), 5.0)
    coordinates = await alice.committed(message, 5.0)
    committed = host.gateway.world.commits[message.client_message_id]
    assert coordinates.message_id == committed.message_id
    assert len(host.gateway.world.commits) == 1
    alice.resend(message)
    again = await alice.committed(message, 5.0)
    assert again[:3] == coordinates[:3]
    assert again.duplicate


@pytest.mark.contract("SDK-06")
async def test_broken_connection_is_dialled_again_and_pending_messages_follow(host: Host) -> None:
    alice, bob = await host.online(ALICE), await host.online(BOB, 2)
    await alice.committed(alice.send(BOB, b"one"))
    alice.abort()
    message = alice.send(BOB, b"two")
    await alice.committed(message, 5.0)
    await host.shows(bob, b"one", b"two")
    assert host.gateway.connections() == 3
    await host.reports(alice, Online, 2)


async def test_damage_from_the_gateway_drops_the_connection_once_and_dials_again(
    host: Host,
) -> None:
    alice = await host.online(ALICE)
    host.gateway.sockets[0].write(b"this is no frame of ours, whatever")
    await host.reports(alice, Online, 2)
    offline = [event for event in host.of(alice) if isinstance(event, Offline)]
    assert len(offline) == 1
    assert "bad magic" in offline[0].reason
    assert host.gateway.connections() == 2
    await alice.committed(alice.send(BOB, b"still here"), 5.0)


def test_half_a_frame_of_a_lost_connection_does_not_reach_the_next_one() -> None:
    link = LossyLink()
    link.connection_made()
    frame = encode_frame(Opcode.PONG, 0, 1, b"payload")
    assert link.receive(frame[:10]) == b""
    link.connection_made()
    assert link.receive(frame) == frame


async def test_offline_device_pulls_what_it_missed_by_the_login_barrier(host: Host) -> None:
    alice, bob = await host.online(ALICE), await host.online(BOB, 2)
    await bob.close()
    for body in (b"one", b"two", b"three"):
        await alice.committed(alice.send(BOB, body))
    await bob.connect(5.0)
    await host.shows(bob, b"one", b"two", b"three")
    shown = [event for event in host.of(bob) if isinstance(event, EntriesShown)]
    assert not any(event.pushed for event in shown)


async def test_refused_login_raises_the_code(host: Host) -> None:
    host.gateway.world.refuse_login = RequestError("expired", ErrorCode.AUTH_FAILED)
    with pytest.raises(RequestError) as caught:
        await host.client(ALICE).connect(5.0)
    assert caught.value.code is ErrorCode.AUTH_FAILED


async def test_kick_ends_the_client(host: Host) -> None:
    alice = await host.online(ALICE)
    host.gateway.world.desks[0].core.kick()
    host.gateway.flush()
    await host.reports(alice, Kicked)
    await host.reports(alice, Offline)
    assert alice.session.ended
    assert host.gateway.connections() == 1


async def test_refused_message_raises_its_code(host: Host) -> None:
    alice = await host.online(ALICE)
    message = alice.send(BOB, b"hello", custom_type="x" * 65)
    with pytest.raises(RequestError) as caught:
        await alice.committed(message, 5.0)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


async def test_port_without_a_gateway_times_out_and_leaves_no_task(host: Host) -> None:
    client = host.client(ALICE)
    client._driver.address = ("127.0.0.1", 1)
    with pytest.raises(TimeoutError):
        await client.connect(0.2)
    await client.close()
    assert not client.session.wants_dial


async def test_events_can_be_iterated_until_the_end(host: Host) -> None:
    alice, bob = await host.online(ALICE), await host.online(BOB, 2)
    seen: list[SessionEvent] = []

    async def listen() -> None:
        seen.extend([event async for event in bob.events()])

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    await alice.committed(alice.send(BOB, b"hello"))
    await host.shows(bob, b"hello")
    await bob.close()
    await asyncio.wait_for(listening, 5.0)
    assert isinstance(seen[0], EntriesShown)
    assert seen[-1] == Offline("stopped", final=True)


async def test_two_devices_of_one_user_are_online_together(host: Host) -> None:
    phone, laptop = await host.online(ALICE, 1), await host.online(ALICE, 5)
    bob = await host.online(BOB, 2)
    await phone.committed(phone.send(BOB, b"from the phone"))
    await bob.committed(bob.send(ALICE, b"answer"))
    await host.shows(laptop, b"from the phone", b"answer")
    await host.shows(phone, b"answer", b"from the phone")
