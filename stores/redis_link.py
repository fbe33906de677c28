"""The thin way to one Redis instance: scripts by SHA-1, a bounded number of connections, honest errors.

It uses redis-py's connections (handshake, TLS, Unix sockets, hiredis parser) without its command layer, which costs
more than twice the CPU of the call itself. One command at a time is in flight on a connection; a call beyond the limit
waits for a free one, in order.

What a caller learns from a failure:
- `StoreFault`: Redis refused the command and will go on refusing it until somebody helps (memory, rights, disk); nothing
  was written;
- `StoreUnknownOutcome`: no usable answer. The command may or may not have happened, or Redis is not there (yet); the
  remedy is the same, so both are one. It is never sent again here: only the caller knows that a replay is harmless
  (MBX-62).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from lua import Script
from schemas.errors import StoreFault, StoreUnknownOutcome
from schemas.metrics import Reading, counter, histogram, now_us

__all__ = ["RedisLink", "link_readings", "redacted", "redacted_url"]

_LOG: Final = logging.getLogger(__name__)
# Answers that Redis gives instead of running the command. All page scripts open with `#!lua`, so that a lack of memory is
# found before their first write.
_REFUSALS: Final = (OutOfMemoryError, NoPermissionError, AuthenticationError)
_REFUSED: Final = ("MISCONF",)  # redis-py has no class for it
_DETAIL_LIMIT: Final = 300
_links: WeakSet[RedisLink] = WeakSet()


def redacted(detail: object) -> str:
    """Text that is safe to log: printable, short, without line breaks (REG-48 logs causes, not contents)."""
    text = repr(detail) if isinstance(detail, bytes) else str(detail)
    return "".join(c if c.isprintable() else "?" for c in text[:_DETAIL_LIMIT])


def redacted_url(url: str) -> str:
    """A Redis address without user name, password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def link_readings() -> Iterator[Reading]:
    """Calls that wait for a free connection, by instance (OBS-07)."""
    waiting: dict[str, int] = {}
    for link in _links:
        waiting[link.name] = waiting.get(link.name, 0) + link.waiting
    for name, calls in waiting.items():
        yield Reading("qim_redis_calls_waiting", calls, (name,))


class RedisLink:
    """Connections to one instance; bound to the event loop that first uses it.

    `connections` bounds the commands in flight (COM-23), `timeout_s` covers connecting and the command together.
    """

    __slots__ = (
        "__weakref__",
        "_failures",
        "_free",
        "_idle",
        "_kind",
        "_kwargs",
        "_latency",
        "name",
        "timeout_s",
    )

    def __init__(self, url: str, connections: int = 8, timeout_s: float = 5.0) -> None:
        options: dict[str, Any] = dict(parse_url(url))
        self._kind: type[AbstractConnection] = options.pop("connection_class", Connection)
        self._kwargs = options
        self._idle: deque[AbstractConnection] = deque()
        self._free = asyncio.Semaphore(connections)
        self.name = redacted_url(url)
        self.timeout_s = timeout_s
        self._latency = histogram("qim_redis_call_us", self.name)
        self._failures = counter("qim_redis_failures_total", self.name)
        _links.add(self)

    @property
    def waiting(self) -> int:
        """Calls that wait for a free connection; counting them ourselves would cost every call."""
        return len(self._free._waiters or ())  # noqa: SLF001

    async def run(self, script: Script, *args: str | bytes | int, keys: Sequence[str] = ()) -> Any:
        """Run a script; loads it where the server does not know it yet.

        Page scripts build their keys themselves and declare none: the servers are standalone (REDIS-02).
        """
        try:
            return await self._call("EVALSHA", script.sha1, len(keys), *keys, *args)
        except NoScriptError:
            # The server refused before running anything, so a second attempt cannot write twice.
            await self.command("SCRIPT", "LOAD", script.source)
            return await self.command("EVALSHA", script.sha1, len(keys), *keys, *args)

    async def command(self, *args: str | bytes | int) -> Any:
        """Run one plain command."""
        try:
            return await self._call(*args)
        except NoScriptError as error:
            raise StoreFault(f"{self.name}: script vanished") from error

    async def _call(self, *args: str | bytes | int) -> Any:
        async with self._free:
            begin_us = now_us()
            link = self._idle.pop() if self._idle else self._kind(**self._kwargs)
            try:
                async with asyncio.timeout(self.timeout_s):
                    if not link.is_connected:
                        await link.connect()  # type: ignore[no-untyped-call]
                    await link.send_packed_command(link.pack_command(*args), check_health=False)
                    reply = await link.read_response()
            except NoScriptError:
                self._idle.append(link)
                raise
            except (ResponseError, AuthenticationError) as error:
                self._idle.append(link)
                raise self._answered(error) from error
            except (RedisError, OSError, TimeoutError) as error:
                self._failures.add()
                await self._drop(link)
                _LOG.error("%s: no answer: %s", self.name, redacted(error))
                raise StoreUnknownOutcome(f"{self.name}: no answer") from error
            except BaseException:  # cancelled in the middle: an answer may still be under way
                await link.disconnect(nowait=True)
                raise
            self._idle.append(link)
            self._latency.observe(now_us() - begin_us)
            return reply

    async def _drop(self, link: AbstractConnection) -> None:
        """Close a broken connection and the idle ones, which a restarted server has forgotten as well."""
        idle = list(self._idle)
        self._idle.clear()
        for connection in (link, *idle):
            await connection.disconnect(nowait=True)

    def _answered(self, error: RedisError) -> StoreFault | StoreUnknownOutcome:
        self._failures.add()
        text = redacted(error)
        _LOG.error("%s: %s", self.name, text)
        if isinstance(error, _REFUSALS) or text.startswith(_REFUSED):
            return StoreFault(f"{self.name}: {text}")
        # A script that failed half way is a defect of ours; what it wrote before is not known here.
        return StoreUnknownOutcome(f"{self.name}: {text}")

    async def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            await self._idle.pop().disconnect()
