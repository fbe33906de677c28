"""The Faust app of a Q-IM worker: what `faust -A qim worker` loads. Only assembly.

outbox -> fanout -> dispatch[shard] -> materializer -> mailbox (Redis), tables progress and watermarks, push
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import uuid4

from faust.types import TP
from faust.types.web import Request, Response
from faust.web import View

from schemas.collector import spare_collector
from schemas.config import Settings
from schemas.kill_points import arm
from schemas.logs import configure_logging
from schemas.topics import (
    PROGRESS_TABLE,
    WATERMARKS_TABLE,
    dispatch_topic,
    outbox_topic,
    push_topic,
)
from stores.leases import RedisShardLeases
from stores.paging import failed_stages, page_counters
from stores.redis_link import RedisLink
from stores.redis_mailbox import RedisMailboxStore
from stores.slots import SlotBoard
from stores.start_gates import pass_start_gates
from streams.app import QimApp, StreamConfig
from streams.appender import MailboxAppender
from streams.changelogs import ChangelogWatch
from streams.control import mount_control
from streams.fanout import Fanout
from streams.leases import LeaseKeeper
from streams.materializer import Materializer
from streams.push import PushWriter
from streams.readings import PipelineReadings
from streams.slots import SlotKeeper
from streams.stalls import StallAlarm, pending_lanes
from streams.topology import node
from tables.progress import ProgressTable, merge_progress
from tables.watermarks import WatermarksTable, merge_rows

__all__ = ["app"]

settings = Settings()
arm(settings.test_kill_point)
app = QimApp(StreamConfig.from_settings(settings))
app.configure_logging = partial(configure_logging, settings, settings.worker_name)

shards = settings.mailbox_shard_count
outbox = app.stream_topic(outbox_topic(settings.app_id), settings.outbox_partitions, paced=True)
dispatch = app.stream_topic(dispatch_topic(settings.app_id), shards)
progress = app.page_table(PROGRESS_TABLE, shards)
watermarks = app.page_table(WATERMARKS_TABLE, shards)
app.row_merges[PROGRESS_TABLE] = merge_progress
app.row_merges[WATERMARKS_TABLE] = merge_rows

links = [RedisLink(url) for url in settings.mailbox_redis]
store = RedisMailboxStore(links, settings.app_id)
leases = RedisShardLeases(links, settings.app_id)
keeper = LeaseKeeper(
    leases,
    settings.worker_name,
    instance=uuid4().hex,
    web=f"{settings.web_host}:{settings.web_port}",
)
appender = MailboxAppender(store, len(links))
pushes = PushWriter(push_topic(settings.app_id), app.produce_pages)


def dispatches_written() -> None:
    """What fanout read so far has become dispatches; the consumer exists from the start on."""
    app.qim_consumer.gathered()


fanout = Fanout(
    app,
    dispatch_topic(settings.app_id),
    shards,
    on_written=dispatches_written,
)
materializer = Materializer(
    app,
    store=store,
    appender=appender,
    keeper=keeper,
    progress=ProgressTable(app.page_writer, progress),
    watermarks=WatermarksTable(app.page_writer, watermarks),
    pushes=pushes,
    topic=dispatch_topic(settings.app_id),
    shard_count=shards,
    push_partitions=settings.push_partitions,
)
alarm = StallAlarm(
    lambda: pending_lanes(app.qim_consumer, materializer.shards.values()),
    on_failover=materializer.stalled,
)

watch = ChangelogWatch(app, (progress, watermarks), lambda: list(materializer.shards.values()))


async def own(owned: frozenset[int], drained: Callable[[], Awaitable[None]]) -> None:
    """Make these slots the worker's assignment; the consumer exists from the start on."""
    await app.qim_consumer.inline.own(owned, drained)


slots = SlotKeeper(
    SlotBoard(links[0], settings.app_id, settings.slot_count),
    leases,
    keeper,
    configured=settings.owned_slots,
    slot_count=settings.slot_count,
    shard_count=shards,
    own=own,
    on_defect=app.crash,
)
stages = (fanout, appender, pushes, keeper, alarm, watch, slots)
app.metrics.sources.append(
    PipelineReadings(
        shards=lambda: list(materializer.shards.values()),
        lane_stalls=lambda: alarm.stalls,
        pushes_dropped=lambda: pushes.dropped,
        stopped_partitions=lambda: fanout.failed,
    )
)

mount_control(app, materializer, settings.control_token.get_secret_value())


async def start_offsets(partitions: set[TP]) -> dict[TP, int]:
    """Runs once the tables are recovered, before any record is read: leases, then positions."""
    fanout.failed.clear()  # a partition that could not go on tries again under its new assignment
    for stage in stages:
        stage.start()
    starts = await materializer.start_shards(partitions)
    spare_collector()
    return starts


async def drain() -> None:
    """Runs before the tables close: pages in hand are finished; at the end leases are given back."""
    await materializer.drain()
    if app.should_stop:
        await alarm.stop()
        await watch.stop()
        await slots.stop()


async def start_gate() -> None:
    """Runs before anything is started or written."""
    await pass_start_gates(settings, links)


async def first_slots() -> frozenset[int]:
    """The slots to begin with; a worker without any looks for one from now on."""
    owned = await slots.first_slots()
    if not owned:
        slots.start()
    return owned


app.start_gate = start_gate
app.first_slots = first_slots
app.stop_spare = slots.stop
app.start_offsets = start_offsets
app.drain_shards = drain
app.ready_checks += [fanout.not_ready, materializer.not_ready, failed_stages]


@node(writes=[dispatch_topic(settings.app_id)])
@app.agent(outbox, name="fanout")
async def fanout_agent(stream: Any) -> None:
    """FanoutCoordinator."""
    async for event in stream.noack().events():
        fanout.put(event)


@node(writes=[push_topic(settings.app_id)], tables=[PROGRESS_TABLE, WATERMARKS_TABLE])
@app.agent(dispatch, name="materializer")
async def materializer_agent(stream: Any) -> None:
    """MailboxMaterializer."""
    async for event in stream.noack().events():
        materializer.put(event)


@app.page("/stats")
async def stats(view: View, request: Request) -> Response:
    """Pages and records by stage, and where each shard stands."""
    del request
    return view.json(
        {
            "pages": page_counters(),
            "shards": {
                shard.shard: {
                    "state": shard.state.value,
                    "failure": shard.failure,
                    "queued_pages": shard.depth,
                    "waiting_entries": shard.pipeline.backlog_entries,
                    "restarts": shard.restarts,
                    "next_offset": shard.pipeline.ledger.next_offset,
                }
                for shard in materializer.shards.values()
            },
            "failed_outbox_partitions": {
                str(tp.partition): why for tp, why in fanout.failed.items()
            },
            "pushes_dropped": pushes.dropped,
            "slots": slots.report,
        }
    )
