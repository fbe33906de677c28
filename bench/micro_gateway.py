"""What the gateway's shell costs: server CPU a SEND (frame in, ack out) and a pushed event, and the speed of an offline pull.

    python -m bench.micro_gateway [--connections 100] [--rate 2000] [--seconds 5]

The server runs in a process of its own with stores that cost nothing, so that only sockets, frames, checks and codecs are
measured; its CPU is read by itself. Sends are paced evenly over all connections: mostly one message a loop pass, the expensive
case.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
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
from gateway.tokens import AccessTokens, Identity
from gateway.visibility import WatermarkView
from schemas.entry import encode_common, encode_entry_head
from schemas.errors import QimError
from schemas.frames import FrameDecoder, Opcode, Stream, encode_slices
from schemas.identifiers import direct_conversation_id
from schemas.records import PUSH_BATCH
from schemas.watermarks import pack_uniform
from schemas.wire import AUTH, AUTH_OK, MAILBOX_BATCH, PULL_MAILBOX, SEND_MESSAGE, SYNC_COMPLETE
from stores.mailbox import MailboxHead, ScanRequest, ScanResult

__all__ = ["main"]

_KEY: Final = b"k" * 32
_BASE: Final = 1 << 48
_BODY: Final = b"x" * 100
_OFFLINE: Final = 20_000


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
            "body": _BODY,
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
            head(_BASE + n, client_message_id=None) + _common(n + 1) for n in range(_OFFLINE)
        ]

    async def heads(self, scans: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
        return [MailboxHead(0, _OFFLINE) for _ in scans]

    async def range_scan(self, scans: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
        return [self._scan(scan) for scan in scans]

    def _scan(self, scan: ScanRequest) -> ScanResult:
        first = max(0, scan.after_seq - _BASE + 1)
        last = min(first + scan.max_items, scan.up_to_seq - _BASE + 1)
        more = last <= scan.up_to_seq - _BASE
        covered = _BASE + last - 1 if more else scan.up_to_seq
        return ScanResult(self._entries[first:last], covered, more, 0)


async def _serve(control: Connection) -> None:
    """Serve until told to stop; commands are `cpu` and `push N`."""
    limits, view, registry = GatewayLimits(), WatermarkView(1), ConnectionRegistry(10_000)
    row = {"lease_term": 1, "epoch": 1, "base_epoch": 1, "page_number": 1}
    view.shards[0].update({**row, "w": pack_uniform(_OFFLINE - 1)})  # type: ignore[typeddict-item]
    store, signer, router = (
        _FullMailbox(),
        CursorSigner({1: _KEY}),
        PushRouter(view, registry, 1000),
    )
    reader = MailboxReader(store, view, signer, limits)
    desk = LoginDesk(
        tokens=AccessTokens(_KEY),
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
        seq = _BASE + _OFFLINE + n
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
    view.shards[0].update({**row, "w": pack_uniform(_OFFLINE + count)})  # type: ignore[typeddict-item]
    started = time.process_time()
    for at in range(0, count, 16):
        for record in records[at : at + 16]:
            router.offer(PUSH_BATCH.decode(record))
        for client, entries in router.take().items():
            client.push(entries)
        await asyncio.sleep(0.002)
    print(f"push: {(time.process_time() - started) / count * 1e6:.1f} us a pushed event, 16 a pass")


def _serve_process(control: Connection) -> None:
    uvloop.run(_serve(control))


class _Client(asyncio.Protocol):
    """Counts answers; every message is built before the clock starts."""

    def __init__(self) -> None:
        self.decoder = FrameDecoder()
        self.transport: asyncio.Transport | None = None
        self.answers = 0
        self.entries = 0
        self.waiting: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self.decoder.feed(data):
            self.answers += 1
            if self.waiting is not None and not self.waiting.done():
                self.waiting.set_result(message.payload)

    def write(self, opcode: int, payload: bytes, stream: int = Stream.CONTROL) -> None:
        assert self.transport is not None
        self.transport.write(b"".join(encode_slices(opcode, stream, 1, payload)))

    async def ask(self, opcode: int, payload: bytes) -> bytes:
        self.waiting = asyncio.get_running_loop().create_future()
        self.write(opcode, payload)
        return await self.waiting


async def _log_in(port: int, user: int) -> _Client:
    _, client = await asyncio.get_running_loop().create_connection(_Client, "127.0.0.1", port)
    device = user.to_bytes(16, "big")
    token = AccessTokens(_KEY).mint(Identity(0, user, device, 1), int(time.time()) + 3600)
    auth = {
        "access_token": token,
        "device_id": device,
        "cursor_kind": 1,
        "cursor": b"",
        "foreground": True,
    }
    ok = AUTH_OK.decode(await client.ask(Opcode.AUTH, AUTH.encode(auth)))  # type: ignore[arg-type]
    done = SYNC_COMPLETE.encode({"sync_to_seq": ok["sync_to_seq"]})
    await client.ask(Opcode.SYNC_COMPLETE, done)
    return client


def _message(user: int, peer: int, number: int) -> bytes:
    return SEND_MESSAGE.encode(
        {
            "client_message_id": user.to_bytes(8, "big") + number.to_bytes(8, "big"),
            "conversation_id": direct_conversation_id(0, user, peer),
            "recipient_user_id": peer,
            "message_type": 1,
            "custom_type": "",
            "body": _BODY,
            "mentions": [],
            "reply_to": None,
        }
    )


async def _measure(
    control: Connection, port: int, connections: int, rate: int, seconds: float
) -> None:
    def cpu(command: str = "cpu") -> float:
        control.send(command)
        used: float = control.recv()
        return used

    loop = asyncio.get_running_loop()
    users = range(1, connections + 1)
    clients = [await _log_in(port, user) for user in users]
    count = int(rate * seconds)
    frames = [
        b"".join(
            encode_slices(
                Opcode.SEND_MESSAGE,
                Stream.REALTIME,
                n,
                _message(n % connections + 1, 1 + (n + 1) % connections, n),
            )
        )
        for n in range(count)
    ]
    idle = cpu()
    await asyncio.sleep(1)
    idle_per_s = cpu() - idle
    before, started = cpu(), loop.time()
    for n, frame in enumerate(frames):
        due = started + n / rate
        while (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        transport = clients[n % connections].transport
        assert transport is not None
        transport.write(frame)
    while sum(client.answers for client in clients) < count + 2 * connections:
        await asyncio.sleep(0.01)
    used = cpu() - before - idle_per_s * (loop.time() - started)
    print(
        f"send: {used / count * 1e6:.1f} us of server CPU a SEND at {rate}/s, {connections} connections"
    )
    await asyncio.to_thread(cpu, f"push {count}")
    await _pull(port)
    control.send("stop")


async def _pull(port: int) -> None:
    client = await _log_in(port, 1_000_000)
    started, after, up_to, got = time.monotonic(), 0, _BASE + _OFFLINE - 1, 0
    while after < up_to:
        request = {"after_seq": after, "up_to_seq": up_to, "max_items": 500, "max_bytes": 0}
        payload = await client.ask(Opcode.PULL_MAILBOX, PULL_MAILBOX.encode(request))  # type: ignore[arg-type]
        batch = MAILBOX_BATCH.decode(payload)
        got, after = got + len(batch["entries"]), batch["covered_through_seq"]
    print(
        f"pull: {got / (time.monotonic() - started):,.0f} messages/s to one client, one request in flight"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run all three; prints one line each."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro_gateway")
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args(argv)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve_process, args=(theirs,))
    server.start()
    print(f"server process {server.pid}")
    uvloop.run(_measure(ours, ours.recv(), options.connections, options.rate, options.seconds))
    server.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
