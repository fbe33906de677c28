from collections.abc import Mapping

import pytest

from stores.redis_gate import RedisRole, is_local, judge, parse_info

INFO = "# Server\r\nredis_version:7.0.15\r\nprocess_id:4\r\n# Cluster\r\ncluster_enabled:0\r\n"
CONFIG: dict[str, str | None] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "no-appendfsync-on-rewrite": "no",
    "save": "",
    "auto-aof-rewrite-min-size": "268435456",
    "auto-aof-rewrite-percentage": "100",
}


def faults(
    role: RedisRole = RedisRole.COMMIT,
    info: str = INFO,
    config: Mapping[str, str | None] | None = None,
    *,
    skip: bool = False,
) -> list[str]:
    known = {
        name: value for name, value in {**CONFIG, **(config or {})}.items() if value is not None
    }
    return judge(role, parse_info(info), known, skip_durability=skip)


@pytest.mark.contract("REDIS-01", "REDIS-02", "REDIS-03", "REDIS-04")
def test_a_durable_standalone_server_is_accepted_in_both_roles() -> None:
    assert faults(RedisRole.COMMIT) == []
    assert faults(RedisRole.MAILBOX) == []
    assert (
        faults(
            RedisRole.MAILBOX,
            config={"appendfsync": "everysec", "no-appendfsync-on-rewrite": "yes"},
        )
        == []
    )


@pytest.mark.contract("GATE-08", "REDIS-01")
@pytest.mark.parametrize(
    "version", ["6.2.14", "6.99.99", "7.0", "7", "7.0.15-rc1", "07.0.15", "v7.0.15", "", "7.0.15.1"]
)
def test_gate_08_an_old_or_unreadable_version_is_refused(version: str) -> None:
    for skip in (False, True):
        assert len(faults(info=INFO.replace("7.0.15", version), skip=skip)) == 1


@pytest.mark.contract("GATE-08", "REDIS-01")
@pytest.mark.parametrize("version", ["7.0.0", "7.4.2", "8.0.1", "10.0.0"])
def test_gate_08_versions_are_compared_as_numbers(version: str) -> None:
    assert faults(info=INFO.replace("7.0.15", version)) == []


@pytest.mark.contract("GATE-08", "REDIS-01")
def test_gate_08_no_version_or_two_are_refused_first() -> None:
    assert (
        "redis_version"
        in faults(info=INFO.replace("redis_version", "x"), config={"appendonly": "no"})[0]
    )
    assert (
        "redis_version"
        in faults(info=INFO + "redis_version:7.0.15\r\n", config={"appendonly": "no"})[0]
    )


@pytest.mark.contract("GATE-08", "REDIS-02", "REDIS-05")
@pytest.mark.parametrize("line", ["cluster_enabled:1", "cluster_enabled:", "other:0"])
def test_gate_08_cluster_is_refused_even_for_development(line: str) -> None:
    for skip in (False, True):
        assert len(faults(info=INFO.replace("cluster_enabled:0", line), skip=skip)) == 1


@pytest.mark.contract("GATE-08", "REDIS-03")
@pytest.mark.parametrize("role", list(RedisRole))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appendonly", "no"),
        ("appendonly", None),
        ("appendfsync", "no"),
        ("appendfsync", None),
        ("appendfsync", "sometimes"),
        ("maxmemory-policy", "allkeys-lru"),
        ("maxmemory-policy", None),
    ],
)
def test_gate_08_weak_or_unreadable_durability_is_refused(
    role: RedisRole, name: str, value: str | None
) -> None:
    assert len(faults(role, config={name: value})) == 1
    assert faults(role, config={name: value}, skip=True) == []


@pytest.mark.contract("REG-29", "REDIS-04")
def test_reg_29_a_commit_redis_that_may_lose_a_second_is_refused_a_mailbox_redis_is_not() -> None:
    everysec = {"appendfsync": "everysec"}
    assert "must be always" in faults(RedisRole.COMMIT, config=everysec)[0]
    assert faults(RedisRole.MAILBOX, config=everysec) == []


@pytest.mark.contract("GATE-09", "REDIS-04", "CON-05", "REG-29")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("appendfsync", "everysec"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("no-appendfsync-on-rewrite", None),
    ],
)
def test_gate_09_commit_redis_must_fsync_always(name: str, value: str | None) -> None:
    assert len(faults(RedisRole.COMMIT, config={name: value})) == 1
    if value is not None:
        assert faults(RedisRole.MAILBOX, config={name: value}) == []


@pytest.mark.contract("REG-51", "REDIS-11")
@pytest.mark.parametrize("role", list(RedisRole))
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("save", "3600 1 300 100 60 10000"),
        ("save", None),
        ("auto-aof-rewrite-min-size", "67108864"),
        ("auto-aof-rewrite-min-size", "lots"),
        ("auto-aof-rewrite-min-size", None),
        ("auto-aof-rewrite-percentage", None),
    ],
)
def test_reg_51_forks_that_nobody_decided_on_are_refused(
    role: RedisRole, name: str, value: str | None
) -> None:
    assert len(faults(role, config={name: value})) == 1
    assert faults(role, config={name: value}, skip=True) == []


@pytest.mark.contract("REG-51", "REDIS-11")
def test_reg_51_an_aof_that_is_never_rewritten_by_itself_is_a_decision() -> None:
    decided = {"auto-aof-rewrite-min-size": "67108864", "auto-aof-rewrite-percentage": "0"}
    assert faults(config=decided) == []


@pytest.mark.contract("REDIS-05")
def test_only_this_machine_counts_as_local() -> None:
    local = [
        "redis://127.0.0.1:1/0",
        "redis://[::1]:1",
        "redis://localhost",
        "unix:///run/x",
        "redis://127.9.9.9",
    ]
    remote = [
        "redis://10.0.0.1:1/0",
        "redis://redis:6379",
        "redis://localhost.evil.example",
        "redis://0.0.0.0",
    ]
    assert [is_local(url) for url in local] == [True] * len(local)
    assert [is_local(url) for url in remote] == [False] * len(remote)
