"""`offline`: messages stored for a device that is away, then the time from its dial to the last of them.

The messages are sent by one client and watched by a second device of the recipient, which is online: when that device has
shown them all, all are stored and visible, and the measured logins find every one of them. Each measured login is a new
device with a zero cursor, so each pulls everything (CUR-06, CUR-08).
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from bench.payload import body_of, index_in
from bench.probes import describe
from bench.target import Target
from clients.client import Client
from clients.config import ClientConfig, Login
from clients.events import Committed, EntriesShown, SessionEvent
from clients.timeline import Entry
from schemas.errors import QimError

__all__ = ["OfflineOptions", "OfflineReport", "findings", "run_offline"]

_STORE_TIMEOUT_S = 60.0
_LOGIN_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class OfflineOptions:
    """`repeats` logins are measured; `in_flight` messages wait for their ACK at most while they are stored."""

    messages: int = 2000
    body_bytes: int = 64
    repeats: int = 5
    in_flight: int = 200


class OfflineReport(TypedDict):
    """`messages_per_s` is the median login; `logins_per_s` are all of them in order, the first one cold."""

    messages: int
    messages_per_s: float
    logins_per_s: list[float]
    login_ms: list[float]
    missing: int
    duplicates: int
    order_breaks: int
    versions: dict[str, str]
    fsync: dict[str, str]


class Findings(TypedDict):
    """What one login showed against what was stored."""

    missing: int
    duplicates: int
    order_breaks: int


def findings(nonce: bytes, messages: int, entries: list[Entry]) -> Findings:
    """Judge the entries one login showed, in their order."""
    seen: set[int] = set()
    duplicates = order_breaks = highest = 0
    for entry in entries:
        index = index_in(nonce, entry.decode()["event"]["body"] or b"")
        if index is None:
            continue
        duplicates += index in seen
        seen.add(index)
        order_breaks += entry.conversation_seq <= highest
        highest = max(highest, entry.conversation_seq)
    return {
        "missing": messages - len(seen),
        "duplicates": duplicates,
        "order_breaks": order_breaks,
    }


async def _store(
    target: Target, options: OfflineOptions, nonce: bytes, sender: int, recipient: int
) -> None:
    """Send everything and return when another device of the recipient has shown it."""
    shown = asyncio.Event()
    free = asyncio.Semaphore(options.in_flight)
    count = 0

    def watch(event: SessionEvent) -> None:
        nonlocal count
        if isinstance(event, EntriesShown):
            count += len(event.entries)
            if count >= options.messages:
                shown.set()

    def acked(event: SessionEvent) -> None:
        if isinstance(event, Committed):
            free.release()

    watcher, client = _client(target, recipient), _client(target, sender)
    watcher.listen(watch)
    client.listen(acked)
    try:
        await watcher.connect(_LOGIN_TIMEOUT_S)
        await client.connect(_LOGIN_TIMEOUT_S)
        async with asyncio.timeout(_STORE_TIMEOUT_S):
            for index in range(options.messages):
                await free.acquire()
                client.send(recipient, body_of(nonce, index, options.body_bytes))
            await shown.wait()
    except TimeoutError:
        raise QimError(f"only {count} of {options.messages} messages were stored in time") from None
    finally:
        await asyncio.gather(watcher.close(), client.close())


def _client(target: Target, user: int) -> Client:
    device_id = secrets.token_bytes(16)
    login = Login(0, user, device_id, target.token(user, device_id))
    return Client(target.gateways[0], login, ClientConfig(keep_timeline=True))


async def run_offline(
    target: Target, options: OfflineOptions, say: Callable[[str], None]
) -> OfflineReport:
    """Store, then measure logins. Raises QimError when the messages could not be stored."""
    nonce, sender = secrets.token_bytes(16), secrets.randbits(61) + 1
    recipient = sender + 1
    await _store(target, options, nonce, sender, recipient)
    say(f"{options.messages} messages stored")
    rates: list[float] = []
    login_ms: list[float] = []
    found: list[Findings] = []
    for _ in range(options.repeats):
        client = _client(target, recipient)
        last_s = 0.0

        def note(event: SessionEvent) -> None:
            nonlocal last_s
            if isinstance(event, EntriesShown):
                last_s = time.perf_counter()

        client.listen(note)
        begun_s = time.perf_counter()
        try:
            await client.connect(_LOGIN_TIMEOUT_S)
            online_s = time.perf_counter()
        finally:
            await client.close()
        found.append(findings(nonce, options.messages, client.timeline.entries))
        rates.append(round(options.messages / max(last_s - begun_s, 1e-9), 1))
        login_ms.append(round((online_s - begun_s) * 1000.0, 2))
        say(f"login {login_ms[-1]} ms, {rates[-1]} messages/s")
    versions, fsync = await describe(target)
    return {
        "messages": options.messages,
        "messages_per_s": statistics.median(rates),
        "logins_per_s": rates,
        "login_ms": login_ms,
        "missing": max(f["missing"] for f in found),
        "duplicates": max(f["duplicates"] for f in found),
        "order_breaks": max(f["order_breaks"] for f in found),
        "versions": versions,
        "fsync": fsync,
    }
