"""Redis instances as child processes: one class, two roles.

A mailbox instance may lose the last second when its machine dies (everything in it can be replayed
from the log); a commit instance may lose nothing that was acknowledged (REDIS-03, REDIS-04).
"""

from enum import Enum
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops.servers.ports import LOOPBACK, port_released
from ops.servers.process import ManagedProcess
from ops.servers.provision import find_redis_server

__all__ = ["RedisRole", "RedisServer", "redis_arguments"]

_READY_S = 20.0  # Loading a large AOF takes seconds.


class RedisRole(Enum):
    """What an instance holds, and so how it must write to disk."""

    MAILBOX = "everysec"
    COMMIT = "always"


def redis_arguments(role: RedisRole, port: int, folder: Path) -> list[str]:
    """Return the command-line arguments of an instance: AOF on, no snapshots, no eviction."""
    settings = {
        "port": str(port),
        "bind": LOOPBACK,
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": role.value,
        # A rewrite must not suspend the fsync that an acknowledgement rests on.
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        # Forks only when somebody decided so: no snapshots, no rewrite of a small AOF (REDIS-11).
        "save": "",
        "auto-aof-rewrite-min-size": "256mb",
        # Small mailboxes and histories stay one block of memory: a fifth less a message, at the same speed.
        "zset-max-listpack-value": "512",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


class RedisServer:
    """One Redis instance on its own port and data folder; a restart finds what it had."""

    __slots__ = ("folder", "port", "process", "role")

    def __init__(self, name: str, role: RedisRole, port: int, folder: Path) -> None:
        self.role = role
        self.port = port
        self.folder = folder
        argv = [find_redis_server(), *redis_arguments(role, port, folder)]
        self.process = ManagedProcess(name, argv, folder / "redis.log")

    @property
    def url(self) -> str:
        """The address as clients name it."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    async def start(self) -> None:
        """Start the instance and wait until it answers and has loaded its AOF (about 0.1 s)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        await port_released(self.port)
        self.process.spawn()
        await self.process.wait_ready(self._answers, _READY_S)

    async def stop(self) -> None:
        """Stop the instance; it writes its AOF out first."""
        await self.process.stop()

    def kill(self) -> None:
        """End the instance as a crash would."""
        self.process.kill()

    async def _answers(self) -> bool:
        # Synchronous on purpose: one loopback round trip, and no connection bound to a loop.
        # The client's own retries would sleep up to a second between two tries.
        once = Retry(NoBackoff(), 0)
        client = redis.Redis(port=self.port, host=LOOPBACK, socket_timeout=1.0, retry=once)
        try:
            # The process id guards against another server that took the port meanwhile.
            info = client.info("server")
            return isinstance(info, dict) and info["process_id"] == self.process.pid
        except redis.RedisError:  # Not listening yet, or loading.
            return False
        finally:
            client.close()
