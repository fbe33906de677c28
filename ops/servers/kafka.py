"""One Apache Kafka node (KRaft: broker and controller in one) as a child process.

The log folder is formatted once; later starts find what was there, also after `kill -9`. An open
port is no readiness: `start` returns when the broker lists itself in its own metadata. Topics have
leaders a moment later; `ops.topics` waits for those.

acks=all on a single node survives the process, not the machine: Kafka does not fsync before it
acknowledges (`log.flush.interval.messages` would, where one node has to stand for a cluster).
"""

import base64
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from ops.servers.ports import LOOPBACK, is_listening, port_released
from ops.servers.process import ManagedProcess
from ops.servers.provision import find_java, kafka_jars

__all__ = ["KafkaServer", "broker_answers", "kafka_properties", "new_cluster_id"]

_READY_S = 60.0
_STOP_S = 30.0
_LOGGING = Path(__file__).resolve().parent / "log4j2.properties"

# Sized for a machine of two cores that also runs everything else.
_JVM = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# One node: internal topics cannot have more than one copy.
_SINGLE_COPY = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
)


def kafka_properties(port: int, controller_port: int, log_folder: Path) -> str:
    """Return the server.properties of a node."""
    listeners = f"PLAINTEXT://{LOOPBACK}:{port}"
    settings: Mapping[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": log_folder,
        "auto.create.topics.enable": "false",
        **dict.fromkeys(_SINGLE_COPY, 1),
        "offsets.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # After a crash the controller waits for the old incarnation's session to run out: 9 s by
        # default. Shorter than a stall of a busy machine, it would fence a living broker.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "num.network.threads": 2,
        "num.io.threads": 2,
        "log.cleaner.backoff.ms": 500,
        "log.retention.check.interval.ms": 5000,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def new_cluster_id() -> str:
    """Return a fresh id in Kafka's own form: 16 bytes, base64url; never a leading dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        continue
    return text


async def broker_answers(address: str) -> bool:
    """Tell whether a Kafka broker at `host:port` answers a metadata request with itself in it."""
    log = logging.getLogger("aiokafka")
    level = log.level
    log.setLevel(logging.CRITICAL)  # A refused connection is an answer here, not an error.
    client = AIOKafkaClient(bootstrap_servers=address, request_timeout_ms=2000)
    try:
        await client.bootstrap()
        return bool(client.cluster.brokers())
    except KafkaError:
        return False
    finally:
        await client.close()
        log.setLevel(level)


class KafkaServer:
    """One node on its own ports and data folder; a restart finds what it had."""

    __slots__ = ("_java", "controller_port", "folder", "port", "process")

    def __init__(self, name: str, port: int, controller_port: int, folder: Path) -> None:
        self.port = port
        self.controller_port = controller_port
        self.folder = folder
        tuning = f"-Dlog4j2.configurationFile={_LOGGING}"
        self._java = [find_java(), *_JVM, tuning, "-cp", f"{kafka_jars()}/*"]
        argv = [*self._java, "kafka.Kafka", str(self._properties)]
        self.process = ManagedProcess(name, argv, folder / "kafka.log")

    @property
    def address(self) -> str:
        """The bootstrap address, `host:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _log_folder(self) -> Path:
        return self.folder / "log"

    async def _format_once(self) -> None:
        """Give the log folder its identity (1 s, the first time only)."""
        if (self._log_folder / "meta.properties").exists():
            return
        arguments = ["format", "-t", new_cluster_id(), "-c", str(self._properties)]
        argv = [*self._java, "kafka.tools.StorageTool", *arguments]
        tool = ManagedProcess(f"{self.process.name} format", argv, self.process.log_path)
        tool.spawn()
        if await tool.wait_end(_READY_S) != 0:
            raise tool.failure(f"ended with {tool.exit_code}")

    async def start(self) -> None:
        """Start the node and wait until it answers (2-3 s, a formatted folder sooner)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(
            kafka_properties(self.port, self.controller_port, self._log_folder)
        )
        await self._format_once()
        await port_released(self.port)
        self.process.spawn()
        await self.process.wait_ready(self._answers, _READY_S)

    async def stop(self) -> None:
        """Stop the node; it closes its logs, so that the next start checks nothing."""
        await self.process.stop(_STOP_S)

    def kill(self) -> None:
        """End the node as a crash would."""
        self.process.kill()

    async def _answers(self) -> bool:
        return is_listening(self.port) and await broker_answers(self.address)
