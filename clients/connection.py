"""Carries out what a device's session wants on an event loop: a socket, a timer, callbacks. It decides nothing.

Whatever one loop pass queues leaves in one `transport.write`. Every method belongs to the loop it was first used on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import cast

from clients.events import SessionEvent
from clients.faults import Link
from clients.session import DeviceSession

__all__ = ["SessionDriver"]

_MIN_TIMER_S = 0.001
"""The resolution of event loop clocks: a timer that fires early by less than this would spin."""


class SessionDriver:
    """One session on one address; `listeners` get every event, in order, on the loop."""

    __slots__ = (
        "_armed_s",
        "_dialling",
        "_flush_planned",
        "_link",
        "_loop",
        "_soonest_s",
        "_timer",
        "_transport",
        "_writable",
        "address",
        "listeners",
        "session",
    )

    def __init__(
        self, address: tuple[str, int], session: DeviceSession, link: Link | None = None
    ) -> None:
        self.address = address
        self.session = session
        self.listeners: list[Callable[[SessionEvent], None]] = []
        self._link = link
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = inf
        self._flush_planned = False
        self._writable = True
        # A deadline that appears now is never earlier than this: a timer armed within it need not be looked at.
        config = session.config
        self._soonest_s = min(config.ack_timeout_s, config.pull_debounce_s, config.refused_retry_s)

    # --- calls ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Let the session dial, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self.session.start(time.monotonic())
        self.settle()

    async def stop(self) -> None:
        """End the session and its connection."""
        if self._dialling is not None:
            self._dialling.cancel()
            with suppress(asyncio.CancelledError):
                await self._dialling
        self.session.stop()
        self.settle()

    def abort(self) -> None:
        """Break the connection as a dead network would."""
        if self._transport is not None:
            self._transport.abort()

    # --- what happens on the socket ---------------------------------------------------------------------------
    def socket_made(self, transport: asyncio.Transport) -> None:
        """A connection is open."""
        self._transport = transport
        self._writable = True
        if self._link is not None:
            self._link.connection_made()
        self.session.connection_made(time.monotonic())
        self.settle()

    def socket_data(self, data: bytes) -> None:
        """Bytes came: the session takes them, listeners hear of them, answers leave at the end of the loop pass."""
        if self._link is not None:
            data = self._link.receive(data)
        now_s = time.monotonic()
        self.session.data_received(data, now_s)
        self._hand_on()
        self.after_call(now_s)

    def socket_lost(self, transport: asyncio.BaseTransport | None, reason: str) -> None:
        """A connection is gone, or could not be opened; one that was given up before is not told again."""
        if transport is self._transport:
            self._transport = None
            self.session.connection_lost(time.monotonic(), reason)
            self.settle()

    def socket_writable(self, *, writable: bool) -> None:
        """The socket takes bytes, or its buffer is full."""
        self._writable = writable
        self._plan_flush()

    # --- what the session wants -------------------------------------------------------------------------------
    def after_call(self, now_s: float) -> None:
        """The short way after a send or a receive: plan the write, look at the timer where it could be too late."""
        session = self.session
        if session.wants_drop:
            self.settle()
            return
        if session.wants_write and not self._flush_planned:
            self._plan_flush()
        if self._armed_s - now_s > self._soonest_s:
            self._arm(now_s)

    def settle(self) -> None:
        """The long way: events, drop, write, timer."""
        session = self.session
        self._hand_on()
        if session.wants_drop and self._transport is not None:
            transport, self._transport = self._transport, None
            if session.ended:
                transport.close()
            else:
                transport.abort()
            session.connection_lost(time.monotonic())
            self._hand_on()
        self._plan_flush()
        self._arm(time.monotonic())

    def _hand_on(self) -> None:
        for event in self.session.take_events():
            for listen in tuple(self.listeners):
                listen(event)

    def _plan_flush(self) -> None:
        loop = self._loop
        if not self._flush_planned and self._transport is not None and loop is not None:
            self._flush_planned = True
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._transport is not None and self._writable:
            data = self.session.data_to_send()
            if data:
                self._transport.write(data)

    def _arm(self, now_s: float) -> None:
        deadline_s = self.session.next_deadline_s()
        if self._timer is not None:
            if deadline_s == self._armed_s:
                return
            self._timer.cancel()
            self._timer = None
        self._armed_s = deadline_s
        if deadline_s < inf and self._loop is not None:
            wait_s = max(_MIN_TIMER_S, deadline_s - now_s)
            self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._armed_s = inf
        now_s = time.monotonic()
        if not self.session.wants_dial:
            self.session.tick(now_s)
        elif self.session.next_deadline_s() <= now_s and self._dialling is None:
            self.session.dialling()
            self._dialling = asyncio.get_running_loop().create_task(self._dial())
        self.settle()

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.session.config.detection_limit_s):
                await loop.create_connection(lambda: _Socket(self), *self.address)
        except (OSError, TimeoutError) as error:
            self.socket_lost(None, f"cannot connect: {type(error).__name__}")
        finally:
            self._dialling = None


class _Socket(asyncio.Protocol):
    """Callbacks of one connection."""

    __slots__ = ("_driver", "_transport")

    def __init__(self, driver: SessionDriver) -> None:
        self._driver = driver
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        # uvloop's transports implement the interface without deriving from the class.
        self._driver.socket_made(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        self._driver.socket_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.socket_lost(self._transport, f"connection lost: {exc or 'closed by the peer'}")

    def pause_writing(self) -> None:
        self._driver.socket_writable(writable=False)

    def resume_writing(self) -> None:
        self._driver.socket_writable(writable=True)
