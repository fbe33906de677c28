"""What is measured: a stack that the benchmark started itself, or one that runs already."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from bench.listeners import pids_of_listeners
from gateway.tokens import AccessTokens, Identity
from ops.plan import StackPlan, service_values
from ops.stack import Stack, settings_of
from schemas.config import Settings
from schemas.errors import StartRefused

__all__ = ["Target", "attached", "group_of", "target_of"]

_TOKEN_TTL_S: Final = 24 * 3600
_GROUPS: Final = {
    "gateway": "gateway",
    "worker": "worker",
    "mailbox": "redis",
    "commit": "redis",
    "kafka": "broker",
}


def group_of(process: str) -> str:
    """Return the report's group of a process name such as `mailbox-0`."""
    return _GROUPS.get(process.rpartition("-")[0] or process, process)


@dataclass(frozen=True, slots=True)
class Target:
    """Where clients connect, and where the figures are read. `processes` gives name -> pid at the time of the call."""

    gateways: tuple[tuple[str, int], ...]
    settings: Settings
    web: tuple[tuple[str, int], ...]
    processes: Callable[[], Mapping[str, int]]
    counts: Mapping[str, int]
    versions: Mapping[str, str] = field(default_factory=dict)

    def token(self, user: int, device_id: bytes) -> str:
        """Sign an access token of tenant 0."""
        secret = self.settings.token_secret.get_secret_value().encode()
        identity = Identity(tenant=0, user=user, device_id=device_id, session_epoch=1)
        return AccessTokens(secret).mint(identity, int(time.time()) + _TOKEN_TTL_S)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise StartRefused(f"{text!r} is not host:port")
    return host, int(port)


def _of_kind(addresses: Mapping[str, str], *kinds: str) -> tuple[tuple[str, int], ...]:
    names = (name for name in addresses if name.rpartition("-")[0] in kinds)
    return tuple(_address(addresses[name]) for name in names)


def target_of(stack: Stack) -> Target:
    """A stack of this process."""
    addresses = stack.addresses
    return Target(
        gateways=_of_kind(addresses, "gateway"),
        settings=stack.settings,
        web=_of_kind(addresses, "gateway-web", "worker-web"),
        processes=lambda: stack.processes,
        counts=_counts(stack.processes),
    )


def attached(address: str, folder: Path) -> Target:
    """A stack of this machine that somebody else started on `folder`, or servers named by the environment.

    Raises StartRefused when `folder` holds a stack whose gateway is not at `address`.
    """
    gateway = _address(address)
    plan_file = folder / "stack.json"
    if not plan_file.exists():
        settings = Settings()
        ports = {"gateway-0": gateway[1]}
        web: tuple[tuple[str, int], ...] = (
            (gateway[0], settings.gateway_web_port),
            (settings.web_host, settings.web_port),
        )
        return Target((gateway,), settings, web, lambda: _pids(ports), _counts(ports))
    plan = TypeAdapter(StackPlan).validate_json(plan_file.read_bytes())
    if gateway[1] not in plan.gateway_ports:
        raise StartRefused(f"the stack in {folder} has its gateways on {plan.gateway_ports}")
    ports = _ports(plan)
    return Target(
        (gateway,),
        settings_of(service_values(plan, plan.servers)),
        tuple((gateway[0], port) for port in (*plan.gateway_web_ports, *plan.worker_web_ports)),
        lambda: _pids(ports),
        _counts(ports),
    )


def _ports(plan: StackPlan) -> dict[str, int]:
    """Return one port by which each process is found; all gateways count, whichever one is attached to."""
    lists = {
        "gateway": plan.gateway_ports,
        "worker": plan.worker_web_ports,
        "mailbox": plan.mailbox_ports,
        "commit": plan.commit_ports,
    }
    named = {f"{kind}-{n}": port for kind, ports in lists.items() for n, port in enumerate(ports)}
    return named | {"kafka": plan.kafka_ports[0]}


def _pids(ports: Mapping[str, int]) -> dict[str, int]:
    pids = pids_of_listeners(ports.values())
    return {name: pids[port] for name, port in ports.items() if port in pids}


def _counts(names: Mapping[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        group = group_of(name)
        counts[group] = counts.get(group, 0) + 1
    return counts
