"""The whole of Q-IM on one machine: Redis, Kafka, topics, workers, gateways.

A `Stack` owns a data folder (one stack at a time, by a lock) and every process it starts. Any
single process can be killed and brought back, which is what demo, benchmark and fault tests need.
Start it from the main thread: children die with the thread that started them.

Order of a start: servers, topics, then workers and gateways at once. A stop goes the other way, so
that each process still has what it needs to drain.
"""

import asyncio
import fcntl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Self

from ops.plan import ServerAddresses, StackOptions, StackPlan, load_or_create, service_values
from ops.servers.kafka import KafkaServer
from ops.servers.member import Member
from ops.servers.ports import LOOPBACK
from ops.servers.process import ManagedProcess, ProcessFailedError
from ops.servers.redis import RedisRole, RedisServer
from ops.services import Service, gateway_service, worker_service
from ops.topics import create_topics
from schemas.config import Settings
from schemas.errors import StartRefused
from schemas.topics import topic_specs

__all__ = ["Stack", "lock_folder", "settings_of"]


def _silent(_text: str) -> None:
    """Swallow progress lines."""


def settings_of(values: Mapping[str, str]) -> Settings:
    """Return the settings that a process with these QIM_ variables would have."""
    fields = {name.removeprefix("QIM_").lower(): value for name, value in values.items()}
    return Settings.model_validate(fields)


def lock_folder(folder: Path) -> TextIOWrapper:
    """Claim a data folder until the returned file is closed or this process ends.

    Raises StartRefused when another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = (folder / ".lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise StartRefused(f"another stack runs on {folder}") from None
    return handle


class Stack:
    """All processes of a system on this machine.

    `folder` holds everything it stores, `options` the counts. With `servers` it uses servers that
    run already and starts workers and gateways only. `environment` adds settings (QIM_...) to
    every service. `say` receives progress lines.
    """

    def __init__(
        self,
        folder: Path,
        options: StackOptions | None = None,
        *,
        servers: ServerAddresses | None = None,
        environment: Mapping[str, str] | None = None,
        say: Callable[[str], None] = _silent,
    ) -> None:
        self.folder = folder.resolve()
        self.options = options or StackOptions()
        self._external = servers
        self._extra = dict(environment or {})
        self._say = say
        self._lock: TextIOWrapper | None = None
        self._plan: StackPlan | None = None
        self._members: dict[str, Member] = {}
        self._wanted: set[str] = set()  # names that should be running now

    # What it consists of

    @property
    def plan(self) -> StackPlan:
        """Ports, counts and secrets; known once `start` was called."""
        if self._plan is None:
            raise StartRefused("the stack was not started")
        return self._plan

    @property
    def servers(self) -> ServerAddresses:
        """Where the broker and the Redis instances listen."""
        return self._external or self.plan.servers

    @property
    def values(self) -> dict[str, str]:
        """The settings shared by every service, as environment variables."""
        return service_values(self.plan, self.servers) | self._extra

    @property
    def settings(self) -> Settings:
        """The same, as clients and tools in this process use them."""
        return settings_of(self.values)

    @property
    def processes(self) -> dict[str, int]:
        """The process id of every member that runs: `gateway-0`, `worker-0`, `kafka`, ..."""
        return {
            name: pid
            for name, member in self._members.items()
            if (pid := member.process.pid) is not None
        }

    @property
    def addresses(self) -> dict[str, str]:
        """Every address by name: host:port, Redis as a URL."""
        plan, servers = self.plan, self.servers
        lists: Mapping[str, Iterable[str]] = {
            "gateway": (f"{LOOPBACK}:{port}" for port in plan.gateway_ports),
            "gateway-web": (f"{LOOPBACK}:{port}" for port in plan.gateway_web_ports),
            "worker-web": (f"{LOOPBACK}:{port}" for port in plan.worker_web_ports),
            "spare-web": (f"{LOOPBACK}:{port}" for port in plan.spare_web_ports),
            "mailbox": servers.mailbox_redis,
            "commit": servers.commit_redis,
        }
        named = {f"{kind}-{i}": a for kind, found in lists.items() for i, a in enumerate(found)}
        return {"kafka": servers.broker} | named

    def process(self, name: str) -> ManagedProcess:
        """Return a member's process, for its log or its exit code."""
        return self._members[name].process

    # Life

    async def start(self) -> None:
        """Start everything and return when all of it serves.

        Raises StartRefused or ProcessFailedError; whatever was started is stopped again.
        """
        self._lock = lock_folder(self.folder)
        try:
            self._plan = load_or_create(self.folder / "stack.json", self.options)
            await self._start_servers()
            await self._timed(
                "topics", create_topics(self.servers.broker, topic_specs(self.settings))
            )
            await self._start_services()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop services, then servers. Raises the first failure after everything was stopped."""
        services = [n for n, m in self._members.items() if isinstance(m, Service)]
        gateways = [name for name in services if name.startswith("gateway")]
        workers = [name for name in services if name not in gateways]
        others = [name for name in self._members if name not in services]
        problems: list[BaseException] = []
        for group in (gateways, workers, others):
            stops = (self.stop_one(name) for name in group)
            results = await asyncio.gather(*stops, return_exceptions=True)
            problems += [result for result in results if result is not None]
        self._members.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if problems:
            raise problems[0]

    async def __aenter__(self) -> Self:
        """Start on entry."""
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Stop on exit."""
        await self.stop()

    # Single processes

    def kill(self, name: str) -> None:
        """Kill one process with SIGKILL; it stays down until `restart`."""
        self._wanted.discard(name)
        self._members[name].kill()

    async def restart(self, name: str) -> None:
        """Start one process again on its data; one that runs is first stopped in order."""
        await self.stop_one(name)
        await self._start_one(name)

    async def stop_one(self, name: str) -> None:
        """Stop one process in order; it stays down until `restart`."""
        self._wanted.discard(name)
        if self._members[name].process.running:
            await self._members[name].stop()
            self._say(f"{name} stopped")

    def crashed(self) -> dict[str, ProcessFailedError]:
        """Return what ended by itself since it was started, with the end of its log."""
        return {
            name: process.failure(f"ended with {process.exit_code}")
            for name in sorted(self._wanted)
            if not (process := self._members[name].process).running
        }

    # Inside

    async def _start_servers(self) -> None:
        if self._external is not None:
            return
        plan = self.plan
        self._members["kafka"] = KafkaServer("kafka", *plan.kafka_ports, self.folder / "kafka")
        for role, kind, ports in (
            (RedisRole.MAILBOX, "mailbox", plan.mailbox_ports),
            (RedisRole.COMMIT, "commit", plan.commit_ports),
        ):
            for index, port in enumerate(ports):
                name = f"{kind}-{index}"
                self._members[name] = RedisServer(name, role, port, self.folder / name)
        await self._start_all(list(self._members))

    async def _start_services(self) -> None:
        plan = self.plan
        added: dict[str, Service] = {}
        for index, port in enumerate(plan.worker_web_ports):
            name = f"worker-{index}"
            slots = plan.slots_of(index)
            added[name] = worker_service(name, slots, port, self.folder / name, self.values)
        for index, port in enumerate(plan.spare_web_ports):
            name = f"spare-{index}"
            added[name] = worker_service(name, (), port, self.folder / name, self.values)
        for index, port in enumerate(plan.gateway_ports):
            name = f"gateway-{index}"
            web = plan.gateway_web_ports[index]
            address = f"{LOOPBACK}:{port}"
            added[name] = gateway_service(name, address, web, self.folder / name, self.values)
        self._members |= added
        await self._start_all(list(added))

    async def _start_all(self, names: list[str]) -> None:
        """Start members side by side; every start ends before the first failure is raised."""
        starts = (self._start_one(name) for name in names)
        results = await asyncio.gather(*starts, return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _start_one(self, name: str) -> None:
        await self._timed(name, self._members[name].start())
        self._wanted.add(name)

    async def _timed(self, name: str, work: Awaitable[None]) -> None:
        started_s = time.monotonic()
        await work
        self._say(f"{name} ready ({time.monotonic() - started_s:.1f} s)")
