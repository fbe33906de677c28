"""The listener of a gateway process: accepts sockets, judges the passing of time, drains on the way down."""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.connection import GatewayConnection
from gateway.hub import Hub
from schemas.background import Background
from schemas.runtime_lag import RuntimeLag

__all__ = ["GatewayServer"]

_SWEEP_S: Final = 1.0  # the finest limit of time is 5 s
_DRAIN_POLL_S: Final = 0.02
_BACKLOG: Final = 1024  # a reconnect storm after a restart must not be refused by the kernel


class GatewayServer:
    """Listens for clients of one `Hub`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._server: asyncio.Server | None = None
        self._sweeping = Background("gateway-sweep", self._sweep)
        self._lag = RuntimeLag()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 takes a free one. Returns the address that was bound; raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: GatewayConnection(self._hub), host, port, backlog=_BACKLOG
        )
        self._sweeping.start()
        self._lag.start()
        bound: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return bound

    async def drain(self) -> None:
        """Stop accepting and reading, let answers in flight leave, close; what lasts too long is torn down."""
        hub = self._hub
        hub.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(hub.connections):
            connection.drain()
        deadline_ms = hub.now_ms() + hub.limits.drain_timeout_ms
        while hub.connections and hub.now_ms() < deadline_ms:
            now_ms = hub.now_ms()
            for connection in list(hub.connections):
                connection.check(now_ms)
            await asyncio.sleep(_DRAIN_POLL_S)
        for connection in list(hub.connections):
            connection.abort()
        await self._stop_watching()

    async def _stop_watching(self) -> None:
        self._lag.stop()
        await self._sweeping.stop()
        if self._server is not None:
            await self._server.wait_closed()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_ms = self._hub.now_ms()
            for connection in list(self._hub.connections):
                connection.check(now_ms)
