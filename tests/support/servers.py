"""Real servers for tests, chosen by QIM_TEST_BROKER: the same test code for each choice.

`jars` (default) runs Redis from Debian's package and Kafka from jars, `docker` runs compose.yaml
(Redpanda and Redis), `external:host:port` uses a broker that runs already, with Redis from the
package. Two Redis instances of each role always, so that nothing can rely on there being one.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.servers.docker import DockerServers
from ops.servers.kafka import KafkaServer
from ops.servers.member import Member
from ops.servers.ports import free_ports
from ops.servers.redis import RedisRole, RedisServer

__all__ = ["RedisUrls", "run_broker", "run_members", "run_redis"]

_EXTERNAL = "external:"
_INSTANCES = 2


@dataclass(frozen=True, slots=True)
class RedisUrls:
    """URLs of the instances of each role, in order."""

    mailbox: tuple[str, ...]
    commit: tuple[str, ...]


@contextmanager
def run_members(*members: Member) -> Iterator[None]:
    """Run servers side by side outside of any event loop, for fixtures that outlive a test's."""

    async def start() -> None:
        await asyncio.gather(*(member.start() for member in members))

    async def stop() -> None:
        await asyncio.gather(*(member.stop() for member in members))

    try:
        asyncio.run(start())
        yield
    finally:
        asyncio.run(stop())


@contextmanager
def _containers(*services: str) -> Iterator[DockerServers]:
    containers = DockerServers(f"qim-test-{secrets.token_hex(4)}", services)
    try:
        containers.start()
        yield containers
    finally:
        containers.stop()


@contextmanager
def run_redis(choice: str, folder: Path) -> Iterator[RedisUrls]:
    """Run two mailbox and two commit instances."""
    if choice == "docker":
        names = [f"{role}-{i}" for role in ("mailbox", "commit") for i in range(_INSTANCES)]
        with _containers(*names) as containers:
            urls = [f"redis://{containers.address(name)}/0" for name in names]
            yield RedisUrls(tuple(urls[:_INSTANCES]), tuple(urls[_INSTANCES:]))
        return
    ports = iter(free_ports(2 * _INSTANCES))
    mailbox, commit = (
        [
            RedisServer(f"{role.name.lower()}-{i}", role, next(ports), folder / f"{role.name}-{i}")
            for i in range(_INSTANCES)
        ]
        for role in (RedisRole.MAILBOX, RedisRole.COMMIT)
    )
    with run_members(*mailbox, *commit):
        yield RedisUrls(tuple(s.url for s in mailbox), tuple(s.url for s in commit))


@contextmanager
def run_broker(choice: str, folder: Path) -> Iterator[str]:
    """Run a Kafka-API broker and give its bootstrap address, host:port."""
    if choice.startswith(_EXTERNAL):
        yield choice.removeprefix(_EXTERNAL)
    elif choice == "docker":
        with _containers("broker") as containers:
            yield containers.address("broker")
    elif choice == "jars":
        port, controller_port = free_ports(2)
        kafka = KafkaServer("kafka", port, controller_port, folder)
        with run_members(kafka):
            yield kafka.address
    else:
        raise ValueError(f"QIM_TEST_BROKER={choice!r}: use jars, docker or external:host:port")
