"""Rebuild: throw derived state away, replay the log, prove that the same came back (docs/recovery.md).

The order makes a kill at any point harmless. What was there is written to a file first; then a mark in Redis keeps every
worker and gateway from starting; only then anything is thrown away. The mark goes once the replay is complete. The same
command again, after a kill, begins again and still compares with the file of the first attempt.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.qimctl.digests import (
    Comparison,
    UserDigest,
    compare_mailboxes,
    compare_rows,
    dump_mailbox,
    load_mailbox,
    row_digests,
)
from ops.qimctl.holding import HeldShards, hold_shards
from ops.qimctl.logs import LogWriter, Rows, read_table, read_watermark, tombstones
from ops.qimctl.replay import PAGE_RECORDS, MailboxSink, NoSink, Sink, replay_shard
from ops.qimctl.system import System
from schemas.constants import LANE_COUNT, MAILBOX_RETENTION_DAYS, SECONDS_PER_DAY
from schemas.errors import RecordError, ServerFault, StartRefused
from schemas.records import DISPATCH_PROGRESS, WATERMARK_ROW, WatermarkRow
from schemas.topics import PROGRESS_TABLE, WATERMARKS_TABLE
from schemas.watermarks import NOTHING, unpack_w
from stores.claims import begin_rebuild, end_rebuild, unfinished_rebuild
from streams.lanes import pack_marks
from tables.log_reader import LogReader
from tables.progress import is_dispatch_row
from tables.watermarks import WATERMARK_KEY

__all__ = ["Before", "RebuildOptions", "Rebuilder", "settled_rows"]

_SETTLE_S: Final = (
    1.0  # gateways follow W within tens of ms; none may still promise what is thrown away
)
_WINDOW_MS: Final = (MAILBOX_RETENTION_DAYS + 1) * SECONDS_PER_DAY * 1000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """What is thrown away (`tables`, `mailboxes`), and how.

    `data_dirs` are workers' table folders to remove as well; `accept_loss` goes on where the log no longer reaches back far
    enough; `state` is the file that keeps what was there.
    """

    tables: bool
    mailboxes: bool
    state: Path
    data_dirs: Sequence[Path] = ()
    accept_loss: bool = False

    @property
    def name(self) -> str:
        """As the command calls it."""
        return "all" if self.tables and self.mailboxes else "table" if self.tables else "mailbox"


@dataclass(slots=True)
class Before:
    """What there was: W by shard (lowest lane), users' mailboxes and progress rows up to it, as digests."""

    limits: dict[int, int]
    users: dict[str, UserDigest]
    rows: dict[str, str]

    def save(self, path: Path) -> None:
        """Write it, complete or not at all."""
        plain = {"limits": self.limits, "users": dump_mailbox(self.users), "rows": self.rows}
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(plain))
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Before:
        """Read what `save` wrote."""
        plain = json.loads(path.read_text())
        limits = {int(shard): limit for shard, limit in plain["limits"].items()}
        return cls(limits, load_mailbox(plain["users"]), plain["rows"])


def settled_rows(rows: Rows, first: int, limit: int) -> Rows:
    """Progress rows that a replay of [first, limit] must give again: seen there and nowhere else."""
    found = {}
    for key, raw in rows.items():
        if not is_dispatch_row(key):
            continue
        row = DISPATCH_PROGRESS.decode(raw)
        if first <= row["canonical_log_offset"] and row["max_observed_offset"] <= limit:
            found[key] = raw
    return found


class Rebuilder:
    """One rebuild of one system; `say` gets a line at each step."""

    def __init__(self, system: System, reader: LogReader, writer: LogWriter, say: Say) -> None:
        self._system = system
        self._reader = reader
        self._writer = writer
        self._say = say
        self._ranges: dict[int, tuple[int, int]] = {}

    async def run(self, options: RebuildOptions) -> dict[str, Any]:
        """Do it and return the report. Raises StartRefused before anything is thrown away, ServerFault in the middle."""
        started_s = time.monotonic()
        system = self._system
        facts = await system.gate(new_changelogs=options.tables)
        async with hold_shards(system.leases, system.shards) as held:
            unfinished = await unfinished_rebuild(system.mailbox, system.settings.app_id)
            if unfinished not in {None, options.name}:
                raise StartRefused(f"a rebuild of {unfinished} has not ended: run that one again")
            self._ranges = await self._reader.ranges(system.dispatch, range(system.shards))
            before = await self._before(options)
            await self._check_reach(before, options)
            await begin_rebuild(system.mailbox, system.settings.app_id, options.name)
            await self._throw_away(options, held)
            records = entries = 0
            for shard in range(system.shards):
                counts = await self._replay(shard, options, held)
                records, entries = records + counts[0], entries + counts[1]
            held.check()
            if options.tables:
                await system.accept(facts, system.changelogs)
            report = await self._judge(before)
            await end_rebuild(system.mailbox, system.settings.app_id)
            options.state.unlink(missing_ok=True)
        seconds = round(time.monotonic() - started_s, 2)
        return {
            "what": options.name,
            "records": records,
            "entries": entries,
            "seconds": seconds,
        } | report

    async def _before(self, options: RebuildOptions) -> Before:
        if options.state.exists():
            self._say(f"comparing with what an unfinished rebuild found: {options.state}")
            return Before.load(options.state)
        system = self._system
        limits = {shard: await self._limit(shard) for shard in range(system.shards)}
        before = Before(limits, await system.keys.digests(limits), await self._rows(limits))
        before.save(options.state)
        self._say(f"found {len(before.users)} mailboxes, {len(before.rows)} progress rows")
        return before

    async def _limit(self, shard: int) -> int:
        """Up to where the shard is complete; where the mailbox cannot tell any more, what the table says."""
        try:
            return await self._system.store_limit(shard)
        except (ServerFault, RecordError) as damage:
            self._say(f"shard {shard}: the mailbox's W is damaged: {damage.detail}")
        topic = self._system.changelogs[1]
        row = await read_watermark(self._reader, topic, shard, PAGE_RECORDS)
        return NOTHING if row is None else min(_marks_of(row))

    async def _rows(self, limits: dict[int, int]) -> dict[str, str]:
        found: dict[str, str] = {}
        for shard, limit in limits.items():
            rows = await read_table(self._reader, self._system.changelogs[0], shard, PAGE_RECORDS)
            found |= row_digests(settled_rows(rows, self._ranges[shard][0], limit))
        return found

    async def _check_reach(self, before: Before, options: RebuildOptions) -> None:
        """Refuse to throw away what the log cannot give back (LOG-12)."""
        if options.accept_loss:
            return
        now_ms = await self._system.keys.now_s() * 1000
        lowest: dict[int, int] = {}
        for key, user in before.users.items():
            shard = self._system.shard_of_key(key)
            offsets = [day.first_offset for day in user.at(now_ms // 1000).days.values()]
            lowest[shard] = min([lowest.get(shard, 1 << 62), *offsets])
        for shard, (first, end) in self._ranges.items():
            if first == 0:
                continue
            if options.mailboxes and lowest.get(shard, first) < first:
                raise StartRefused(
                    f"shard {shard}: the log begins at {first}, but mailboxes hold entries from"
                    f" {lowest[shard]}: they would be lost (--accept-loss)"
                )
            if shard in lowest and not options.tables:
                continue
            oldest_ms = await self._time_of(shard, first, end)
            if oldest_ms is not None and oldest_ms > now_ms - _WINDOW_MS:
                raise StartRefused(
                    f"shard {shard}: the log begins at {first}, inside the retention window: what was"
                    " below it would be lost (--accept-loss)"
                )

    async def _time_of(self, shard: int, first: int, end: int) -> int | None:
        async for records in self._reader.pages(self._system.dispatch, shard, first, end, 1):
            return int(records[0].timestamp)
        return None

    async def _throw_away(self, options: RebuildOptions, held: HeldShards) -> None:
        progress = self._system.changelogs[0]
        for shard in range(self._system.shards):
            # First nobody may promise anything any more: gateways show nothing above W.
            await self._write_w(shard, held, [NOTHING] * LANE_COUNT)
            if options.tables:
                rows = await read_table(self._reader, progress, shard, PAGE_RECORDS)
                await self._writer.write(progress, shard, tombstones(rows))
        if options.tables:
            self._say("tables thrown away")
            for folder in options.data_dirs:
                _remove_tables(folder, self._say)
        if options.mailboxes:
            await asyncio.sleep(_SETTLE_S)
            users = await self._system.keys.forget()
            self._say(f"{users} mailboxes thrown away")

    async def _write_w(self, shard: int, held: HeldShards, marks: Sequence[int]) -> None:
        held.check()
        context = await self._system.context(shard)
        topic = self._system.changelogs[1]
        former = await read_watermark(self._reader, topic, shard, PAGE_RECORDS)
        row: WatermarkRow = {
            "lease_term": held.terms[shard],
            "epoch": context.boundaries[-1][0],
            "base_epoch": max(epoch for epoch, first in context.boundaries if first == 0),
            "page_number": 0 if former is None else former["page_number"] + 1,
            "w": pack_marks(marks),
        }
        await self._writer.write(topic, shard, [(WATERMARK_KEY, WATERMARK_ROW.encode(row))])

    async def _replay(
        self, shard: int, options: RebuildOptions, held: HeldShards
    ) -> tuple[int, int]:
        system = self._system
        context = await system.context(shard)
        first, end = self._ranges[shard]
        sink: Sink = NoSink()
        mailbox = MailboxSink(system.store, context, held.terms[shard])
        known: Rows = {}
        if options.mailboxes:
            sink = mailbox
        else:
            end = min(end, max(first, await self._limit(shard) + 1))
        if not options.tables:
            known = await read_table(self._reader, system.changelogs[0], shard, PAGE_RECORDS)
        pages = self._reader.pages(system.dispatch, shard, first, end, PAGE_RECORDS)
        done = await replay_shard(pages, context, first, known, sink)
        if options.tables:
            await self._writer.write(system.changelogs[0], shard, list(done.rows.items()))
        await self._write_w(shard, held, done.marks)
        self._say(f"shard {shard} replayed: {done.records} records, {mailbox.entries} entries")
        return done.records, mailbox.entries

    async def _judge(self, before: Before) -> dict[str, Any]:
        """Compare what is there now with what was there; W may have grown, never fallen."""
        now_s = await self._system.keys.now_s()
        users = await self._system.keys.digests(before.limits)

        def limit_of(key: str) -> int:
            return before.limits[self._system.shard_of_key(key)]

        compared: dict[str, Comparison] = {
            "mailbox": compare_mailboxes(before.users, users, now_s, limit_of),
            PROGRESS_TABLE: compare_rows(before.rows, await self._rows(before.limits)),
        }
        behind = []
        for shard, limit in before.limits.items():
            row = await read_watermark(
                self._reader, self._system.changelogs[1], shard, PAGE_RECORDS
            )
            table = NOTHING if row is None else min(_marks_of(row))
            if min(table, await self._system.store_limit(shard)) < limit:
                behind.append(shard)
        equal = all(c.equal for c in compared.values()) and not behind
        return {
            "equal": equal,
            **{name: c.as_json() for name, c in compared.items()},
            WATERMARKS_TABLE: {"compared": len(before.limits), "shards_behind": behind},
        }


def _marks_of(row: WatermarkRow) -> list[int]:
    return [mark.w for mark in unpack_w(row["w"])]


def _remove_tables(folder: Path, say: Say) -> None:
    """Remove the RocksDB folders of our tables below a worker's data folder, nothing else."""
    for table in (PROGRESS_TABLE, WATERMARKS_TABLE):
        for found in sorted(folder.rglob(f"{table}-*.db")):
            if found.is_dir():
                shutil.rmtree(found)
                say(f"removed {found}")
