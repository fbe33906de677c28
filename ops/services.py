"""Our own processes as members of a stack: Faust workers and gateways."""

import sys
from collections.abc import Mapping
from pathlib import Path

from ops.servers.http import http_ready
from ops.servers.ports import port_released
from ops.servers.process import ManagedProcess
from schemas.config import child_environment

__all__ = ["Service", "gateway_service", "worker_service"]

_READY_S = 60.0
_STOP_S = 20.0  # A worker finishes the pages in hand (at most 5 s) and closes its tables.


def _program(name: str) -> str:
    """Return a console script of the environment that we run in."""
    return str(Path(sys.executable).parent / name)


class Service:
    """A process of ours that says on `/ready` of its HTTP port that it serves."""

    __slots__ = ("process", "web_port")

    def __init__(self, process: ManagedProcess, web_port: int) -> None:
        self.process = process
        self.web_port = web_port

    async def start(self) -> None:
        """Start it and wait for its `/ready`."""
        await port_released(self.web_port)
        self.process.spawn()
        await self.process.wait_ready(self._answers, _READY_S)

    async def stop(self) -> None:
        """Ask it to drain and end."""
        await self.process.stop(_STOP_S)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()

    async def _answers(self) -> bool:
        return await http_ready(self.web_port)


def worker_service(
    name: str, slots: tuple[int, ...], web_port: int, folder: Path, values: Mapping[str, str]
) -> Service:
    """Return a Faust worker that owns `slots` and keeps its tables in `folder`."""
    own = {
        "QIM_WORKER_NAME": name,
        "QIM_SLOTS": ",".join(map(str, slots)),
        "QIM_DATA_DIR": str(folder / "tables"),
        "QIM_WEB_PORT": str(web_port),
    }
    argv = [_program("faust"), "-A", "qim", "worker", "-l", "info"]
    environment = child_environment({**values, **own})
    return Service(ManagedProcess(name, argv, folder / "worker.log", environment), web_port)


def gateway_service(
    name: str, address: str, web_port: int, folder: Path, values: Mapping[str, str]
) -> Service:
    """Return a gateway that listens for clients on `address` (host:port)."""
    own = {
        "QIM_GATEWAY_NAME": name,
        "QIM_GATEWAY_LISTEN": address,
        "QIM_GATEWAY_WEB_PORT": str(web_port),
    }
    environment = child_environment({**values, **own})
    argv = [_program("qim"), "gateway"]
    return Service(ManagedProcess(name, argv, folder / "gateway.log", environment), web_port)
