"""What runs beside everything else: begun once, ended where it stands, never dead in silence."""

from __future__ import annotations

import asyncio
import logging

import pytest

from schemas.background import Background


async def test_it_runs_once_from_start_to_stop_and_again() -> None:
    begun = ended = 0

    async def work() -> None:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.sleep(3600)
        finally:
            ended += 1

    background = Background("rounds", work)
    await background.stop()
    for rounds in (1, 2):
        background.start()
        background.start()
        await asyncio.sleep(0)
        await background.stop()
        await background.stop()
        assert (begun, ended) == (rounds, rounds)


async def test_a_defect_that_ends_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError("planted")

    background = Background("rounds", work)
    background.start()
    assert background.task is not None
    await asyncio.wait({background.task})
    await asyncio.sleep(0)

    assert [r.levelno for r in caplog.records] == [logging.CRITICAL]
    assert caplog.records[0].getMessage() == "rounds ended by a defect"
    await background.stop()
