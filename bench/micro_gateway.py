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
from multiprocessing.connection import Connection
from typing import cast

import uvloop

from bench.micro_gateway_server import BASE, BODY, KEY, OFFLINE, serve_process
from gateway.tokens import AccessTokens, Identity
from schemas.frames import FrameDecoder, Opcode, Stream, encode_slices
from schemas.identifiers import direct_conversation_id
from schemas.wire import AUTH, AUTH_OK, MAILBOX_BATCH, PULL_MAILBOX, SEND_MESSAGE, SYNC_COMPLETE

__all__ = ["main"]


class _Client(asyncio.Protocol):
    """Counts answers; every message is built before the clock starts."""

    def __init__(self) -> None:
        self.decoder = FrameDecoder()
        self.transport: asyncio.Transport | None = None
        self.awaited = 0
        self.answered = asyncio.Event()
        self.waiting: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        for message in self.decoder.feed(data):
            self.awaited -= 1
            if self.awaited == 0:
                self.answered.set()
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
    token = AccessTokens(KEY).mint(Identity(0, user, device, 1), int(time.time()) + 3600)
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
            "body": BODY,
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
    count = int(rate * seconds) // connections * connections
    for client in clients:
        client.awaited = count // connections
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
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        transport = clients[n % connections].transport
        assert transport is not None
        transport.write(frame)
    await asyncio.gather(*(client.answered.wait() for client in clients))
    used = cpu() - before - idle_per_s * (loop.time() - started)
    print(
        f"send: {used / count * 1e6:.1f} us of server CPU a SEND at {rate}/s, {connections} connections"
    )
    await asyncio.to_thread(cpu, f"push {count}")
    await _pull(port)
    control.send("stop")


async def _pull(port: int) -> None:
    client = await _log_in(port, 1_000_000)
    started, after, up_to, got = time.monotonic(), 0, BASE + OFFLINE - 1, 0
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
    server = multiprocessing.get_context("spawn").Process(
        target=serve_process, args=(theirs,), daemon=True
    )
    server.start()
    print(f"server process {server.pid}")
    uvloop.run(_measure(ours, ours.recv(), options.connections, options.rate, options.seconds))
    server.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
