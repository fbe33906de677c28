"""Static ownership on a real broker: each worker reads its slots only, and never notices another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.streams.conftest import MakeOptions
from tests.support.page_process import run_page_app
from tests.support.topic_tools import fill, make_topics

EVEN, ODD = [0, 2], [1, 3]


@pytest.mark.contract("TAKE-06", "ADAPT-01")
@pytest.mark.fault
async def test_owner_reads_its_slots_only_and_no_rebalance_follows_a_crash(
    options: MakeOptions, broker: str, app_id: str, tmp_path: Path
) -> None:
    await make_topics(broker, app_id, 4)
    await fill(broker, app_id, dict.fromkeys(range(4), 1000))
    evens = options(slot_count=2, slots=[0], data_dir=str(tmp_path / "even"))
    odds = options(slot_count=2, slots=[1], data_dir=str(tmp_path / "odd"))

    async with run_page_app(odds, tmp_path / "odd.log") as odd:
        async with run_page_app(evens, tmp_path / "even.log") as even:
            for app, owned in ((even, EVEN), (odd, ODD)):
                for partition in owned:
                    await app.processed(partition, 999)
            await even.kill()
        assert {page["partition"] for page in even.of("page")} == set(EVEN)

        await fill(broker, app_id, dict.fromkeys(range(4), 1000))
        for partition in ODD:
            await odd.processed(partition, 1999)
        assert len(odd.of("start")) == 1
        assert {page["partition"] for page in odd.of("page")} == set(ODD)

        async with run_page_app(evens, tmp_path / "even.log") as even:
            for partition in EVEN:
                await even.processed(partition, 1999)
            assert {int(p) for p in even.of("start")[0]["offsets"]} == set(EVEN)
        assert len(odd.of("start")) == 1
