"""`qimctl rebuild --verify`: replay a living system's log into a key space of its own and compare; nothing of it is touched.

The replay ends where every lane of the mailbox was complete when it began. What the live system wrote up to there never
changes any more, except that days expire and boundaries grow; both are part of the comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ops.qimctl.digests import compare_mailboxes, compare_rows, row_digests
from ops.qimctl.holding import hold_shards
from ops.qimctl.logs import Rows, read_table
from ops.qimctl.mailboxes import MailboxKeys
from ops.qimctl.rebuild import settled_rows
from ops.qimctl.replay import PAGE_RECORDS, MailboxSink, replay_shard
from ops.qimctl.system import System
from schemas.records import DISPATCH_PROGRESS
from schemas.topics import PROGRESS_TABLE
from stores.leases import RedisShardLeases
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from tables.log_reader import LogReader
from tables.progress import is_dispatch_row

__all__ = ["scratch_id", "verify_live"]


def scratch_id(app_id: str) -> str:
    """Names the scratch keys; the dot keeps them apart from those of every application."""
    return f"{app_id}.verify"


async def verify_live(
    system: System, reader: LogReader, links: list[RedisLink], say: Callable[[str], None]
) -> dict[str, Any]:
    """Compare and return the report. `links` hold the scratch keys; raises StartRefused when another comparison runs."""
    started_s = time.monotonic()
    await system.gate()
    name = scratch_id(system.settings.app_id)
    scratch = MailboxKeys(links, name, system.shards)
    async with hold_shards(RedisShardLeases(links, name), system.shards) as held:
        try:
            await scratch.forget()  # left by a comparison that was killed
            ranges = await reader.ranges(system.dispatch, range(system.shards))
            floors = {shard: first for shard, (first, _) in ranges.items()}
            limits = {shard: await system.store_limit(shard) for shard in range(system.shards)}
            await scratch.plant(await system.keys.digests(limits, floors))
            store = RedisMailboxStore(links, name)
            replayed: dict[str, str] = {}
            live_rows: dict[str, str] = {}
            records = 0
            for shard, limit in limits.items():
                if not await system.leases.boundaries(shard):
                    continue  # never held: nothing was written
                context = await system.context(shard)
                first, end = floors[shard], max(floors[shard], limit + 1)
                pages = reader.pages(system.dispatch, shard, first, end, PAGE_RECORDS)
                sink = MailboxSink(store, context, held.terms[shard])
                done = await replay_shard(pages, context, first, {}, sink)
                live = await read_table(reader, system.changelogs[0], shard, PAGE_RECORDS)
                moved = _seen_again(live, limit)
                kept = {key: row for key, row in done.rows.items() if key not in moved}
                replayed |= row_digests(settled_rows(kept, first, limit))
                live_rows |= row_digests(settled_rows(live, first, limit))
                records += done.records
                say(f"shard {shard} replayed: {done.records} records, {sink.entries} entries")
            live_users = await system.keys.digests(limits, floors)
            theirs = await scratch.digests(limits, floors)
            mailbox = compare_mailboxes(
                live_users,
                theirs,
                await system.keys.now_s(),
                lambda key: limits[system.shard_of_key(key)],
            )
            rows = compare_rows(live_rows, replayed)
        finally:
            await scratch.drop_all()
    return {
        "what": "live",
        "records": records,
        "seconds": round(time.monotonic() - started_s, 2),
        "equal": mailbox.equal and rows.equal,
        "mailbox": mailbox.as_json(),
        PROGRESS_TABLE: rows.as_json(),
    }


def _seen_again(rows: Rows, limit: int) -> set[bytes]:
    """Dispatches that came once more after the replay's end: their rows say so, the replay cannot know."""
    return {
        key
        for key, raw in rows.items()
        if is_dispatch_row(key) and DISPATCH_PROGRESS.decode(raw)["max_observed_offset"] > limit
    }
