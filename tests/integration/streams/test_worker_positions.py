"""Where a worker starts, on a real broker: at W + 1, whatever the group committed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streams.pages import PAGE_RECORDS
from tests.integration.streams.conftest import MakeOptions
from tests.support.page_process import PageProcess, run_page_app
from tests.support.topic_tools import commit, committed, fill, make_topics, trim

PARTITIONS = 4  # as many as the options fixture says
ALL = range(PARTITIONS)


async def settled(app: PageProcess, last: int) -> None:
    for partition in ALL:
        await app.processed(partition, last)


def first_pages(app: PageProcess) -> dict[int, int]:
    return {p: app.of("page", partition=p)[0]["first"] for p in ALL if app.of("page", partition=p)}


@pytest.mark.contract("TAKE-02", "TAKE-07")
@pytest.mark.parametrize("claimed", [0, 300, 600], ids=["behind", "level", "ahead"])
async def test_start_is_w_plus_1_whatever_the_group_committed(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path, claimed: int
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, 300))
    async with run_page_app(options(), tmp_path / "log") as app:
        await settled(app, 299)
        assert await app.terminate() == 0
    await fill(broker, app_id, dict.fromkeys(ALL, 300))
    await commit(broker, app_id, dict.fromkeys(ALL, claimed))

    async with run_page_app(options(), tmp_path / "log") as app:
        await settled(app, 599)

        assert first_pages(app) == dict.fromkeys(ALL, 300)


@pytest.mark.contract("TAKE-07")
async def test_nothing_is_delivered_before_the_start_position_is_known(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, 300))
    async with run_page_app(options(), tmp_path / "log") as app:
        await settled(app, 299)
        assert await app.terminate() == 0
    await fill(broker, app_id, dict.fromkeys(ALL, 50))
    await commit(broker, app_id, dict.fromkeys(ALL, 10))

    async with run_page_app(options(late_start_s=1.0), tmp_path / "log") as app:
        await settled(app, 349)

        (start,) = app.of("start")
        assert min(page["at"] for page in app.of("page")) >= start["at"] + 1.0
        assert first_pages(app) == dict.fromkeys(ALL, 300)
        assert app.of("failed") == []  # a page out of turn fails its shard
        assert app.of("stale") == []


@pytest.mark.contract("ADAPT-06")
async def test_stop_finishes_the_page_in_hand_and_commits_exactly_that(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, 5000))
    async with run_page_app(options(), tmp_path / "log") as app:
        await app.until(lambda: len(app.of("page")) > 4)
        assert await app.terminate() == 0

        (drained,) = app.of("drained")
        marks = {int(p): mark for p, mark in drained["marks"].items()}
        assert max(marks.values()) < 4999, "it was stopped in the middle"
        assert await committed(broker, app_id) == {p: mark + 1 for p, mark in marks.items()}

    async with run_page_app(options(), tmp_path / "log") as app:
        (start,) = await app.until(lambda: app.of("start"))
        assert {int(p): o for p, o in start["offsets"].items()} == {
            p: marks.get(p, -1) + 1 for p in ALL
        }


@pytest.mark.contract("TAKE-02", "ADAPT-05")
@pytest.mark.fault
async def test_crash_with_the_tables_deleted_starts_every_shard_at_w_plus_1(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, 5000))
    async with run_page_app(options(crash_after=8000), tmp_path / "log") as app:
        assert await app.ended() == 9
        done = {p: app.of("page", partition=p)[-1]["last"] for p in ALL}
    shutil.rmtree(tmp_path / "data")

    async with run_page_app(options(), tmp_path / "log") as app:
        await settled(app, 4999)

        (start,) = app.of("start")
        # The page in hand may have become durable without having been reported.
        offsets = {int(p): o for p, o in start["offsets"].items()}
        assert all(offsets[p] > done[p] for p in ALL)
        rows = {int(p): n for p, n in start["rows"].items()}
        # One row a record, and at most the rows of one page that W does not cover yet.
        assert all(offsets[p] <= rows[p] <= offsets[p] + PAGE_RECORDS for p in ALL)
        assert first_pages(app) == offsets
        assert app.of("failed") == []


@pytest.mark.contract("LOG-08")
async def test_start_below_the_log_fails_closed(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, 300))
    async with run_page_app(options(), tmp_path / "log") as app:
        await settled(app, 299)
        assert await app.terminate() == 0
    await fill(broker, app_id, dict.fromkeys(ALL, 300))
    await trim(broker, app_id, 2, 400)

    async with run_page_app(options(), tmp_path / "log") as app:
        assert await app.ended() != 0
        assert app.of("page") == []
        assert "start offsets outside the log" in app.log.read_text()


@pytest.mark.contract("LOG-11")
@pytest.mark.parametrize("declared", [8, 0], ids=["other count", "missing topic"])
async def test_topic_that_differs_from_its_declaration_fails_the_start(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path, declared: int
) -> None:
    if declared:
        await make_topics(broker, app_id, PARTITIONS)
    impatient = options(partitions=declared or PARTITIONS, overrides={"start_timeout_s": 1.0})

    async with run_page_app(impatient, tmp_path / "log") as app:
        assert await app.ended() != 0

        words = "partition counts differ" if declared else "topics without partitions"
        assert words in app.log.read_text()
