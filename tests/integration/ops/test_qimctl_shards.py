"""`qimctl shards`, `shard restart` and `topics` against a real worker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ops.servers.ports import LOOPBACK
from schemas.config import Settings
from schemas.topics import topic_specs
from tests.support.qimctl_tools import Bench, Qimctl, open_bench, run_qimctl
from tests.support.refusals import running, worker_argv
from tests.support.topic_tools import make_anew

_LIMIT_S = 30.0
_TOKEN = {"QIM_CONTROL_TOKEN": "the operator's"}


@pytest.fixture
async def bench(settings: Settings, tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(settings, tmp_path) as made:
        yield made


class Worker:
    """A running worker as `qimctl` sees it."""

    def __init__(self, settings: Settings, port: int) -> None:
        self._settings = settings
        self._worker = ("--worker", f"{LOOPBACK}:{port}")

    async def shards(self) -> list[dict[str, Any]]:
        """`qimctl shards --json`."""
        ran = await run_qimctl(self._settings, "shards", "--json", *self._worker)
        return [json.loads(line) for line in ran.out.splitlines()]

    async def until(self, shard: int, seen: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first sight of a shard that is as asked."""
        deadline_s = time.monotonic() + _LIMIT_S
        while True:
            line = (await self.shards())[shard]
            if seen(line):
                return line
            assert time.monotonic() < deadline_s, line
            await asyncio.sleep(0.2)  # a worker tells nobody how far it is

    async def restart(self, shard: int, environment: dict[str, str], limit: str = "30") -> Qimctl:
        """`qimctl shard restart N`."""
        command = ("shard", "restart", str(shard), "--timeout", limit, *self._worker)
        return await run_qimctl(self._settings, *command, environment=environment)


@pytest.mark.contract("FAN-10", "TAKE-01")
async def test_a_failed_shard_is_shown_and_taken_again_by_order(
    bench: Bench, settings: Settings, tmp_path: Path
) -> None:
    await bench.fill()
    wm = f"{settings.app_id}:wm:3"
    async with running(worker_argv(), settings, tmp_path / "worker", **_TOKEN) as port:
        worker = Worker(settings, port)
        lines = await worker.shards()
        assert [line["state"] for line in lines] == ["running"] * 8
        assert {line["owner"] for line in lines} == {"worker-0"}
        assert lines[1]["store_w"] == lines[1]["table_w"] == [25, 25]
        # The page of before was written by another owner: taking over raised the epoch where its log ended (TAKE-04).
        assert lines[1]["boundaries"] == [[1, 0], [2, 26]]
        assert all(0 < line["lease_ttl_ms"] <= 15_000 for line in lines)

        await bench.command(1, "RENAME", wm, f"{wm}:kept")
        await bench.command(1, "SET", wm, "damage")
        await bench.log([bench.made(shard, 2) for shard in (3, 4)])
        failed = await worker.until(3, lambda line: line["state"] == "failed")
        assert "wrong_type" in failed["failure"]
        await worker.until(4, lambda line: line["table_w"] == [20, 20])  # the others go on
        shown = await run_qimctl(settings, "shards", "--worker", f"{LOOPBACK}:{port}")
        assert shown.exit_code == 1
        assert "failed" in shown.out.splitlines()[4]

        for environment, why in (
            ({}, "wrong control token"),
            ({"QIM_CONTROL_TOKEN": "another's"}, "wrong control token"),
            (_TOKEN, "failed again"),  # the damage is still there
        ):
            refused = await worker.restart(3, environment, limit="2")
            assert (refused.exit_code, why in refused.err[-1]) == (1, True), refused
        await bench.command(1, "RENAME", f"{wm}:kept", wm)
        again = await worker.restart(3, _TOKEN)
        assert again.exit_code == 0, again
        healed = await worker.until(3, lambda line: line["table_w"] == [20, 20])
        assert healed["state"] == "running"
        assert healed["term"] > failed["term"]
    assert (await bench.verify())["equal"]


async def test_shards_that_nobody_owns_are_shown_so(bench: Bench, settings: Settings) -> None:
    ran = await run_qimctl(settings, "shards")
    assert ran.exit_code == 1
    assert len(ran.out.splitlines()) == 9
    restart = await run_qimctl(settings, "shard", "restart", "3")
    assert restart.exit_code == 1
    assert "no worker that answers holds shard 3" in restart.err[-1]


@pytest.mark.contract("LOG-02")
async def test_topics_are_shown_and_a_new_push_topic_is_accepted(
    bench: Bench, settings: Settings
) -> None:
    shown = await run_qimctl(settings, "topics")
    assert shown.exit_code == 0
    assert len(shown.out.splitlines()) == 6

    _, dispatch, _, _, push = topic_specs(settings)
    await make_anew(settings.broker, push)
    refused = await run_qimctl(settings, "topics")
    assert refused.exit_code == 1
    assert "! " in refused.out
    other = await run_qimctl(settings, "topics", "--accept", dispatch.name)
    assert other.exit_code == 1
    assert "only the push topic" in other.err[-1]
    accepted = await run_qimctl(settings, "topics", "--accept", push.name)
    assert accepted.exit_code == 0, accepted
