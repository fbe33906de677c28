"""Rebuild what a real worker wrote: the replay gives the same bytes, and no device misses a message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.conftest import StartStack
from tests.support.qimctl_tools import run_qimctl
from tests.support.traffic import NOTHING_WRONG, Traffic

pytestmark = pytest.mark.fault


@pytest.mark.contract("TAKE-09", "ADAPT-05", "TAKE-05")
async def test_everything_derived_is_thrown_away_and_comes_back_as_the_worker_wrote_it(
    start_stack: StartStack, tmp_path: Path
) -> None:
    stack = await start_stack()
    settings, worker = stack.settings, stack.process("worker-0")
    traffic = Traffic(stack, 8)
    await traffic.connect()
    await traffic.run(60, 4.0)
    shards = await run_qimctl(settings, "shards", "--json")
    owned = [json.loads(line) for line in shards.out.splitlines()]
    assert {line["owner"] for line in owned} == {"worker-0"}

    live = await run_qimctl(settings, "rebuild", "all", "--state", str(tmp_path / "kept.json"))
    assert live.exit_code == 1
    assert "stop the workers first" in live.err[-1]

    comparing = asyncio.create_task(run_qimctl(settings, "rebuild", "--verify"))
    await traffic.run(60, 4.0)  # a comparison of a system at work
    compared = await comparing
    assert compared.exit_code == 0, compared

    await worker.stop(30.0)
    rebuilt = await run_qimctl(
        settings,
        *("rebuild", "all", "--verify", "--state", str(tmp_path / "kept.json")),
        *("--data", str(stack.folder / "worker-0" / "tables"), "--json", str(tmp_path / "r.json")),
    )
    assert rebuilt.exit_code == 0, rebuilt
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["mailbox"]["compared"] == 16
    assert report["progress"]["compared"] == report["records"] > 480
    assert any("removed" in line for line in rebuilt.err)

    await stack.restart("worker-0")
    await traffic.run(60, 2.0)
    counts = await traffic.judge()
    await traffic.close()
    assert counts == NOTHING_WRONG
    again = await run_qimctl(settings, "rebuild", "--verify")
    assert again.exit_code == 0, again
