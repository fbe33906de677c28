"""Flow of single partitions on a real broker: one is held, fails or is repositioned while the others go on."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import aiohttp
import pytest

from ops.servers.ports import free_ports
from tests.integration.streams.conftest import MakeOptions
from tests.support.page_process import PageProcess, run_page_app
from tests.support.topic_tools import fill, make_topics

PARTITIONS = 4
ALL = range(PARTITIONS)
SLOW = 1
OTHERS = [p for p in ALL if p != SLOW]
PER_PARTITION = 20_000  # more than a shard's queue holds


def finished_at(app: PageProcess, partition: int) -> float:
    return float(app.of("page", partition=partition)[-1]["at"])


def runs_without_gap(app: PageProcess, partition: int) -> bool:
    pages = app.of("page", partition=partition)
    return all(a["last"] + 1 == b["first"] for a, b in itertools.pairwise(pages))


@pytest.mark.contract("REG-21", "FAN-10", "FAN-09")
async def test_reg_21_full_shard_holds_only_its_own_partition(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, PER_PARTITION))

    async with run_page_app(options(slow_partition=SLOW, slow_s=0.03), tmp_path / "log") as app:
        for partition in ALL:
            await app.processed(partition, PER_PARTITION - 1)
        status = await app.ask("status")

    assert status["most"][str(SLOW)] >= 16, "the queue did fill up"
    assert status["most"][str(SLOW)] <= 32, "and the partition was held in time"
    assert all(runs_without_gap(app, p) for p in ALL), "held, and nothing lost"
    assert app.of("failed") == []
    slowest = max(finished_at(app, p) for p in OTHERS)
    half = [page for page in app.of("page", partition=SLOW) if page["at"] > slowest]
    assert len(half) > PER_PARTITION // 256 // 2, "the others did not wait for the slow one"


@pytest.mark.contract("FAN-09")
async def test_failed_shard_is_repositioned_while_the_others_flow(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, PER_PARTITION))
    failing = options(fail_partition=SLOW, fail_at=5000)

    async with run_page_app(failing, tmp_path / "log") as app:
        (failed,) = await app.until(lambda: app.of("failed"))
        for partition in OTHERS:
            await app.processed(partition, PER_PARTITION - 1)
        before = app.of("page", partition=SLOW)[-1]["last"]
        assert before == failed["next"] - 1, "the failed shard stopped"
        await fill(broker, app_id, dict.fromkeys(OTHERS, PER_PARTITION))
        app.command(f"restart {SLOW}")
        for partition in OTHERS:
            await app.processed(partition, 2 * PER_PARTITION - 1)
        await app.processed(SLOW, PER_PARTITION - 1)

    (moved,) = app.of("repositioned")
    assert moved["offset"] == failed["next"]
    assert len(app.of("failed")) == 1
    assert all(runs_without_gap(app, p) for p in ALL)


@pytest.mark.contract("REG-14", "LOG-10")
async def test_reg_14_positions_are_set_once_and_many_polls_move_on(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    async with run_page_app(options(), tmp_path / "log") as app:
        await app.until(lambda: app.of("start"))
        for last in range(20):  # each record comes with a poll of its own
            await fill(broker, app_id, dict.fromkeys(ALL, 1))
            for partition in ALL:
                await app.processed(partition, last)
        status = await app.ask("status")

    assert status["places"] == PARTITIONS
    assert all(runs_without_gap(app, p) for p in ALL)


@pytest.mark.contract("TAKE-08")
async def test_ready_answers_503_until_the_backlog_is_processed(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, 2000))
    (port,) = free_ports(1)
    late = options(web_port=port, late_start_s=0.5, slow_partition=SLOW, slow_s=0.1)
    answers: list[tuple[int, int]] = []

    async with (
        run_page_app(late, tmp_path / "log") as app,
        aiohttp.ClientSession() as http,
    ):
        await app.until(lambda: app.of("start"))
        async with asyncio.timeout(20):
            while not answers or answers[-1][0] != 200:
                done = app.of("page", partition=SLOW)
                async with http.get(f"http://127.0.0.1:{port}/ready") as reply:
                    answers.append((reply.status, done[-1]["last"] if done else -1))

    assert answers[0] == (503, -1)
    assert {status for status, last in answers if last < 1999 - 256} == {503}
    assert answers[-1][0] == 200
