"""The world of `gateway_pair` behind a real TCP port, for tests of the client's asyncio shell and the load generator."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.gateway_pair import Desk, World

__all__ = ["TcpGateway"]


class TcpGateway:
    """Serves `world` on a free loopback port; `sockets` are the connections that are open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.address = ("127.0.0.1", 0)
        self.sockets: list[asyncio.Transport] = []
        self._desks: list[_DeskSocket] = []

    def connections(self) -> int:
        """How many were accepted so far."""
        return len(self._desks)

    def flush(self) -> None:
        """Write what any desk has to say; a push for one connection is made while another one is read."""
        for desk in self._desks:
            desk.flush()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["TcpGateway"]:
        """Serve inside the block."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._accept, "127.0.0.1", self.address[1])
        self.address = server.sockets[0].getsockname()[:2]
        try:
            yield self
        finally:
            server.close()
            for transport in self.sockets:
                transport.abort()
            await server.wait_closed()
            await asyncio.sleep(0)

    def _accept(self) -> "_DeskSocket":
        desk = _DeskSocket(self)
        self._desks.append(desk)
        return desk


class _DeskSocket(asyncio.Protocol):
    def __init__(self, gateway: TcpGateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport | None = None
        gateway.world.now_s = time.monotonic()
        self._desk = Desk(gateway.world)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._gateway.sockets.append(transport)

    def data_received(self, data: bytes) -> None:
        self._gateway.world.now_s = time.monotonic()
        self._desk.receive(data)
        self._gateway.flush()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._desk.close()
        if self._transport in self._gateway.sockets:
            self._gateway.sockets.remove(self._transport)
        self._transport = None

    def flush(self) -> None:
        if self._transport is None:
            return
        data = self._desk.core.data_to_send(1 << 20)
        if data:
            self._transport.write(data)
        if self._desk.core.is_closed():
            self._transport.close()
