"""Free loopback ports for servers that must find their port again after a restart.

Ports come from below the kernel's ephemeral range: a port from inside it may be taken, while its
server is down, as the source port of any outgoing connection, even of a client that reconnects to
that very port (on loopback it then talks to itself and the server cannot bind).
"""

import asyncio
import random
import socket
import time
from pathlib import Path

__all__ = ["LOOPBACK", "free_ports", "is_listening", "port_range", "port_released"]

LOOPBACK = "127.0.0.1"

# Below 10,000 sit other people's well-known servers.
_LOWEST = 10_000
_ENOUGH = 1_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def port_range(ephemeral: str) -> range:
    """Return the ports we may choose from, given the kernel's `low high` ephemeral range.

    Where the ephemeral range leaves too few ports below it, all from 10,000 on qualify.
    """
    low, _high = map(int, ephemeral.split())
    return range(_LOWEST, low if low - _LOWEST >= _ENOUGH else 65_536)


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Return `count` distinct ports that nothing is bound to now.

    The order is random, so that stacks which start at the same time choose different ones.
    Raises OSError when the machine has none left.
    """
    ephemeral = _EPHEMERAL.read_text() if _EPHEMERAL.exists() else "32768 60999"
    candidates = port_range(ephemeral)
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        if len(found) == count:
            break
        if _can_bind(port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"only {len(found)} of {count} loopback ports are free")
    return found


def is_listening(port: int) -> bool:
    """Tell whether something accepts connections on this loopback port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((LOOPBACK, port)) == 0


async def port_released(port: int, timeout_s: float = 5.0) -> None:
    """Wait until nothing listens on a port, for a predecessor that is just being killed.

    Raises OSError when it still listens after `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    while is_listening(port):
        if time.monotonic() > deadline_s:
            raise OSError(f"another process listens on {LOOPBACK}:{port}")
        await asyncio.sleep(0.02)
