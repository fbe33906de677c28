"""The server of bench/micro_gateway.py: a gateway's shell over stores and a commit step that cost nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Final

import uvloop

from gateway.connections import ConnectionRegistry
from gateway.cursor import CursorSigner
from gateway.hub import Hub
from gateway.limits import GatewayLimits
from gateway.login import LoginDesk
from gateway.mailbox import MailboxReader
from gateway.metrics import GatewayMetrics
from gateway.ports import CommitDone, CommitRequest, CommittedMessage
from gateway.pushes import PushRouter
from gateway.server import GatewayServer
from gateway.tokens import AccessTokens
from gateway.visibility import WatermarkView
from schemas.entry import encode_common, encode_entry_head
from schemas.errors import QimError
from schemas.records import PUSH_BATCH
from schemas.watermarks import pack_uniform
from stores.mailbox import MailboxHead, ScanRequest, ScanResult
from stores.memory_leases import MemoryShardLeases

__all__ = ["BASE", "BODY", "KEY", "OFFLINE", "serve_process"]

KEY: Final = b"k" * 32
BASE: Final = 1 << 48
BODY: Final = b"x" * 100
OFFLINE: Final = 20_000


def _common(seq: int) -> bytes:
    return encode_common(
        {
            "conversation_seq": seq.to_bytes(8, "big"),
            "message_id": seq.to_bytes(16, "big"),
            "conversation_id": b"c" * 16,
            "sender_id": 1,
            "created_at_ms": 1_700_000_000_000,
            "message_type": 1,
            "custom_type": "",
            "reply_to": None,
            "visibility_floor_conversation_seq": None,
            "body": BODY,
        }
    )


class _InstantCommitter:
    """Completes everything that was submitted in one loop pass at its end, as a page."""

    has_capacity = True

    def __init__(self) -> None:
        self._waiting: list[CommitDone] = []
        self._number = 0

    def submit(self, request: CommitRequest, done: CommitDone) -> None:
        del request
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._finish)
        self._waiting.append(done)

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            self._number += 1
            raw = self._number.to_bytes(16, "big")
            done(CommittedMessage(raw, self._number, raw, 1_700_000_000_000, raw))

    async def start(self) -> None:
        """Nothing to claim."""

    async def stop(self) -> None:
        """Nothing to release."""


class _FullMailbox:
    """The same offline mailbox for everybody."""

    def __init__(self) -> None:
        head = partial(encode_entry_head, event_type=0, event_id=bytes(8), flags=1, mention_type=0)
        self._entries = [
            head(BASE + n, client_message_id=None) + _common(n + 1) for n in range(OFFLINE)
        ]

    async def heads(self, scans: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
        return [MailboxHead(0, OFFLINE) for _ in scans]

    async def range_scan(self, scans: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
        return [self._scan(scan) for scan in scans]

    def _scan(self, scan: ScanRequest) -> ScanResult:
        first = max(0, scan.after_seq - BASE + 1)
        last = min(first + scan.max_items, scan.up_to_seq - BASE + 1)
        more = last <= scan.up_to_seq - BASE
        covered = BASE + last - 1 if more else scan.up_to_seq
        return ScanResult(self._entries[first:last], covered, more, 0)


async def _serve(control: Connection) -> None:
    """Serve until told to stop; commands are `cpu` and `push N`."""
    limits, view, registry = GatewayLimits(), WatermarkView(1), ConnectionRegistry(10_000)
    row = {"lease_term": 1, "epoch": 1, "base_epoch": 1, "page_number": 1}
    view.shards[0].update({**row, "w": pack_uniform(OFFLINE - 1)})  # type: ignore[typeddict-item]
    store, signer, router = (
        _FullMailbox(),
        CursorSigner({1: KEY}),
        PushRouter(view, registry, 1000),
    )
    reader = MailboxReader(store, view, signer, limits)
    desk = LoginDesk(
        boundaries=MemoryShardLeases().boundaries,
        tokens=AccessTokens(KEY),
        signer=signer,
        registry=registry,
        store=store,
        view=view,
        limits=limits,
        now_s=time.time,
    )
    hub = Hub(
        limits=limits,
        committer=_InstantCommitter(),
        desk=desk,
        reader=reader,
        registry=registry,
        metrics=GatewayMetrics(),
    )
    server = GatewayServer(hub)
    reader.start()
    desk.start()
    control.send((await server.start("127.0.0.1", 0))[1])
    commands: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_reader(control.fileno(), lambda: commands.put_nowait(control.recv()))
    while (command := await commands.get()) != "stop":
        if command.startswith("push"):
            await _push(int(command.split()[1]), view, router, registry)
        control.send(time.process_time())
    loop.remove_reader(control.fileno())
    await desk.stop()
    await reader.stop()
    await server.drain()


async def _push(
    count: int, view: WatermarkView, router: PushRouter, registry: ConnectionRegistry
) -> None:
    """Route `count` push records as the follower does, 16 a pass, from their bytes."""
    users = [client.identity.user for client in registry]
    records = []
    for n in range(count):
        seq = BASE + OFFLINE + n
        recipient = {
            "user_id": users[n % len(users)],
            "entry_heads": [encode_entry_head(seq, 0, bytes(8), 1, 0, None)],
        }
        records.append(
            PUSH_BATCH.encode(
                {
                    "tenant_id": bytes(16),
                    "mailbox_shard": 0,
                    "mailbox_seq": seq,
                    "origin_device_id": b"o" * 16,
                    "sender_id": 1,
                    "common_encoded_body": _common(n),
                    "recipients": [recipient],  # type: ignore[list-item]
                }
            )
        )
    row = {"lease_term": 1, "epoch": 1, "base_epoch": 1, "page_number": 1}
    view.shards[0].update({**row, "w": pack_uniform(OFFLINE + count)})  # type: ignore[typeddict-item]
    started = time.process_time()
    for at in range(0, count, 16):
        for record in records[at : at + 16]:
            router.offer(PUSH_BATCH.decode(record))
        for client, entries in router.take().items():
            client.push(entries)
        await asyncio.sleep(0.002)
    print(f"push: {(time.process_time() - started) / count * 1e6:.1f} us a pushed event, 16 a pass")


def serve_process(control: Connection) -> None:
    """Serve on a free port, which is sent first; then obey `cpu`, `push N` and `stop`."""
    uvloop.run(_serve(control))
