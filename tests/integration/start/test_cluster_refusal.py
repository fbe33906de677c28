"""ACC-M6: writer and mailbox are started with a real three-node Redis Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.config import Settings
from schemas.topics import topic_specs
from stores.log_gate import read_log
from tests.support.redis_cluster import RedisCluster, run_cluster
from tests.support.refusals import attempt, gateway_argv, worker_argv


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RedisCluster]:
    async with run_cluster(tmp_path / "cluster") as nodes:
        await nodes.plant(20)
        yield nodes


async def ends(settings: Settings) -> object:
    return (await read_log(settings.broker, topic_specs(settings))).ranges


@pytest.mark.contract("ACC-M6", "REDIS-02", "REDIS-05", "GATE-08")
@pytest.mark.parametrize("unsafe", ["0", "1"], ids=["strict", "developer switch"])
async def test_acc_m6_a_worker_refuses_a_cluster_and_writes_nothing(
    settings: Settings, cluster: RedisCluster, tmp_path: Path, unsafe: str
) -> None:
    wrong = settings.model_copy(update={"mailbox_redis": tuple(cluster.urls[:2])})
    keys, log = await cluster.dump(), await ends(settings)
    assert len(keys) == 20

    end = await attempt(worker_argv(), wrong, tmp_path, QIM_REDIS_ALLOW_UNSAFE_DEV=unsafe)

    assert end.exit_code > 0
    assert not end.was_ready
    assert "only standalone Redis is supported" in end.log
    assert await cluster.dump() == keys
    assert await ends(settings) == log


@pytest.mark.contract("ACC-M6", "REDIS-02", "GATE-08")
@pytest.mark.parametrize("role", ["mailbox_redis", "commit_redis"])
async def test_acc_m6_a_gateway_refuses_a_cluster_and_writes_nothing(
    settings: Settings, cluster: RedisCluster, tmp_path: Path, role: str
) -> None:
    wrong = settings.model_copy(update={role: tuple(cluster.urls[:1])})
    keys, log = await cluster.dump(), await ends(settings)

    end = await attempt(gateway_argv(), wrong, tmp_path)

    assert end.exit_code > 0
    assert not end.was_ready
    assert "only standalone Redis is supported" in end.log
    assert await cluster.dump() == keys
    assert await ends(settings) == log
