"""What the store scripts cost: Redis CPU and memory a message, by page size, on a server of its own.

    python -m bench.micro_redis [--messages N] [--repeat N] [--config NAME=VALUE] [--json FILE]

`evalsha_us` is INFO commandstats (time inside the scripts), `redis_cpu_us` the server's whole CPU with reading, writing and
AOF, `client_cpu_us` that of the store in this process; all per message, or per entry for the mailbox. `bytes` is the growth
of used_memory. Two users' mailboxes belong to a message. Of several runs the one with the least Redis CPU counts: what
else the machine does can only add to it.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from ops.servers.ports import free_ports
from ops.servers.redis import RedisRole, RedisServer
from schemas.constants import MAILBOX_RETENTION_DAYS, SECONDS_PER_DAY
from schemas.entry import encode_entry_head
from schemas.identifiers import commit_bucket, direct_conversation_id, trace_id_of
from schemas.message import encode_message, encode_outbox_head
from schemas.watermarks import pack_uniform
from stores.leases import LeaseGrant, RedisShardLeases
from stores.mailbox import EntryWrite, ScanRequest, ScanResult, ShardAppend
from stores.messages import MarkRequest, ReserveRequest
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from stores.redis_messages import RedisMessageStore

__all__ = ["main"]

_APP: Final = "bench"
_BODY_BYTES: Final = 100
_USERS: Final = 1000
_PAIRS: Final = 200
_PAGES: Final = (1, 16, 64, 128)
_SCAN_ITEMS: Final = 500
Figures = dict[str, float]


class _Meter:
    """Reads the server's counters before and after a run."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._before: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    async def _read(self) -> tuple[float, float, float, float]:
        text: bytes = await self._link.command("INFO", "everything")
        info = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        evalsha = info.get("cmdstat_evalsha", "calls=0,usec=0")
        usec = float(dict(part.split("=") for part in evalsha.split(","))["usec"])
        cpu_us = (float(info["used_cpu_user"]) + float(info["used_cpu_sys"])) * 1e6
        return usec, cpu_us, time.process_time() * 1e6, float(info["used_memory"])

    async def start(self) -> None:
        self._before = await self._read()

    async def per(self, count: int) -> Figures:
        names = ("evalsha_us", "redis_cpu_us", "client_cpu_us", "bytes")
        after = await self._read()
        return {
            name: round((new - old) / count, 2)
            for name, new, old in zip(names, after, self._before, strict=True)
        }


def _request(rng: random.Random, message: int) -> ReserveRequest:
    pair = rng.randrange(_PAIRS) * 2 + 1
    sender, recipient = rng.sample((pair, pair + 1), 2)
    conversation_id = direct_conversation_id(0, sender, recipient)
    message_id = message.to_bytes(16, "big")
    now_ms = time.time_ns() // 1_000_000
    parts = encode_message(
        tenant=0,
        message_id=message_id,
        trace_id=trace_id_of(message),
        conversation_id=conversation_id,
        sender=sender,
        sender_device_id=secrets.token_bytes(16),
        client_message_id=(client_id := secrets.token_bytes(16)),
        committed_at_ms=now_ms,
        message_type=1,
        custom_type="",
        body=secrets.token_bytes(_BODY_BYTES),
        mentions=(),
        reply_to=None,
        member_count=2,
    )
    return ReserveRequest(
        tenant=0,
        sender=sender,
        client_message_id=client_id,
        conversation_id=conversation_id,
        bucket=commit_bucket(0, conversation_id),
        identity=b"QIMD" + secrets.token_bytes(32),
        message_id=message_id,
        last_activity_id=message_id,
        trace_id=trace_id_of(message),
        committed_at_ms=now_ms,
        record_head=parts.record_head,
        record_tail=parts.record_tail,
        outbox_meta=encode_outbox_head(
            0, message_id, sender, [sender, recipient], [0, 1], parts.event_bytes
        ),
    )


def _mark(request: ReserveRequest, offset: int) -> MarkRequest:
    return MarkRequest(
        request.tenant,
        request.sender,
        request.client_message_id,
        request.conversation_id,
        request.bucket,
        request.message_id,
        0,
        offset,
        request.committed_at_ms,
    )


async def _commit(link: RedisLink, messages: int, page: int, app: str) -> Figures:
    """Reserve and mark pages of `page` messages; figures per message."""
    store, meter, rng = RedisMessageStore([link], f"{app}-{page}"), _Meter(link), random.Random(1)
    pages = [[_request(rng, i + k) for k in range(page)] for i in range(0, messages, page)]
    marks = [[_mark(r, at) for at, r in enumerate(requests)] for requests in pages]
    await store.reserve_and_record([])
    await meter.start()
    for requests, done in zip(pages, marks, strict=True):
        for reserved in await store.reserve_and_record(requests):
            if isinstance(reserved, Exception):
                raise reserved
        for marked in await store.mark_committed(done):
            if isinstance(marked, Exception):
                raise marked
    return await meter.per(len(pages) * page)


def _entries(rng: random.Random, first: int, page: int) -> list[EntryWrite]:
    day = int(time.time()) // SECONDS_PER_DAY
    writes = []
    for offset in range(first, first + max(1, page // 2)):
        seq = 1 << 48 | offset
        common = secrets.token_bytes(8 + 16 + 16 + _BODY_BYTES + 20)
        for user in rng.sample(range(1, _USERS + 1), min(2, page)):
            member = encode_entry_head(seq, 0, secrets.token_bytes(8), 3, 0, None) + common
            writes.append(EntryWrite(0, user, offset, seq, day, member))
    return writes


async def _append(link: RedisLink, entries: int, page: int, name: str) -> Figures:
    """Append pages of `page` entries after every user has a mailbox; figures per entry."""
    app = f"{name}-{page}"
    store, meter, rng = RedisMailboxStore([link], app), _Meter(link), random.Random(1)
    grant = await RedisShardLeases([link], app).acquire(0, "bench", 3_600_000)
    assert isinstance(grant, LeaseGrant)  # the server is ours alone
    offset, w, pages = 0, None, []
    for size in [128] * 40 + [page] * (entries // page):
        writes = _entries(rng, offset, size)
        offset = writes[-1].log_offset + 1
        new_w = pack_uniform(offset - 1)
        pages.append(ShardAppend(0, grant.term, 1, w, new_w, 1, writes))
        w = new_w
    for at, append in enumerate(pages):
        if at == 40:  # noqa: PLR2004 - the warm-up above
            await meter.start()
        (outcome,) = await store.append_page([append])
        if outcome.code != "ok":
            raise RuntimeError(f"append refused: {outcome}")
    return await meter.per(entries // page * page)


async def _scan(link: RedisLink, app: str) -> Figures:
    """Read every mailbox that `_append` with pages of 128 filled; figures per entry."""
    store, meter = RedisMailboxStore([link], f"{app}-128"), _Meter(link)
    up_to, count = (1 << 48 | (1 << 40)), 0
    await meter.start()
    for user in range(1, _USERS + 1):
        (found,) = await store.range_scan(
            [ScanRequest(0, user, 0, (1,), 0, up_to, _SCAN_ITEMS, 1 << 20)]
        )
        if not isinstance(found, ScanResult):
            raise found
        count += len(found.entries)
    return await meter.per(count)


async def _best(run: Callable[[str], Awaitable[Figures]], repeat: int) -> Figures:
    found = [await run(f"{_APP}{number}") for number in range(repeat)]
    return min(found, key=lambda figures: figures["redis_cpu_us"])


async def _measure(
    folder: Path, messages: int, repeat: int, options: Sequence[str]
) -> dict[str, Any]:
    port, second = free_ports(2)
    commit = RedisServer("commit", RedisRole.COMMIT, port, folder / "commit")
    mailbox = RedisServer("mailbox", RedisRole.MAILBOX, second, folder / "mailbox")
    figures: dict[str, Any] = {}
    for server in (commit, mailbox):
        await server.start()
    # A measurement may be held up for long; only a server that is gone ends it.
    links = [RedisLink(server.url, timeout_s=600.0) for server in (commit, mailbox)]
    runs: list[tuple[str, Callable[[str], Awaitable[Figures]]]] = [
        *(
            (f"commit+mark, page of {page}", partial(_commit, links[0], messages, page))
            for page in _PAGES
        ),
        *(
            (f"append, page of {page}", partial(_append, links[1], messages * 2, page))
            for page in _PAGES
        ),
        ("scan, all entries of a user", partial(_scan, links[1])),
    ]
    try:
        for option in options:
            name, _, value = option.partition("=")
            for link in links:
                await link.command("CONFIG", "SET", name, value)
        for name, run in runs:
            figures[name] = await _best(run, repeat)
            print(f"{name:32}", figures[name], flush=True)
    finally:
        for link in links:
            await link.close()
        for server in (commit, mailbox):
            await server.stop()
    return figures


def main() -> None:
    """Measure and print; with --json also write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=6400)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--config", action="append", default=[], help="CONFIG SET name=value")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = uvloop.run(
            _measure(Path(folder), options.messages, options.repeat, options.config)
        )
    figures["retention_days"] = MAILBOX_RETENTION_DAYS
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
