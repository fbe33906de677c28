"""The servers of `compose.yaml` as one group of containers, on free loopback ports."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ops.servers.ports import LOOPBACK, free_ports
from ops.servers.process import ProcessFailedError
from schemas.config import child_environment

__all__ = ["DockerServers", "compose_command"]

_COMPOSE = Path(__file__).resolve().parents[2] / "compose.yaml"


def compose_command(project: str, *arguments: str) -> list[str]:
    """Return the command line of `docker compose` for one group of containers."""
    return ["docker", "compose", "-f", str(_COMPOSE), "-p", project, *arguments]


class DockerServers:
    """Some services of compose.yaml under a project name of their own.

    Each service gets a free port; `docker compose up --wait` returns when all are healthy.
    """

    def __init__(self, project: str, services: Sequence[str]) -> None:
        self.project = project
        self.ports = dict(zip(services, free_ports(len(services)), strict=True))

    def address(self, service: str) -> str:
        """Return a service's address, host:port."""
        return f"{LOOPBACK}:{self.ports[service]}"

    def start(self) -> None:
        """Create the containers; raises ProcessFailedError with what Docker says."""
        self._compose("up", "--detach", "--wait", *self.ports)

    def stop(self) -> None:
        """Remove the containers and their data."""
        self._compose("down", "--volumes", "--timeout", "10")

    def _compose(self, *arguments: str) -> None:
        ports = {
            f"QIM_COMPOSE_{service.upper().replace('-', '_')}": str(port)
            for service, port in self.ports.items()
        }
        done = subprocess.run(
            compose_command(self.project, *arguments),
            env=child_environment(ports),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ProcessFailedError(f"docker compose {arguments[0]}:\n{done.stdout}{done.stderr}")
