"""What every process of a stack has in common, whatever it is."""

from typing import Protocol

from ops.servers.process import ManagedProcess

__all__ = ["Member"]


class Member(Protocol):
    """A process that can be started until ready, stopped in order, and killed as by a crash.

    After `stop` or `kill`, `start` brings it back on the same data and the same address.
    """

    @property
    def process(self) -> ManagedProcess:
        """The child process, also before its first start."""

    async def start(self) -> None:
        """Start it and return once it serves; raises ProcessFailedError."""

    async def stop(self) -> None:
        """Ask it to end and wait until it has."""

    def kill(self) -> None:
        """End it with SIGKILL."""
