"""What a local stack consists of: addresses, counts and secrets, kept in `stack.json`.

A stack that is started again on its data folder gets the same plan, so that every address, token
and cursor stays valid. What is part of stored positions (shards, slots, the list of Redis
instances) can never change on existing data; the numbers of workers and gateways can.
Everything here is pure except `load_or_create`.
"""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from ops.servers.ports import LOOPBACK, free_ports
from schemas.errors import StartRefused

__all__ = ["ServerAddresses", "StackOptions", "StackPlan", "load_or_create", "service_values"]

_DEFAULT_SLOTS = 4


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What the caller chooses: counts of shards, workers, spare workers, gateways and Redis instances."""

    shards: int = 8
    workers: int = 1
    gateways: int = 1
    mailbox_redis: int = 1
    commit_redis: int = 1
    app_id: str = "qim"
    spares: int = 0

    @property
    def slots(self) -> int:
        """Ownership slots: a power of two that gives each worker at least one."""
        wanted = max(self.workers, min(_DEFAULT_SLOTS, self.shards))
        slots = 1 << (wanted - 1).bit_length()
        if slots > self.shards:
            raise StartRefused(f"{self.workers} workers need at least {slots} shards")
        return slots


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """Where the servers listen: the broker as host:port, Redis instances as URLs in order."""

    broker: str
    mailbox_redis: tuple[str, ...]
    commit_redis: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StackPlan:
    """One stack: its fixed numbers, its loopback ports and its secrets.

    `kafka_ports` are (clients, controller); the others are one port an instance.
    """

    app_id: str
    shards: int
    slots: int
    kafka_ports: tuple[int, int]
    mailbox_ports: tuple[int, ...]
    commit_ports: tuple[int, ...]
    worker_web_ports: tuple[int, ...]
    gateway_ports: tuple[int, ...]
    gateway_web_ports: tuple[int, ...]
    token_secret: str
    cursor_secret: str
    spare_web_ports: tuple[int, ...] = ()

    @property
    def servers(self) -> ServerAddresses:
        """The addresses of the servers that the stack starts itself."""
        return ServerAddresses(
            f"{LOOPBACK}:{self.kafka_ports[0]}",
            tuple(f"redis://{LOOPBACK}:{port}/0" for port in self.mailbox_ports),
            tuple(f"redis://{LOOPBACK}:{port}/0" for port in self.commit_ports),
        )

    def slots_of(self, worker: int) -> tuple[int, ...]:
        """Return the slots that a worker owns: every n-th of n workers."""
        return tuple(range(worker, self.slots, len(self.worker_web_ports)))


_JSON = TypeAdapter(StackPlan)


def _create(options: StackOptions) -> StackPlan:
    counts = (
        2,
        options.mailbox_redis,
        options.commit_redis,
        options.workers,
        options.gateways,
        options.gateways,
        options.spares,
    )
    ports = iter(free_ports(sum(counts)))
    kafka, mailbox, commit, worker, gateway, web, spare = (
        tuple(next(ports) for _ in range(count)) for count in counts
    )
    return StackPlan(
        app_id=options.app_id,
        shards=options.shards,
        slots=options.slots,
        kafka_ports=(kafka[0], kafka[1]),
        mailbox_ports=mailbox,
        commit_ports=commit,
        worker_web_ports=worker,
        gateway_ports=gateway,
        gateway_web_ports=web,
        token_secret=secrets.token_hex(32),
        cursor_secret=secrets.token_hex(32),
        spare_web_ports=spare,
    )


def _resized(ports: tuple[int, ...], count: int) -> tuple[int, ...]:
    kept = ports[:count]
    return kept + tuple(free_ports(count - len(kept)))


def _adapt(plan: StackPlan, options: StackOptions) -> StackPlan:
    """Fit an existing plan to new counts, refusing what stored data forbids."""
    fixed = {
        "app id": (plan.app_id, options.app_id),
        "shards": (plan.shards, options.shards),
        "mailbox Redis instances": (len(plan.mailbox_ports), options.mailbox_redis),
        "commit Redis instances": (len(plan.commit_ports), options.commit_redis),
    }
    for what, (have, want) in fixed.items():
        if have != want:
            raise StartRefused(
                f"this data folder has {what} {have}, not {want}: use another folder"
            )
    if options.workers > plan.slots:
        raise StartRefused(f"this data folder has {plan.slots} slots for {options.workers} workers")
    return replace(
        plan,
        worker_web_ports=_resized(plan.worker_web_ports, options.workers),
        gateway_ports=_resized(plan.gateway_ports, options.gateways),
        gateway_web_ports=_resized(plan.gateway_web_ports, options.gateways),
        spare_web_ports=_resized(plan.spare_web_ports, options.spares),
    )


def load_or_create(path: Path, options: StackOptions) -> StackPlan:
    """Return the plan in `path` fitted to `options`, or a new one; writes it back, owner-only.

    Raises StartRefused when the data folder was made with other fixed numbers.
    """
    if path.exists():
        plan = _adapt(_JSON.validate_json(path.read_bytes()), options)
    else:
        plan = _create(options)
    path.touch(mode=0o600)
    path.write_bytes(_JSON.dump_json(plan, indent=2) + b"\n")
    return plan


def service_values(plan: StackPlan, servers: ServerAddresses) -> dict[str, str]:
    """Return the settings that every service of the stack shares, as environment variables."""
    return {
        "QIM_APP_ID": plan.app_id,
        "QIM_BROKER": servers.broker,
        "QIM_MAILBOX_REDIS": ",".join(servers.mailbox_redis),
        "QIM_COMMIT_REDIS": ",".join(servers.commit_redis),
        "QIM_MAILBOX_SHARD_COUNT": str(plan.shards),
        "QIM_SLOT_COUNT": str(plan.slots),
        "QIM_TOKEN_SECRET": plan.token_secret,
        "QIM_CURSOR_SECRET": plan.cursor_secret,
    }
