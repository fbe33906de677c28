"""Tables on a real broker: what a page write leaves in the changelog is all that recovery needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.streams.conftest import MakeOptions
from tests.support.page_process import run_page_app
from tests.support.topic_tools import fill, make_topics, read_changelog

PARTITIONS = 4
ALL = range(PARTITIONS)


@pytest.mark.contract("ADAPT-05")
async def test_deleted_tables_come_back_equal_row_by_row(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, {0: 3000, 1: 1, 2: 700})  # partition 3 stays empty
    async with run_page_app(options(), tmp_path / "log") as app:
        for partition, last in ((0, 2999), (1, 0), (2, 699)):
            await app.processed(partition, last)
        written = (await app.ask("digest"))["digest"]
        assert await app.terminate() == 0
    assert len(written) == 2 * PARTITIONS
    shutil.rmtree(tmp_path / "data")

    async with run_page_app(options(), tmp_path / "log") as app:
        await app.until(lambda: app.of("start"))
        assert (await app.ask("digest"))["digest"] == written


async def test_stock_faust_recovers_the_same_rows_from_page_writes(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, dict.fromkeys(ALL, 600))
    async with run_page_app(options(), tmp_path / "log") as app:
        for partition in ALL:
            await app.processed(partition, 599)
        written = (await app.ask("digest"))["digest"]
        assert await app.terminate() == 0

    stock = options(data_dir=str(tmp_path / "stock"))
    async with run_page_app(stock, tmp_path / "stock.log", "tests.support.stock_app") as faust:
        (report,) = await faust.until(lambda: faust.of("digest"))

    assert report["digest"] == written


async def test_changelog_holds_key_and_row_bytes_as_written(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, PARTITIONS)
    await fill(broker, app_id, {0: 300}, value=b"v\x00\xff")
    async with run_page_app(options(), tmp_path / "log") as app:
        await app.processed(0, 299)
        assert await app.terminate() == 0

    rows = await read_changelog(broker, app_id, "seen", 0)
    assert rows == [(b"%016d" % offset, b"v\x00\xff") for offset in range(300)]
    marks = await read_changelog(broker, app_id, "marks", 0)
    assert marks[-1] == (b"W", b"299")
