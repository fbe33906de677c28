"""`lanes`: direct messages on a shard while a dispatch with very many recipients is expanded on it (ACC-M1).

The wide dispatch goes straight into the dispatch topic, with recipients in half of the lanes. Pairs of users in the other
lanes of the same shard write to each other meanwhile, through a gateway. Afterwards the logs tell when W of a lane covered
what: from the record of a direct message to the first watermark row that covers it, by the timestamps in both logs.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.latency import summarize_s
from bench.target import Target
from bench.wide import SHARD, TENANT, users_in, wide_dispatch
from clients.client import Client
from clients.config import ClientConfig, Login
from clients.events import EntriesShown, SessionEvent
from schemas.constants import LANE_COUNT
from schemas.identifiers import lane_of
from schemas.records import GROUP_DISPATCH, WATERMARK_ROW
from schemas.topics import WATERMARKS_TABLE, changelog_topic, dispatch_topic
from schemas.watermarks import unpack_w
from stores.mailbox import ScanRequest, ScanResult
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore

__all__ = ["LaneOptions", "run_lanes"]

_WIDE_LANES: Final = range(LANE_COUNT // 2)
_FREE_LANES: Final = range(LANE_COUNT // 2, LANE_COUNT)
_WAIT_S: Final = 120.0
_LOOK_S: Final = 0.01
_MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_CHECKED: Final = 200


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """`repeats` wide dispatches one after another, `rate_per_s` direct messages of `pairs` pairs meanwhile."""

    recipients: int = 100_000
    repeats: int = 3
    rate_per_s: float = 50.0
    pairs: int = 10
    quiet_s: float = 5.0


class _Logged(NamedTuple):
    offset: int
    at_ms: int
    recipients: tuple[int, ...]


class _Row(NamedTuple):
    at_ms: int
    marks: tuple[int, ...]


class _Pairs:
    """Direct traffic; `e2e_s` has (due moment, latency) of every message that arrived, `missing` the others."""

    def __init__(self, target: Target, options: LaneOptions, users: Sequence[int]) -> None:
        self._rate_per_s = options.rate_per_s
        self._users = users
        self._numbers = itertools.count()
        self.missing: dict[int, tuple[float, int]] = {}
        self.e2e_s: list[tuple[float, float]] = []
        self.sent = 0
        self.clients = [self._client(target, user) for user in users]

    def _client(self, target: Target, user: int) -> Client:
        device_id = secrets.token_bytes(16)
        login = Login(TENANT, user, device_id, target.token(user, device_id))

        def listen(event: SessionEvent) -> None:
            if isinstance(event, EntriesShown):
                now_s = time.monotonic()
                for entry in event.entries:
                    number = int(entry.decode()["event"]["body"] or b"-1")
                    due = self.missing.get(number)
                    if due is not None and due[1] == user:
                        del self.missing[number]
                        self.e2e_s.append((due[0], now_s - due[0]))

        config = ClientConfig(keep_timeline=False)
        return Client(target.gateways[0], login, config, on_event=listen)

    async def run(self, stop: asyncio.Event) -> None:
        """Send at an even rate until `stop`, then wait for what is on its way."""
        begin_s = time.monotonic()
        for index in itertools.count():
            due_s = begin_s + index / self._rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if stop.is_set():
                break
            at = index % len(self.clients)
            peer = self._users[at ^ 1]
            number = next(self._numbers)
            self.missing[number] = (due_s, peer)
            self.clients[at].send(peer, b"%d" % number)
            self.sent += 1
        limit_s = time.monotonic() + _WAIT_S
        while self.missing and time.monotonic() < limit_s:  # noqa: ASYNC110 - clients tell no event
            await asyncio.sleep(_LOOK_S)


class _Logs:
    """Reads the shard's dispatch log and its watermarks as they grow."""

    def __init__(self, target: Target) -> None:
        settings = target.settings
        self._broker = settings.broker
        self._dispatch = TopicPartition(dispatch_topic(settings.app_id), SHARD)
        self._rows = TopicPartition(changelog_topic(settings.app_id, WATERMARKS_TABLE), SHARD)
        self.ready = asyncio.Event()
        self.records: list[_Logged] = []
        self.rows: list[_Row] = []

    async def follow(self, done: asyncio.Event) -> None:
        """Read both from their present ends until `done`, and then what is left."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._broker,
            max_partition_fetch_bytes=_MAX_BATCH_BYTES,
            fetch_max_wait_ms=50,
        )
        await consumer.start()
        try:
            consumer.assign([self._dispatch, self._rows])
            await consumer.seek_to_end(self._dispatch, self._rows)
            await asyncio.gather(*map(consumer.position, (self._dispatch, self._rows)))
            self.ready.set()
            finished = False
            while not finished:
                finished = done.is_set()
                fetched = await consumer.getmany(timeout_ms=100)
                finished = finished and not fetched
                for tp, records in fetched.items():
                    for record in records:
                        self._take(tp, record)
        finally:
            await consumer.stop()

    def _take(self, tp: TopicPartition, record: Any) -> None:
        if tp == self._dispatch:
            recipients = tuple(GROUP_DISPATCH.decode(record.value)["recipients"])
            self.records.append(_Logged(record.offset, record.timestamp, recipients))
        else:
            marks = tuple(lane.w for lane in unpack_w(WATERMARK_ROW.decode(record.value)["w"]))
            self.rows.append(_Row(record.timestamp, marks))

    def covered_ms(self, logged: _Logged, lanes: Iterable[int]) -> int | None:
        """When W of all `lanes` covered a record."""
        lanes = tuple(lanes)
        for row in self.rows:
            if row.at_ms >= logged.at_ms and all(
                row.marks[lane] >= logged.offset for lane in lanes
            ):
                return row.at_ms
        return None


async def _inject(target: Target, key: bytes, value: bytes) -> int:
    settings = target.settings
    producer = AIOKafkaProducer(
        bootstrap_servers=settings.broker, acks="all", max_request_size=_MAX_BATCH_BYTES
    )
    await producer.start()
    try:
        topic = dispatch_topic(settings.app_id)
        sent = await producer.send_and_wait(topic, value, key=key, partition=SHARD)
        return int(sent.offset)
    finally:
        await producer.stop()


async def _without_entry(target: Target, users: Sequence[int], offset: int) -> int:
    """How many of some of the recipients have no entry of the wide dispatch."""
    settings = target.settings
    links = [RedisLink(url) for url in settings.mailbox_redis]
    store = RedisMailboxStore(links, settings.app_id)
    chosen = users[:: max(1, len(users) // _CHECKED)]
    scans = [
        ScanRequest(TENANT, user, SHARD, (1,), (1 << 48 | offset) - 1, 1 << 48 | offset, 4, 4096)
        for user in chosen
    ]
    try:
        results = await store.range_scan(scans)
    finally:
        for link in links:
            await link.close()
    return sum(not (isinstance(found, ScanResult) and found.entries) for found in results)


async def run_lanes(
    target: Target, options: LaneOptions, say: Callable[[str], None]
) -> dict[str, Any]:
    """Direct traffic, wide dispatches one after another, then the figures from both logs."""
    count = target.settings.mailbox_shard_count
    base = 1 << 24 | secrets.randbits(20)  # small ids: the recipient list fits into one record
    wide = users_in(count, _WIDE_LANES, options.recipients, base)
    free = users_in(count, _FREE_LANES, 2 * options.pairs, base)
    pairs, logs = _Pairs(target, options, free), _Logs(target)
    stop, done = asyncio.Event(), asyncio.Event()
    following = asyncio.create_task(logs.follow(done))
    await logs.ready.wait()
    await asyncio.gather(*(client.connect() for client in pairs.clients))
    traffic = asyncio.create_task(pairs.run(stop))
    try:
        await asyncio.sleep(options.quiet_s)
        windows, offsets = [], []
        for _ in range(options.repeats):
            key, value = wide_dispatch(count, wide)
            begin_s = time.monotonic()
            offset = await _inject(target, key, value)
            say(f"{len(wide)} recipients in a record of {len(value)} bytes at {offset}")
            while not any(min(row.marks) >= offset for row in logs.rows[-3:]):
                if time.monotonic() - begin_s > _WAIT_S:
                    break
                await asyncio.sleep(_LOOK_S)
            windows.append((begin_s, time.monotonic()))
            offsets.append(offset)
    finally:
        stop.set()
        await traffic
        await asyncio.sleep(1.0)
        done.set()
        await following
        await asyncio.gather(*(client.close() for client in pairs.clients))
    missing = sum([await _without_entry(target, wide, offset) for offset in offsets])
    return _report(options, pairs, logs, offsets, windows, missing)


def _report(
    options: LaneOptions,
    pairs: _Pairs,
    logs: _Logs,
    offsets: Sequence[int],
    windows: Sequence[tuple[float, float]],
    missing: int,
) -> dict[str, Any]:
    wide_s: list[float] = []
    advance_s: list[float] = []
    uncovered = 0
    wides = [record for record in logs.records if record.offset in set(offsets)]
    spans: list[tuple[int, int]] = []
    for record in wides:
        end_ms = logs.covered_ms(record, range(LANE_COUNT))
        if end_ms is None:
            uncovered += 1
            continue
        wide_s.append((end_ms - record.at_ms) / 1000)
        spans.append((record.at_ms, end_ms))
    for record in logs.records:
        if not any(begin <= record.at_ms <= end for begin, end in spans) or record in wides:
            continue
        lanes = {lane_of(TENANT, user) for user in record.recipients}
        covered_ms = logs.covered_ms(record, lanes)
        if covered_ms is None:
            uncovered += 1
        else:
            advance_s.append((covered_ms - record.at_ms) / 1000)
    during = [e2e for due, e2e in pairs.e2e_s if any(a <= due <= b for a, b in windows)]
    first = windows[0][0] if windows else 0.0
    quiet = [e2e for due, e2e in pairs.e2e_s if due < first]
    return {
        "recipients": options.recipients,
        "repeats": options.repeats,
        "rate_per_s": options.rate_per_s,
        "wide_dispatch_s": sorted(wide_s)[len(wide_s) // 2] if wide_s else None,
        "wide_dispatches_s": wide_s,
        "light_w_advance_ms": summarize_s(advance_s),
        "light_e2e_ms": summarize_s(during),
        "quiet_e2e_ms": summarize_s(quiet),
        "light_messages": len(advance_s),
        "sent": pairs.sent,
        "lost": len(pairs.missing),
        "uncovered": uncovered,
        "wide_missing": missing,
        "sound": not (len(pairs.missing) or uncovered or missing) and bool(advance_s),
    }
