"""The load generator: pairs of clients that write to each other on an open-loop schedule, and the record of what they saw.

It holds no protocol state of its own: connections, retries, dedup and cursors are the client core's (LOAD-01). Users, devices
and bodies are new for each run, so no run meets the client_message_ids of another (LOAD-03, REG-38). While it runs, an event
costs one list append; everything is judged afterwards.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bench.judge import Arrival, Sent, Verdict, judge
from bench.payload import body_of, index_in
from bench.schedule import OpenLoopSchedule, pair_turn
from clients.client import Client
from clients.config import ClientConfig, Login
from clients.events import Committed, EntriesShown, Failed, LoginRefused, SessionEvent
from clients.pending import PendingMessage
from clients.timeline import Entry

__all__ = ["LoadOptions", "PairLoad", "Run"]

_TICK_S: Final = 0.001
"""The generator looks at its schedule this often. Longer: bursts. Shorter: wake-ups that send nothing."""

_LOGINS_AT_ONCE: Final = 20
_LOGIN_TIMEOUT_S: Final = 60.0
_DRAIN_LOOK_S: Final = 0.02

TokenOf = Callable[[int, bytes], str]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Shape of the load. Times in seconds."""

    pairs: int = 50
    body_bytes: int = 64
    drain_s: float = 10.0
    pull_debounce_s: float = 1.0


@dataclass(slots=True)
class Run:
    """The record of one schedule.

    `acked_s[i]` is when message i got its coordinates, -1.0 for never; `late_s[i]` is how long after its due moment it was
    handed to its client.
    """

    nonce: bytes
    schedule: OpenLoopSchedule
    acked_s: list[float]
    late_s: list[float] = field(default_factory=list)
    failed: int = 0
    begun_s: float = 0.0
    sent_s: float = 0.0  # when the last message was handed to its client
    ended_s: float = 0.0


@dataclass(slots=True)
class _Peer:
    client: Client
    user: int
    shown: list[tuple[float, Entry, bool]] = field(default_factory=list)


class PairLoad:
    """`2 * pairs` logged-in clients; `run` offers one schedule after another to them."""

    def __init__(
        self, gateways: tuple[tuple[str, int], ...], token_of: TokenOf, options: LoadOptions
    ) -> None:
        self.options = options
        self._config = ClientConfig(pull_debounce_s=options.pull_debounce_s, keep_timeline=False)
        base = secrets.randbits(61) + 1
        self._peers = [
            self._peer(number, base + number, gateways[number % len(gateways)], token_of)
            for number in range(2 * options.pairs)
        ]
        self._run: Run | None = None
        self._received = 0  # entries of others' messages, shown by any client
        self.refused: list[str] = []

    def _peer(self, number: int, user: int, address: tuple[str, int], token_of: TokenOf) -> _Peer:
        device_id = secrets.token_bytes(16)
        login = Login(0, user, device_id, token_of(user, device_id))
        peer = _Peer(Client(address, login, self._config), user)
        shown, now = peer.shown, time.perf_counter

        def note(event: SessionEvent) -> None:
            if isinstance(event, EntriesShown):
                at_s = now()
                for entry in event.entries:
                    shown.append((at_s, entry, event.pushed))
                    if entry.client_message_id is None:
                        self._received += 1
            elif isinstance(event, Committed):
                self._acked(event.message, now())
            elif isinstance(event, Failed) and self._run is not None:
                self._run.failed += 1
            elif isinstance(event, LoginRefused):
                self.refused.append(f"client {number}: {event.code} {event.detail}")

        peer.client.listen(note)
        return peer

    def _acked(self, message: PendingMessage, at_s: float) -> None:
        run = self._run
        tag = message.tag
        if run is not None and isinstance(tag, tuple) and tag[0] is run:
            run.acked_s[tag[1]] = at_s

    @property
    def users(self) -> list[int]:
        """The user of each client, by the client's number."""
        return [peer.user for peer in self._peers]

    async def log_in(self) -> None:
        """Log every client in; raises what `Client.connect` raises."""
        peers = iter(self._peers)

        async def some() -> None:
            for peer in peers:
                await peer.client.connect(_LOGIN_TIMEOUT_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(_LOGINS_AT_ONCE):
                group.create_task(some())

    async def close(self) -> None:
        """Close every client."""
        await asyncio.gather(*(peer.client.close() for peer in self._peers))

    async def run(self, rate_per_s: float, seconds: float) -> Run:
        """Offer `rate_per_s` for `seconds`, then wait until all of it has arrived, at most `drain_s`."""
        begin_s = time.perf_counter() + _TICK_S
        schedule = OpenLoopSchedule.for_seconds(rate_per_s, seconds, begin_s)
        run = Run(secrets.token_bytes(16), schedule, [-1.0] * schedule.count, begun_s=begin_s)
        self._run = run
        goal = self._received + schedule.count
        while not schedule.finished:
            now_s = time.perf_counter()
            for index in schedule.take_due(now_s):
                run.late_s.append(now_s - schedule.due_at(index))
                self._send(run, index)
            await asyncio.sleep(_TICK_S)
        run.sent_s = time.perf_counter()
        limit_s = run.sent_s + self.options.drain_s
        while self._received < goal or -1.0 in run.acked_s:
            if time.perf_counter() > limit_s:
                break
            await asyncio.sleep(_DRAIN_LOOK_S)
        run.ended_s = time.perf_counter()
        return run

    def _send(self, run: Run, index: int) -> None:
        sender, recipient = pair_turn(index, self.options.pairs)
        body = body_of(run.nonce, index, self.options.body_bytes)
        self._peers[sender].client.send(self._peers[recipient].user, body, tag=(run, index))

    def judge(self, run: Run) -> Verdict:
        """Judge a finished run by what every client has shown of it."""
        schedule = run.schedule
        sent = [
            Sent(
                *pair_turn(index, self.options.pairs),
                schedule.due_at(index),
                acked_s if acked_s >= 0 else None,
            )
            for index, acked_s in enumerate(run.acked_s)
        ]
        arrivals: list[Arrival] = []
        for number, peer in enumerate(self._peers):
            for at_s, entry, pushed in peer.shown:
                body = entry.decode()["event"]["body"]
                index = None if body is None else index_in(run.nonce, body)
                if index is not None:
                    place = entry.conversation_id, entry.conversation_seq
                    arrivals.append(Arrival(number, index, *place, at_s, pushed))
        return judge(sent, arrivals)

    def forget(self) -> None:
        """Drop the record of everything shown so far."""
        for peer in self._peers:
            peer.shown.clear()
