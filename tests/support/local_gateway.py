"""A gateway on a real loopback socket with in-memory stores, and raw clients that speak frames.

`LocalGateway` plays the worker too: `materialize` writes entries, moves W and pushes, in the order a worker does.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.connections import ConnectionRegistry
from gateway.cursor import CursorSigner
from gateway.hub import Hub
from gateway.limits import GatewayLimits
from gateway.login import LoginDesk
from gateway.mailbox import MailboxReader
from gateway.metrics import GatewayMetrics
from gateway.ports import Committer
from gateway.pushes import PushRouter
from gateway.server import GatewayServer
from gateway.tokens import AccessTokens, Identity
from gateway.visibility import WatermarkView
from schemas.constants import SECONDS_PER_DAY
from schemas.entry import encode_entry_head
from schemas.errors import ErrorCode
from schemas.frames import FrameDecoder, Opcode
from schemas.watermarks import pack_uniform
from stores.leases import LeaseGrant
from stores.mailbox import OK, EntryWrite, ShardAppend
from stores.memory_leases import MemoryShardLeases
from stores.memory_mailbox import MemoryMailboxStore
from tests.support.gateway import SEQ, FakeCommitter, Frame, client_frame, read_frames

__all__ = ["LocalGateway", "TcpPeer", "device", "eventually"]

_KEY = b"k" * 32
_TIMEOUT_S = 60.0  # only a hang reaches it
_TURNS = 10_000
_COMMON = b"-common-part"


def device(number: int) -> bytes:
    """A device id."""
    return number.to_bytes(16, "big")


async def eventually(condition: Callable[[], object]) -> None:
    """Let the loop run until `condition` holds; what another task or the kernel does cannot be awaited otherwise.

    Counted in turns and not in seconds: a machine that stands still for a while proves nothing.
    """
    for _ in range(_TURNS):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to pass")


class TcpPeer:
    """A client socket that sends frames and waits for frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    def send(self, opcode: int, record: Any, request_id: int = 1) -> None:
        """Write one frame."""
        self.writer.write(client_frame(opcode, record, request_id))

    async def frame(self) -> Frame:
        """The next frame of the server."""
        while not self._frames:
            data = await asyncio.wait_for(self.reader.read(1 << 16), _TIMEOUT_S)
            assert data, "the server closed the connection"
            self._frames = read_frames(data, self._decoder)
        return self._frames.pop(0)

    async def expect(self, opcode: Opcode) -> Any:
        """The next frame must be `opcode`; its record."""
        frame = await self.frame()
        assert frame.opcode is opcode, frame
        return frame.record

    async def refused(self) -> ErrorCode:
        """The next frame must be an ERROR; its code."""
        return ErrorCode((await self.expect(Opcode.ERROR))["code"])

    async def ended(self) -> bool:
        """Whether the server ends the connection without a further word; the socket is closed here as well."""
        data = b"" if self._frames else await asyncio.wait_for(self.reader.read(1), _TIMEOUT_S)
        if data or self._frames:
            return False
        await self.close()
        return True

    async def pull(self, after_seq: int, up_to_seq: int, items: int = 0) -> Any:
        """PULL_MAILBOX and its MAILBOX_BATCH."""
        request = {
            "after_seq": after_seq,
            "up_to_seq": up_to_seq,
            "max_items": items,
            "max_bytes": 0,
        }
        self.send(Opcode.PULL_MAILBOX, request)
        return await self.expect(Opcode.MAILBOX_BATCH)

    async def close(self) -> None:
        """Close the socket."""
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


class LocalGateway:
    """One gateway process's insides, with one mailbox shard."""

    def __init__(
        self, limits: GatewayLimits | None = None, committer: Committer | None = None
    ) -> None:
        self.limits = limits or GatewayLimits()
        self.fake_committer = FakeCommitter()
        self.leases = MemoryShardLeases()
        self.store = MemoryMailboxStore(self.leases)
        self.view = WatermarkView(1)
        self.registry = ConnectionRegistry(1000)
        self.router = PushRouter(self.view, self.registry, self.limits.max_held_pushes)
        self.metrics = GatewayMetrics()
        self.tokens = AccessTokens(_KEY)
        signer = CursorSigner({1: _KEY})
        self.reader = MailboxReader(self.store, self.view, signer, self.limits)
        self.desk = LoginDesk(
            boundaries=self.leases.boundaries,
            tokens=self.tokens,
            signer=signer,
            registry=self.registry,
            store=self.store,
            view=self.view,
            limits=self.limits,
            now_s=time.time,
        )
        self.hub = Hub(
            limits=self.limits,
            committer=committer or self.fake_committer,
            desk=self.desk,
            reader=self.reader,
            registry=self.registry,
            metrics=self.metrics,
        )
        self.server = GatewayServer(self.hub)
        self.address = ("", 0)
        self._peers: list[TcpPeer] = []
        self._term = 0
        self._w: bytes | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["LocalGateway"]:
        """Serve inside the block."""
        grant = await self.leases.acquire(0, "test", 600_000)
        assert isinstance(grant, LeaseGrant)
        self._term = grant.term
        self.reader.start()
        self.desk.start()
        self.address = await self.server.start("127.0.0.1", 0)
        try:
            yield self
        finally:
            for peer in self._peers:
                await peer.close()
            await self.server.drain()
            await self.desk.stop()
            await self.reader.stop()

    async def connect(self) -> TcpPeer:
        """A client's socket."""
        peer = TcpPeer(*await asyncio.open_connection(*self.address))
        self._peers.append(peer)
        return peer

    def auth(
        self,
        user: int,
        number: int = 1,
        kind: int = 0,
        cursor: bytes = b"",
        epoch: int = 1,
    ) -> dict[str, Any]:
        """An AUTH record of a user's device."""
        identity = Identity(0, user, device(number), epoch)
        return {
            "access_token": self.tokens.mint(identity, int(time.time()) + 60),
            "device_id": device(number),
            "cursor_kind": kind,
            "cursor": cursor,
            "foreground": True,
        }

    async def online(self, user: int, number: int = 1, epoch: int = 1) -> TcpPeer:
        """A device that is past the login barrier with nothing pulled (EMPTY cursor)."""
        peer = await self.connect()
        peer.send(Opcode.AUTH, self.auth(user, number, kind=1, epoch=epoch))
        ok = await peer.expect(Opcode.AUTH_OK)
        peer.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": ok["sync_to_seq"]})
        await peer.expect(Opcode.ONLINE_READY)
        return peer

    async def materialize(
        self,
        offset: int,
        users: Sequence[int],
        *,
        types: Sequence[int] = (0,),
        push: bool = True,
        sender: int = 1,
        body: bytes = b"",
    ) -> None:
        """What a worker does with one dispatch: entries and W, then the watermark row, then the push."""
        heads = {
            user: [
                encode_entry_head(SEQ + offset, kind, kind.to_bytes(8, "big"), 1, 0, None)
                for kind in types
            ]
            for user in users
        }
        common = b"%08d" % offset + _COMMON + body
        day = int(time.time()) // SECONDS_PER_DAY
        writes = [
            EntryWrite(0, user, offset, SEQ + offset, day, head + common)
            for user, own in heads.items()
            for head in own
        ]
        new_w = pack_uniform(offset)
        append = ShardAppend(0, self._term, 1, self._w, new_w, 1, writes)
        assert await self.store.append_page([append]) == [OK]
        self._w = new_w
        self.view.shards[0].update(
            {
                "lease_term": self._term,
                "epoch": 1,
                "base_epoch": 1,
                "page_number": offset,
                "w": new_w,
            }
        )
        self.router.release(0)
        if push:
            self.router.offer(
                {
                    "tenant_id": bytes(16),
                    "mailbox_shard": 0,
                    "mailbox_seq": SEQ + offset,
                    "origin_device_id": device(1),
                    "sender_id": sender,
                    "common_encoded_body": common,
                    "recipients": [
                        {"user_id": user, "entry_heads": own} for user, own in heads.items()
                    ],
                }
            )
        for client, entries in self.router.take().items():
            client.push(entries)
