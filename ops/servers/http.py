"""The one HTTP question that the stack asks of its services: whether they are ready."""

import asyncio
import re

from ops.servers.ports import LOOPBACK

__all__ = ["http_ready", "status_code"]

_TIMEOUT_S = 2.0
_OK = 200


def status_code(reply: bytes) -> int | None:
    """Return the status of an HTTP reply's first line, None when it is no HTTP reply."""
    found = re.match(rb"HTTP/1\.[01] (\d{3})\b", reply)
    return int(found[1]) if found else None


async def _first_line(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode()
        )
        return await reader.readline()
    finally:
        writer.close()


async def http_ready(port: int, path: str = "/ready") -> bool:
    """Tell whether a service on this loopback port answers `path` with 200 within 2 s."""
    try:
        reply = await asyncio.wait_for(_first_line(port, path), _TIMEOUT_S)
    except (OSError, TimeoutError):
        return False
    return status_code(reply) == _OK
