"""What is rendered, parsed and chosen for the servers; no server is started."""

import socket
from pathlib import Path

import pytest

from ops.servers.docker import compose_command
from ops.servers.http import status_code
from ops.servers.kafka import kafka_properties, new_cluster_id
from ops.servers.ports import LOOPBACK, free_ports, is_listening, port_range, port_released
from ops.servers.process import log_tail
from ops.servers.provision import java_major, redis_version
from ops.servers.redis import RedisRole, redis_arguments


def arguments_of(role: RedisRole) -> dict[str, str]:
    parts = redis_arguments(role, 7001, Path("/data/r"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.contract("REDIS-03", "REDIS-04")
@pytest.mark.parametrize(
    ("role", "fsync"), [(RedisRole.MAILBOX, "everysec"), (RedisRole.COMMIT, "always")]
)
def test_redis_writes_a_log_as_its_role_needs_and_never_evicts(role: RedisRole, fsync: str) -> None:
    arguments = arguments_of(role)
    assert arguments["--appendonly"] == "yes"
    assert arguments["--appendfsync"] == fsync
    assert arguments["--no-appendfsync-on-rewrite"] == "no"
    assert arguments["--maxmemory-policy"] == "noeviction"
    assert arguments["--save"] == ""


def test_redis_listens_on_loopback_only() -> None:
    assert arguments_of(RedisRole.MAILBOX)["--bind"] == LOOPBACK


def test_kafka_properties_hold_ports_folder_and_single_copies() -> None:
    text = kafka_properties(7001, 7002, Path("/data/k"))
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["listeners"] == "PLAINTEXT://127.0.0.1:7001,CONTROLLER://127.0.0.1:7002"
    assert lines["advertised.listeners"] == "PLAINTEXT://127.0.0.1:7001"
    assert lines["controller.quorum.voters"] == "1@127.0.0.1:7002"
    assert lines["log.dirs"] == "/data/k"
    assert lines["auto.create.topics.enable"] == "false"
    factors = [name for name in lines if name.endswith(("replication.factor", "min.isr"))]
    assert len(factors) == 5
    assert {lines[name] for name in factors} == {"1"}


def test_cluster_id_is_sixteen_bytes_and_no_option() -> None:
    ids = {new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(text) == 22 and not text.startswith("-") for text in ids)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64", (7, 0, 15)),
        ("Redis server v=6.2.0 sha=0", (6, 2, 0)),
        ("Valkey server", None),
        ("", None),
    ],
)
def test_redis_version(text: str, version: tuple[int, int, int] | None) -> None:
    assert redis_version(text) == version


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("command not found", None),
    ],
)
def test_java_major(text: str, major: int | None) -> None:
    assert java_major(text) == major


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (b"HTTP/1.1 200 OK\r\n", 200),
        (b"HTTP/1.0 503 Service Unavailable\r\n", 503),
        (b"HTTP/1.1 20", None),
        (b"SSH-2.0-OpenSSH\r\n", None),
        (b"", None),
    ],
)
def test_status_code(reply: bytes, code: int | None) -> None:
    assert status_code(reply) == code


def test_ports_come_from_below_the_ephemeral_range() -> None:
    assert port_range("32768 60999") == range(10_000, 32_768)
    assert port_range("1024 65535") == range(10_000, 65_536)


def test_free_ports_are_distinct_and_avoid_a_bound_one() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    with socket.socket() as holder:
        holder.bind((LOOPBACK, ports[0]))
        assert ports[0] not in free_ports(50)


async def test_port_with_a_listener_is_not_released() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert is_listening(port)
        with pytest.raises(OSError, match="another process listens"):
            await port_released(port, timeout_s=0.05)
    await port_released(port, timeout_s=0.05)


def test_log_tail_gives_the_end_or_says_that_there_is_none(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert log_tail(log) == "(no log)"
    log.write_text("\n".join(map(str, range(100))))
    assert log_tail(log, lines=2) == "98\n99"


def test_compose_command_names_project_and_file() -> None:
    command = compose_command("qim-test-1", "up", "--wait")
    assert command[:2] == ["docker", "compose"]
    assert Path(command[3]).name == "compose.yaml"
    assert Path(command[3]).exists()
    assert command[4:] == ["-p", "qim-test-1", "up", "--wait"]
