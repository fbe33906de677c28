"""What a takeover finds on real servers: committed offsets that ran ahead (M-2), damaged progress (M-3), late rows of a zombie."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from aiokafka import TopicPartition
from rocksdict import Options, Rdict

from ops.plan import StackOptions
from ops.qimctl.logs import LogWriter, read_table, read_watermark
from ops.stack import Stack
from schemas.constants import LANE_COUNT
from schemas.identifiers import lane_of, shard_of
from schemas.records import DISPATCH_PROGRESS, WATERMARK_ROW
from schemas.topics import PROGRESS_TABLE, WATERMARKS_TABLE, changelog_topic, dispatch_topic
from schemas.watermarks import w_of
from tables.log_reader import LogReader
from tables.progress import is_dispatch_row
from tables.watermarks import WATERMARK_KEY
from tests.support.qimctl_tools import run_qimctl
from tests.support.stack_reads import entries
from tests.support.topic_tools import commit_offsets
from tests.support.traffic import NOTHING_WRONG, TENANT, Person, Traffic
from tests.support.web_pages import fetch, metrics_of

pytestmark = pytest.mark.fault

_RATE_PER_S = 80
_PAIRS = 12
_LIMIT_S = 30.0


async def dispatch_ends(stack: Stack) -> dict[TopicPartition, int]:
    topic = dispatch_topic(stack.settings.app_id)
    async with LogReader(stack.settings.broker) as reader:
        ranges = await reader.ranges(topic, range(stack.plan.shards))
    return {TopicPartition(topic, shard): end for shard, (_, end) in ranges.items()}


async def logged_w(stack: Stack, shard: int) -> int:
    """The lowest W of a shard that the log has."""
    topic = changelog_topic(stack.settings.app_id, WATERMARKS_TABLE)
    async with LogReader(stack.settings.broker) as reader:
        row = await read_watermark(reader, topic, shard, 10_000)
    return -1 if row is None else min(w_of(row["w"], lane) for lane in range(LANE_COUNT))


@pytest.mark.contract("ACC-M2", "TAKE-01", "TAKE-02", "TAKE-09")
async def test_acc_m2_offsets_committed_before_the_crash_skip_nothing_at_a_takeover(
    tmp_path: Path,
) -> None:
    async with Stack(tmp_path / "stack", StackOptions(workers=1, spares=1)) as stack:
        traffic = Traffic(stack, _PAIRS)
        await traffic.connect()
        before: dict[tuple[bytes, bytes], bytes] = {}

        async def damage() -> None:
            nonlocal before
            await asyncio.sleep(11)  # the spare waits 10 s before it takes what is not its own
            servers = [pid for name, pid in stack.processes.items() if name.startswith("mailbox")]
            for pid in servers:
                os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(1)
                stack.kill("worker-0")  # dispatches are in the log, no mailbox has them
            finally:
                for pid in servers:
                    os.kill(pid, signal.SIGCONT)
            ends = await dispatch_ends(stack)
            waiting = [
                tp for tp, end in ends.items() if await logged_w(stack, tp.partition) < end - 1
            ]
            assert waiting, "nothing was left to materialize: this proves nothing"
            await commit_offsets(stack.settings.broker, stack.settings.app_id, ends)
            before = await entries(stack)

        try:
            await traffic.run(_RATE_PER_S, 14, damage)
            assert await traffic.judge() == NOTHING_WRONG
        finally:
            await traffic.close()
        after = await entries(stack)
        assert before
        assert (
            before.items() <= after.items()
        ), "what was written before the crash is there byte by byte"
        assert len(after) == 2 * 14 * _RATE_PER_S


def in_lane(people: Sequence[Person], shard: int, lane: int, shards: int) -> list[bool]:
    return [
        (shard_of(TENANT, person.user, shards), lane_of(TENANT, person.user)) == (shard, lane)
        for person in people
    ]


def leave_unfinished(folder: Path, shard: int, lane: int) -> None:
    """Damage a worker's table: the newest dispatch of a shard loses a lane that W had passed."""
    path = folder / "tables" / "v1" / "tables" / f"{PROGRESS_TABLE}-{shard}.db"
    db = Rdict(str(path), Options(raw_mode=True))
    try:
        raw = cast("dict[bytes, bytes]", dict(db.items()))
        dispatches = [k for k in raw if is_dispatch_row(k) and not k.startswith(b"__faust")]
        rows = {key: DISPATCH_PROGRESS.decode(raw[key]) for key in dispatches}
        key, row = max(rows.items(), key=lambda item: item[1]["canonical_log_offset"])
        row["unfinished_lanes"] = [lane]
        row["done"] -= 1
        db[key] = DISPATCH_PROGRESS.encode(row)
    finally:
        db.close()


@pytest.mark.contract("ACC-M3", "TAKE-01", "WM-06", "WM-07", "OBS-04")
async def test_acc_m3_a_lane_whose_progress_is_damaged_is_refused_and_all_others_go_on(
    tmp_path: Path,
) -> None:
    async with Stack(tmp_path / "stack", StackOptions()) as stack:
        traffic = Traffic(stack, _PAIRS)
        await traffic.connect()
        try:
            await traffic.run(_RATE_PER_S, 4)
            assert await traffic.judge() == NOTHING_WRONG
            victim, shards = traffic.pairs[0][1].user, stack.plan.shards
            shard, lane = shard_of(TENANT, victim, shards), lane_of(TENANT, victim)
            hit = [any(in_lane(pair, shard, lane, shards)) for pair in traffic.pairs]
            shown = len(traffic.pairs[0][1].devices[0].timeline.entries)

            await stack.stop_one("worker-0")
            leave_unfinished(stack.folder / "worker-0", shard, lane)
            await stack.restart("worker-0")

            web = stack.addresses["worker-web-0"]
            metrics = await metrics_of(web)
            assert metrics.value("qim_watermark_below_floor_total") == 1
            assert (await fetch(web, "/healthz"))[0] == 503
            await traffic.run(_RATE_PER_S, 3)
            unhurt = [number for number, touched in enumerate(hit) if not touched]
            assert len(unhurt) >= _PAIRS // 2
            assert await traffic.judge(unhurt) == NOTHING_WRONG
            device = traffic.pairs[0][1].devices[0]
            device.pull()
            await asyncio.sleep(1)
            assert len(device.timeline.entries) == shown, "served nothing while its lane is refused"

            await stack.stop_one("worker-0")
            rebuilt = await run_qimctl(
                stack.settings,
                *("rebuild", "table", "--state", str(tmp_path / "kept.json")),
                *("--data", str(stack.folder / "worker-0" / "tables")),
            )
            assert "error" not in " ".join(rebuilt.err).lower(), rebuilt
            await stack.restart("worker-0")
            assert (await fetch(web, "/healthz"))[0] == 200
            assert await traffic.judge() == NOTHING_WRONG
        finally:
            await traffic.close()


@pytest.mark.contract("TAKE-01", "TAKE-02", "DP-03", "WM-04")
async def test_late_rows_in_a_changelog_are_found_and_do_not_stay_the_last_ones(
    tmp_path: Path,
) -> None:
    """As a zombie writes them: an old watermark row, and a progress index that ends earlier."""
    async with Stack(tmp_path / "stack", StackOptions()) as stack:
        settings = stack.settings
        topics = [changelog_topic(settings.app_id, t) for t in (PROGRESS_TABLE, WATERMARKS_TABLE)]
        traffic = Traffic(stack, _PAIRS)
        await traffic.connect()
        try:
            await traffic.run(_RATE_PER_S, 3)
            assert await traffic.judge() == NOTHING_WRONG
            good = await last_rows(stack, topics)
            async with LogWriter(settings.broker) as writer:
                for (topic, shard), rows in good.items():
                    late = [(key, earlier(key, row)) for key, row in rows.items()]
                    await writer.write(topic, shard, [r for r in late if rows[r[0]] != r[1]])
            assert await last_rows(stack, topics) != good

            deadline = time.monotonic() + _LIMIT_S
            while True:
                found = await last_rows(stack, topics)
                if all(covers(rows, found[place]) for place, rows in good.items()):
                    break
                assert time.monotonic() < deadline, "the late rows are still the last ones"
                await asyncio.sleep(0.5)

            await traffic.run(_RATE_PER_S, 2)
            assert await traffic.judge() == NOTHING_WRONG
            metrics = await metrics_of(stack.addresses["worker-web-0"])
            assert metrics.value("qim_table_caught_up_rows_total") >= stack.plan.shards
            assert metrics.value("qim_watermark_below_floor_total") == 0
        finally:
            await traffic.close()


Rows = dict[bytes, bytes]


async def last_rows(stack: Stack, topics: Sequence[str]) -> dict[tuple[str, int], Rows]:
    """What compaction would leave: the last row of each key."""
    async with LogReader(stack.settings.broker) as reader:
        return {
            (topic, shard): await read_table(reader, topic, shard, 10_000)
            for topic in topics
            for shard in range(stack.plan.shards)
        }


def earlier(key: bytes, row: bytes) -> bytes:
    """A row as it was a while before."""
    if key == WATERMARK_KEY:
        old = WATERMARK_ROW.decode(row)
        old["lease_term"] -= 1
        return WATERMARK_ROW.encode(old)
    return row[:24] if key.startswith(b"\x00block") and len(row) > 24 else row


def covers(good: Rows, found: Rows) -> bool:
    """Whether rows say at least what the good ones said."""
    for key, row in good.items():
        if key == WATERMARK_KEY:
            if (
                WATERMARK_ROW.decode(found[key])["lease_term"]
                < WATERMARK_ROW.decode(row)["lease_term"]
            ):
                return False
        elif key.startswith(b"\x00block") and len(found[key]) < len(row):
            return False
    return True
