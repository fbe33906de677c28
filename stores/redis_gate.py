"""Start gate of a Redis instance: version, standalone, durability. Refuses before the first write (REDIS-01 to REDIS-05, -11).

`judge` is pure: it looks at what the server said and returns every reason against it. What cannot be read or is not known
counts as wrong (fail closed). The developer switch skips only the durability checks, and only on this machine.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Mapping
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from schemas.constants import REDIS_MIN_VERSION
from schemas.errors import StartRefused
from stores.redis_link import RedisLink

__all__ = [
    "RedisFacts",
    "RedisRole",
    "check_redis",
    "is_local",
    "judge",
    "judge_redis",
    "parse_info",
]

_LOG: Final = logging.getLogger(__name__)
_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_CONFIG: Final = (
    "appendonly",
    "appendfsync",
    "maxmemory-policy",
    "no-appendfsync-on-rewrite",
    "save",
    "auto-aof-rewrite-min-size",
    "auto-aof-rewrite-percentage",
)
_REWRITE_DEFAULT_BYTES: Final = (
    64 << 20
)  # Redis' own: nobody decided, and a busy small instance forks all the time

RedisFacts = Mapping[str, str]
"""CONFIG values by name; a missing name means "could not be read"."""


class RedisRole(Enum):
    """What an instance holds: commit state must survive a host crash, mailboxes are replayed from the log (REDIS-04)."""

    MAILBOX = "mailbox"
    COMMIT = "commit"


def parse_info(text: str) -> dict[str, list[str]]:
    """INFO text -> every value given for each name, so that a name said twice can be refused (REDIS-01)."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            found.setdefault(name, []).append(value.strip())
    return found


def is_local(url: str) -> bool:
    """Whether an address is a Unix socket, `localhost` or a literal loopback address (REDIS-05)."""
    parts = urlsplit(url)
    if parts.scheme == "unix" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:  # any other name may resolve elsewhere tomorrow
        return False


def _version_faults(info: Mapping[str, list[str]]) -> list[str]:
    versions = info.get("redis_version", [])
    match = _VERSION.fullmatch(versions[0]) if len(versions) == 1 else None
    if match is None:
        return [f"redis_version is unreadable: {versions}"]
    if tuple(int(part) for part in match.groups()) < REDIS_MIN_VERSION:
        wanted = ".".join(str(part) for part in REDIS_MIN_VERSION)
        return [f"Redis {versions[0]} is older than {wanted}"]
    return []


def _cluster_faults(info: Mapping[str, list[str]]) -> list[str]:
    if info.get("cluster_enabled") != ["0"]:
        return [
            f"cluster_enabled is {info.get('cluster_enabled')}: only standalone Redis is supported"
        ]
    return []


def _durability_faults(role: RedisRole, config: RedisFacts) -> list[str]:
    allowed = {
        "appendonly": ("yes",),
        "appendfsync": ("always",) if role is RedisRole.COMMIT else ("always", "everysec"),
        "maxmemory-policy": ("noeviction",),
    }
    if role is RedisRole.COMMIT:
        # A rewrite that suspends fsync would acknowledge what a crash takes back (REG-29).
        allowed["no-appendfsync-on-rewrite"] = ("no",)
    faults = [
        f"{name} is {config.get(name, 'unreadable')}, must be {' or '.join(values)}"
        for name, values in allowed.items()
        if config.get(name) not in values
    ]
    return faults + _fork_faults(config)


def _fork_faults(config: RedisFacts) -> list[str]:
    """Forks that nobody asked for stall every client: snapshots beside the AOF, and early rewrites of it (REG-51)."""
    faults = []
    if config.get("save") != "":
        saves = config.get("save", "unreadable")
        faults.append(
            f"save is '{saves}', must be empty: the AOF is the durability, snapshots only fork"
        )
    try:
        size = int(config["auto-aof-rewrite-min-size"])
        never = int(config["auto-aof-rewrite-percentage"]) == 0
    except (KeyError, ValueError):
        return [*faults, "auto-aof-rewrite-min-size or auto-aof-rewrite-percentage is unreadable"]
    if size <= _REWRITE_DEFAULT_BYTES and not never:
        faults.append(
            f"auto-aof-rewrite-min-size is {size}, must be set to the expected size of the data set,"
            f" above {_REWRITE_DEFAULT_BYTES}"
        )
    return faults


def judge(
    role: RedisRole,
    info: Mapping[str, list[str]],
    config: RedisFacts,
    *,
    skip_durability: bool = False,
) -> list[str]:
    """Every reason not to start on this server, the version first; empty when there is none (GATE-08, GATE-09)."""
    faults = _version_faults(info) + _cluster_faults(info)
    return faults if skip_durability else faults + _durability_faults(role, config)


async def judge_redis(
    link: RedisLink, role: RedisRole, *, allow_unsafe_dev: bool = False
) -> list[str]:
    """Ask the server and return every reason against it; ServerFault when it does not answer."""
    text: bytes = await link.command("INFO", "everything")
    config: dict[str, str] = {}
    for name in _CONFIG:
        flat: list[bytes] = await link.command("CONFIG", "GET", name)
        config.update(
            (key.decode(), value.decode()) for key, value in zip(flat[::2], flat[1::2], strict=True)
        )
    skip = allow_unsafe_dev and is_local(link.name)
    faults = judge(role, parse_info(text.decode(errors="replace")), config, skip_durability=skip)
    if skip and not faults:
        _LOG.warning("%s: durability gates are switched off for development", link.name)
    return [f"{link.name} as {role.value} Redis: {fault}" for fault in faults]


async def check_redis(link: RedisLink, role: RedisRole, *, allow_unsafe_dev: bool = False) -> None:
    """The same for one server alone: raises StartRefused with all reasons."""
    faults = await judge_redis(link, role, allow_unsafe_dev=allow_unsafe_dev)
    if faults:
        _LOG.error("refused: %s", "; ".join(faults))
        raise StartRefused("; ".join(faults))
