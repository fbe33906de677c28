"""The scripted conversation of `make demo`: two people, three devices, every step checked against the one before.

It needs only a gateway's address and somebody who signs access tokens, so a test plays it without a stack. A step that
does not come out as written raises `Mismatch` with the reason; nothing is repaired and nothing is skipped.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from clients.client import Client
from clients.config import ClientConfig, Login
from clients.events import EntriesShown, Online, SessionEvent
from clients.faults import LossyLink
from clients.pending import Coordinates, PendingMessage
from clients.timeline import Entry
from schemas.frames import Opcode

__all__ = ["Mismatch", "Row", "TokenOf", "play"]

TokenOf = Callable[[int, bytes], str]
"""(user, device_id) -> access token."""

ALICE: Final = 1001
BOB: Final = 1002
_STEP_S: Final = 20.0
"""Longest wait for one step. A healthy step takes milliseconds; the lost ACK takes the 3 s of GW-09."""


class Mismatch(Exception):
    """A step did not come out as the script says; the text says how."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the timeline. Sequences are None where the step has none; latency is in milliseconds."""

    who: str
    what: str
    message_id: bytes | None = None
    conversation_seq: int | None = None
    mailbox_seq: int | None = None
    latency_ms: float | None = None


@dataclass(slots=True)
class _Seen:
    entry: Entry
    at_s: float
    pushed: bool

    @property
    def own(self) -> bool:
        return self.entry.client_message_id is not None


@dataclass(slots=True)
class _Device:
    """A client and what it has shown, by body; bodies of the script are all different."""

    name: str
    client: Client
    seen: dict[bytes, _Seen] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    went_online_after: int = 0

    def note(self, event: SessionEvent) -> None:
        """Listen to the client."""
        if isinstance(event, EntriesShown):
            for entry in event.entries:
                body = entry.decode()["event"]["body"] or b""
                self.order.append(body)
                self.seen.setdefault(body, _Seen(entry, time.perf_counter(), event.pushed))
        elif isinstance(event, Online):
            self.went_online_after = len(self.order)
        self.news.set()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, looking again at every event."""
        try:
            async with asyncio.timeout(_STEP_S):
                while not holds():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            raise Mismatch(f"{self.name}: {what}: not within {_STEP_S:.0f} s") from None


class _Script:
    def __init__(
        self,
        address: tuple[str, int],
        token_of: TokenOf,
        show: Callable[[Row], None],
        config: ClientConfig,
    ) -> None:
        self._address, self._token_of, self._show, self._config = address, token_of, show, config
        self._lost = asyncio.Event()
        self._link = LossyLink(lambda _message: self._lost.set())
        self._devices: list[_Device] = []
        self.alice = self._device("alice/phone", ALICE, b"alice-phone")
        self.bob = self._device("bob/phone", BOB, b"bob-phone")
        self.laptop = self._device("alice/laptop", ALICE, b"alice-laptop")
        self._sent: dict[bytes, tuple[Coordinates, float]] = {}

    def _device(self, name: str, user: int, label: bytes) -> _Device:
        device_id = label.ljust(16, b".")
        login = Login(0, user, device_id, self._token_of(user, device_id))
        link = self._link if name == "alice/phone" else None
        device = _Device(name, Client(self._address, login, self._config, link=link))
        device.client.listen(device.note)
        self._devices.append(device)
        return device

    # --- the steps --------------------------------------------------------------------------------------------
    async def play(self) -> None:
        """Play everything; raises Mismatch."""
        await self._log_in(self.alice)
        await self._log_in(self.bob)
        await self._say(self.alice, b"Hi Bob, are you there?", to=BOB, hears=[self.bob])
        await self._say(self.bob, b"Yes, just arrived.", to=ALICE, hears=[self.alice])
        await self._absence()
        await self._second_device()
        await self._lost_ack()
        await self._everything_once()

    async def close(self) -> None:
        """Close every client."""
        for device in self._devices:
            await device.client.close()

    async def _log_in(self, device: _Device) -> float:
        begun_s = time.perf_counter()
        try:
            await device.client.connect(_STEP_S)
        except TimeoutError:
            raise Mismatch(f"{device.name}: no login within {_STEP_S:.0f} s") from None
        self._show(Row(device.name, "logged in", latency_ms=_since_ms(begun_s)))
        return begun_s

    async def _say(
        self, device: _Device, body: bytes, *, to: int, hears: Sequence[_Device] = ()
    ) -> None:
        begun_s = time.perf_counter()
        coordinates = await self._committed(device, device.client.send(to, body))
        self._sent[body] = (coordinates, begun_s)
        self._show(
            Row(
                device.name,
                f"sent {_quote(body)}",
                coordinates.message_id,
                coordinates.conversation_seq,
                latency_ms=_since_ms(begun_s),
            )
        )
        for other in hears:
            await self._hears(other, body, pushed=True, since_s=begun_s)

    async def _hears(self, device: _Device, body: bytes, *, pushed: bool, since_s: float) -> None:
        way = "push" if pushed else "pull"
        await device.until(lambda: body in device.seen, f"{_quote(body)} by {way}")
        seen = device.seen[body]
        entry, (coordinates, _) = seen.entry, self._sent[body]
        self._show(
            Row(
                device.name,
                f"{way} {_quote(body)}",
                entry.message_id,
                entry.conversation_seq,
                entry.mailbox_seq,
                (seen.at_s - since_s) * 1000.0,
            )
        )
        if seen.pushed is not pushed:
            raise Mismatch(f"{device.name}: {_quote(body)} did not come by {way}")
        if (entry.message_id, entry.conversation_seq) != coordinates[:2]:
            raise Mismatch(f"{device.name}: {_quote(body)} has other coordinates than its ACK")

    async def _committed(self, device: _Device, message: PendingMessage) -> Coordinates:
        try:
            return await device.client.committed(message, _STEP_S)
        except TimeoutError:
            raise Mismatch(f"{device.name}: no SEND_ACK within {_STEP_S:.0f} s") from None

    async def _absence(self) -> None:
        """Bob is away, Alice sends three more, Bob logs in and finds them before he is online (CUR-06, CUR-07)."""
        await self.bob.client.close()
        self._show(Row(self.bob.name, "went offline"))
        missed = [b"Then let us meet at nine.", b"In front of the station.", b"Bring the map."]
        for body in missed:
            await self._say(self.alice, body, to=BOB)
        await self._stored(BOB, missed)
        before = len(self.bob.order)
        begun_s = await self._log_in(self.bob)
        for body in missed:
            await self._hears(self.bob, body, pushed=False, since_s=begun_s)
        came = self.bob.order[before : self.bob.went_online_after]
        if [body for body in came if not self.bob.seen[body].own] != missed:
            raise Mismatch("bob/phone: the login barrier did not bring exactly the missed messages")

    async def _stored(self, user: int, bodies: Iterable[bytes]) -> None:
        """Return when a user's mailbox shows `bodies`; another device of theirs looks, and leaves again.

        A device that came at once would be some milliseconds ahead of the watermark and get the rest by push.
        """
        looker = self._device("looker", user, b"looker")
        self._devices.remove(looker)
        try:
            await looker.client.connect(_STEP_S)
            await looker.until(lambda: set(looker.seen) >= set(bodies), "the stored messages")
        finally:
            await looker.client.close()

    async def _second_device(self) -> None:
        """Alice's laptop has never been online: it pulls the whole conversation, her own messages included (EVT-11)."""
        await self._stored(ALICE, self._sent)
        begun_s = await self._log_in(self.laptop)
        for body in self._sent:
            await self._hears(self.laptop, body, pushed=False, since_s=begun_s)

    async def _lost_ack(self) -> None:
        """The SEND_ACK is lost on its way; the retry under the same client_message_id changes nothing (COM-04, GW-09)."""
        # Up to date first: a pull that is due anyway would settle the message before the retry does.
        self.alice.client.pull()
        await self.alice.until(lambda: set(self.alice.seen) >= set(self._sent), "its own messages")
        body, begun_s = b"Did you get the address?", time.perf_counter()
        with self._link.losing(Opcode.SEND_ACK):
            message = self.alice.client.send(BOB, body)
            try:
                await asyncio.wait_for(self._lost.wait(), _STEP_S)
            except TimeoutError:
                raise Mismatch("alice/phone: no SEND_ACK came that could be lost") from None
        self._show(Row(self.alice.name, f"sent {_quote(body)}, its SEND_ACK was lost"))
        coordinates = await self._committed(self.alice, message)
        self._sent[body] = (coordinates, begun_s)
        how = f"attempt {message.attempts}, settled by {coordinates.found_by.name}"
        self._row_of(coordinates, how, begun_s)
        await self._hears(self.bob, body, pushed=True, since_s=begun_s)
        await self._hears(self.laptop, body, pushed=True, since_s=begun_s)
        if message.attempts < 2:  # noqa: PLR2004 - the first send and its retry
            raise Mismatch("alice/phone: the message without an ACK was not sent again")
        again_s = time.perf_counter()
        self.alice.client.resend(message)
        again = await self._committed(self.alice, message)
        self._row_of(again, "sent once more, ACK of a duplicate", again_s)
        if again[:3] != coordinates[:3] or not again.duplicate:
            raise Mismatch("alice/phone: the repeated message got other coordinates")

    def _row_of(self, coordinates: Coordinates, what: str, since_s: float) -> None:
        self._show(
            Row(
                self.alice.name,
                what,
                coordinates.message_id,
                coordinates.conversation_seq,
                latency_ms=_since_ms(since_s),
            )
        )

    async def _everything_once(self) -> None:
        """Every device ends with the same conversation: each message once, in order, at one mailbox position."""
        expected = list(self._sent)
        self.alice.client.pull()
        for device in self._devices:
            await device.until(lambda d=device: set(d.seen) >= set(expected), "the conversation")  # type: ignore[misc]
            if len(device.order) != len(expected):
                raise Mismatch(f"{device.name}: {len(device.order)} entries for {len(expected)}")
            entries = sorted((s.entry for s in device.seen.values()), key=_conversation_seq)
            bodies = [entry.decode()["event"]["body"] for entry in entries]
            if bodies != expected:
                raise Mismatch(f"{device.name}: the conversation is in another order")
            positions = [entry.mailbox_seq for entry in entries]
            if positions != sorted(set(positions)):
                raise Mismatch(f"{device.name}: mailbox positions do not follow the conversation")
        phone, laptop = self.alice.seen, self.laptop.seen
        if any(phone[body].entry != laptop[body].entry for body in expected):
            raise Mismatch("alice's two devices hold different entries")


def _conversation_seq(entry: Entry) -> int:
    return entry.conversation_seq


def _since_ms(begun_s: float) -> float:
    return (time.perf_counter() - begun_s) * 1000.0


def _quote(body: bytes) -> str:
    return f'"{body.decode()}"'


async def play(
    address: tuple[str, int],
    token_of: TokenOf,
    show: Callable[[Row], None],
    config: ClientConfig | None = None,
) -> None:
    """Play the conversation against a gateway whose mailboxes of both users are empty; each Row as it happens.

    Raises Mismatch where something is not as the script says, RequestError where the gateway refuses.
    """
    script = _Script(address, token_of, show, config or ClientConfig())
    try:
        await script.play()
    finally:
        await script.close()
