"""Traffic of pairs through a running stack, and the judgement of what every device saw.

The judge works from records: what was sent in which order, which coordinates each sender got, what each device shows.
It knows nothing of the system (Jepsen style).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from clients.client import Client
from clients.config import ClientConfig, Login
from clients.pending import PendingMessage
from gateway.tokens import AccessTokens, Identity
from ops.stack import Stack
from schemas.identifiers import direct_conversation_id

__all__ = ["NOTHING_WRONG", "TENANT", "Person", "Traffic", "login_of"]

TENANT = 7
NOTHING_WRONG = {"lost": 0, "duplicated": 0, "reordered": 0, "misdelivered": 0, "refused": 0}
"""What `Traffic.judge` finds in a sound run."""
_SETTLE_LIMIT_S = 90.0


def login_of(stack: Stack, user: int, device: int, tenant: int = TENANT) -> Login:
    """A login with a token of the stack's own key."""
    device_id = (user << 8 | device).to_bytes(16, "big")
    key = stack.settings.token_secret.get_secret_value().encode()
    identity = Identity(tenant, user, device_id, 1)
    return Login(tenant, user, device_id, AccessTokens(key).mint(identity, int(time.time()) + 3600))


@dataclass(slots=True)
class Person:
    """One user with several devices; the first one sends."""

    user: int
    devices: list[Client]
    sent: list[tuple[bytes, PendingMessage]] = field(default_factory=list)


class Traffic:
    """`pairs` pairs of people; the first person of each pair has two devices."""

    def __init__(self, stack: Stack, pairs: int, first_user: int = 1000) -> None:
        host, port = stack.addresses["gateway-0"].split(":")
        self._address = (host, int(port))
        self._stack = stack
        self._numbers = itertools.count()
        self.pairs = [
            (self._person(first_user + 2 * i, 2), self._person(first_user + 2 * i + 1, 1))
            for i in range(pairs)
        ]

    def _person(self, user: int, devices: int) -> Person:
        config = ClientConfig(pull_debounce_s=0.3)
        return Person(
            user,
            [
                Client(self._address, login_of(self._stack, user, d + 1), config)
                for d in range(devices)
            ],
        )

    @property
    def people(self) -> list[Person]:
        """Everybody."""
        return [person for pair in self.pairs for person in pair]

    @property
    def devices(self) -> list[Client]:
        """Every device of everybody."""
        return [device for person in self.people for device in person.devices]

    async def connect(self) -> None:
        """Log everybody in."""
        await asyncio.gather(*(device.connect() for device in self.devices))

    async def close(self) -> None:
        """Log everybody out."""
        await asyncio.gather(*(device.close() for device in self.devices))

    async def run(
        self,
        rate_per_s: int,
        seconds: float,
        during: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """Send at a steady rate while `during` does its damage; then wait until every message has its fate."""
        damage = asyncio.create_task(during()) if during is not None else None
        loop = asyncio.get_running_loop()
        start = loop.time()
        for due in range(int(rate_per_s * seconds)):
            await asyncio.sleep(max(0.0, start + due / rate_per_s - loop.time()))
            number = next(self._numbers)
            one, two = self.pairs[number % len(self.pairs)]
            sender, peer = (one, two) if number // len(self.pairs) % 2 == 0 else (two, one)
            body = b"%d:%d" % (sender.user, number)
            sender.sent.append((body, sender.devices[0].send(peer.user, body)))
        if damage is not None:
            await damage
        await self._until(lambda: all(m.settled for p in self.people for _, m in p.sent))

    async def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SETTLE_LIMIT_S
        while not done():
            assert time.monotonic() < deadline, "not settled in time"
            await asyncio.sleep(
                0.05
            )  # polling what clients hold; there is no single event to wait for

    def conversation(self, pair: int) -> bytes:
        """The conversation id of a pair."""
        one, two = self.pairs[pair]
        return direct_conversation_id(TENANT, one.user, two.user)

    async def judge(self, pairs: Iterable[int] | None = None) -> dict[str, int]:
        """Wait until the devices (of some pairs) show what was acknowledged, then count what is wrong; zero is right."""
        judged = [self.pairs[pair] for pair in (range(len(self.pairs)) if pairs is None else pairs)]
        wanted = {
            device: len(one.sent) + len(two.sent)
            for one, two in judged
            for device in (*one.devices, *two.devices)
        }

        def complete() -> bool:
            late = [
                device for device, count in wanted.items() if len(device.timeline.entries) < count
            ]
            for device in late:
                device.pull()
            return not late

        with suppress(AssertionError):  # the counts below say what is missing
            await self._until(complete)
        counts: Counter[str] = Counter()
        for one, two in judged:
            conversation = direct_conversation_id(TENANT, one.user, two.user)
            for device in (*one.devices, *two.devices):
                counts += _judge_device(device, conversation, one, two)
        names = ("lost", "duplicated", "reordered", "misdelivered", "refused")
        return {name: counts[name] for name in names}


def _judge_device(device: Client, conversation: bytes, one: Person, two: Person) -> Counter[str]:
    counts: Counter[str] = Counter()
    entries = device.timeline.conversation(conversation)
    counts["misdelivered"] += len(device.timeline.entries) - len(entries)
    bodies = [entry.decode()["event"]["body"] or b"" for entry in entries]
    seen = Counter(bodies)
    counts["duplicated"] += sum(n - 1 for n in seen.values())
    by_seq = {entry.conversation_seq: body for entry, body in zip(entries, bodies, strict=True)}
    order: dict[int, list[bytes]] = defaultdict(list)
    for body in bodies:
        order[int(body.split(b":")[0])].append(body)
    for person in (one, two):
        acknowledged = [(body, m) for body, m in person.sent if m.coordinates is not None]
        counts["refused"] += len(person.sent) - len(acknowledged)
        for body, message in acknowledged:
            assert message.coordinates is not None
            if seen[body] == 0 or by_seq.get(message.coordinates.conversation_seq) != body:
                counts["lost"] += 1
        sent_order = {body: at for at, (body, _) in enumerate(person.sent)}
        places = [sent_order[body] for body in order[person.user]]
        counts["reordered"] += sum(a > b for a, b in itertools.pairwise(places))
    return counts
