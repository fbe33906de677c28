"""The Faust app of a worker: its settings, and the hooks that the shard pipeline hangs on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import faust
import uvloop
from faust.types import TP, TopicT
from faust.types.tables import TableT
from faust.types.web import Request, Response
from faust.web import View
from yarl import URL

from schemas.config import Settings
from schemas.errors import StartRefused
from schemas.metrics import CONTENT_TYPE, MetricsPage
from schemas.runtime_lag import RuntimeLag
from schemas.topics import changelog_topic
from stores.paging import Pace, failed_stages, stage_readings
from stores.redis_link import link_readings
from streams.changelogs import Changelogs
from streams.ownership import SlotOwnership, StaticAssignor
from streams.pages import PAGE_RECORDS, PagedTopic
from streams.readings import consumer_readings
from streams.recovery import BatchTableManager
from streams.transport import QimConsumer
from tables.joining import RowMerge
from tables.pages import PageProducer, PageWriter

__all__ = ["QimApp", "QimWorker", "StreamConfig"]

# One record batch of a page write. Larger pages are split; the broker takes 1 MiB messages by default.
_MAX_BATCH_BYTES = 1 << 20
_ROCKSDB_BUFFER_BYTES = 8 << 20  # Faust's defaults allow a cache of 2 GiB for each partition

FirstSlots = Callable[[], Awaitable[frozenset[int]]]
StartOffsets = Callable[[set[TP]], Awaitable[Mapping[TP, int]]]
Drain = Callable[[], Awaitable[None]]
ReadyCheck = Callable[[], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What a worker's app is built from."""

    app_id: str
    brokers: tuple[str, ...]
    data_dir: Path
    slot_count: int
    owned_slots: frozenset[int]
    web_host: str = "127.0.0.1"
    web_port: int = 0
    page_records: int = PAGE_RECORDS
    # A waiting fetch is answered when a record arrives; the limit only bounds how late a change of the set of
    # fetched partitions takes effect, against two idle requests a second.
    fetch_max_wait_ms: int = 500
    # Between two pages of the paced topics; everything behind the fetch works on what it brought, so this is the only
    # place of a worker that needs a pace.
    fetch_pace: Pace = field(default_factory=Pace)
    # Offsets are hints: a second more to replay after a crash, against one request to the coordinator.
    commit_interval_s: float = 1.0
    # A produce request that the broker does not answer for this long fails its shard, which then replays.
    produce_timeout_s: float = 30.0
    start_timeout_s: float = 60.0
    recovery_stall_s: float = 30.0
    drain_timeout_s: float = 5.0
    producer_idempotence: bool = False  # LOG-03: off for dispatch

    @classmethod
    def from_settings(cls, settings: Settings) -> StreamConfig:
        """The worker's part of the settings."""
        return cls(
            app_id=settings.app_id,
            brokers=tuple(settings.broker.split(",")),
            data_dir=settings.data_dir,
            slot_count=settings.slot_count,
            owned_slots=settings.owned_slots,
            web_host=settings.web_host,
            web_port=settings.web_port,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            fetch_pace=Pace(settings.worker_page_interval_ms / 1000),
            start_timeout_s=settings.start_timeout_s,
        )


def _faust_settings(config: StreamConfig) -> dict[str, Any]:
    return {
        "broker": [URL(f"qim://{address}") for address in config.brokers],
        "datadir": config.data_dir,
        "store": "rocksdb://",
        "Worker": QimWorker,
        "Topic": PagedTopic,
        "TableManager": BatchTableManager,
        "PartitionAssignor": StaticAssignor,
        "topic_disable_leader": True,
        "topic_allow_declare": False,
        "table_standby_replicas": 0,
        "stream_wait_empty": True,
        "key_serializer": "raw",
        "value_serializer": "raw",
        "broker_commit_interval": config.commit_interval_s,
        "producer_acks": -1,
        "producer_max_batch_size": _MAX_BATCH_BYTES,
        "producer_max_request_size": 4 * _MAX_BATCH_BYTES,
        "producer_request_timeout": config.produce_timeout_s,
        "web_enabled": config.web_port > 0,
        "web_host": config.web_host,
        "web_bind": config.web_host,
        "web_port": config.web_port or 6066,
        "worker_redirect_stdouts": False,
        "debug": False,
        "autodiscover": False,
    }


class QimWorker(faust.Worker):
    """Faust's worker on uvloop, without the terminal spinner that turns on debug logging of every library.

    Those debug records, formatted for nobody, cost 9 % of the CPU.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Whatever loop the command line brings was made before it knew this class. Nothing runs on it yet.
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        super().__init__(*args, **(kwargs | {"loop": loop}))

    def on_setup_root_logger(self, logger: logging.Logger, level: int) -> None:
        """Log as every process of ours does; the level of the command line gives way to QIM_LOG_LEVEL."""
        del logger, level
        configure = cast("QimApp", self.app).configure_logging
        if configure is not None:
            configure()


class QimApp(faust.App):
    """A Faust app that moves pages over statically owned partitions.

    Hooks, to be set before the start:
    `first_slots()` says which slots to begin with, instead of the configured ones; none at all make a spare;
    `start_offsets(partitions)` gives the first offset to process of stream partitions, after table recovery;
    `drain_shards()` finishes the pages in hand before the tables close, `stop_spare()` ends a worker that holds none;
    `start_gate()` raises StartRefused before anything of the app is started;
    `row_merges[table]` chooses the row to keep when recovery reads a key again;
    `configure_logging()` replaces the handlers that Faust installs;
    `ready_checks` name what else keeps the worker from being ready;
    `metrics.sources` read what else its metrics page shows.
    """

    def __init__(self, config: StreamConfig, **options: Any) -> None:
        self.qim = config
        self.ownership = SlotOwnership(config.slot_count, config.owned_slots)
        self.first_slots: FirstSlots | None = None
        self.positioned = asyncio.Event()  # set when the streams of the present assignment flow
        self.start_offsets: StartOffsets | None = None
        self.drain_shards: Drain | None = None
        self.start_gate: Drain | None = None
        self.stop_spare: Drain | None = None
        self.configure_logging: Callable[[], object] | None = None
        self.paced_topics: set[str] = set()
        self.row_merges: dict[str, RowMerge] = {}
        self.ready_checks: list[ReadyCheck] = []
        self.page_producer = PageProducer(lambda: self.producer)
        self.page_writer = PageWriter(self.page_producer, Changelogs(self), self.row_merges)
        config.data_dir.mkdir(parents=True, exist_ok=True)
        super().__init__(config.app_id, **(_faust_settings(config) | options))
        self.metrics = MetricsPage(
            "worker", (stage_readings, link_readings, partial(consumer_readings, self))
        )
        self._lag = RuntimeLag()
        for path, view in (("/ready", _ready), ("/healthz", _healthz), ("/metrics", _metrics)):
            self.page(path)(view)

    async def on_start(self) -> None:
        """Pass the gate, then start what the app itself runs."""
        if self.start_gate is not None:
            await self.start_gate()
        await super().on_start()
        self._lag.start()

    async def on_stop(self) -> None:
        """Stop what the app itself runs."""
        self._lag.stop()
        if not self.ownership.owned and self.stop_spare is not None:
            await self.stop_spare()  # nothing is drained where nothing was assigned
        await super().on_stop()

    @property
    def qim_consumer(self) -> QimConsumer:
        """The consumer: hold, release, reposition, is_current."""
        return cast("QimConsumer", self.consumer)

    async def produce_pages(
        self, topic: str, pages: Mapping[int, Sequence[tuple[bytes | None, bytes | None]]]
    ) -> dict[int, list[int]]:
        """Write one record batch a partition and return the offsets, in order; see PageProducer."""
        return await self.page_producer.produce_pages(topic, pages)

    def stream_topic(self, name: str, partitions: int, *, paced: bool = False) -> TopicT:
        """A topic of raw bytes that agents read in pages; `partitions` is checked at the start (LOG-11).

        Pages of a `paced` topic keep a distance while the worker is busy (`fetch_pace`); it has to be the source of
        what the other topics carry.
        """
        if paced:
            self.paced_topics.add(name)
        return self.topic(name, key_type=bytes, value_type=bytes, partitions=partitions, acks=True)

    def page_table(self, name: str, partitions: int) -> TableT[Any, Any]:
        """A table of raw bytes that is written by pages only (`page_writer`)."""
        buffers = {
            "write_buffer_size": _ROCKSDB_BUFFER_BYTES,
            "block_cache_size": _ROCKSDB_BUFFER_BYTES,
        }
        name_of_changelog = changelog_topic(self.qim.app_id, name)
        return self.Table(
            name,
            key_type=bytes,
            value_type=bytes,
            partitions=partitions,
            options=buffers,
            changelog_topic=self.topic(
                name_of_changelog,
                key_type=bytes,
                value_type=bytes,
                partitions=partitions,
                compacting=True,
                deleting=False,
                acks=False,
                internal=True,
            ),
        )

    def check_partition_counts(self, counts: Mapping[str, int]) -> None:
        """Compare what the broker has with what was declared; raises StartRefused (LOG-06, LOG-11)."""
        declared = {
            name: topic.partitions
            for topic in list(self.topics)
            for name in topic.topics
            if topic.partitions is not None
        }
        wrong = {
            name: (counts[name], count)
            for name, count in declared.items()
            if name in counts and counts[name] != count
        }
        if wrong:
            raise StartRefused(f"partition counts differ (found, declared): {wrong}")

    def not_ready(self) -> str | None:
        """Why the worker is not ready, or None (TAKE-08)."""
        if not self.ownership.owned:  # a spare is ready to take over
            return next((reason for check in self.ready_checks if (reason := check())), None)
        if not self.tables.actives_ready:
            return "tables are being recovered"
        consumer = self.qim_consumer
        if not consumer.catch_up.started:
            return "streams are not positioned"
        if left := consumer.catch_up.remaining(consumer.ledger.position):
            return f"catching up, {sum(left.values())} records left"
        return next((reason for check in self.ready_checks if (reason := check())), None)


async def _ready(view: View, request: Request) -> Response:
    """200 once tables are recovered and everything that was in the log at the start is processed; else 503."""
    del request
    reason = cast("QimApp", view.app).not_ready()
    return view.json({"ready": reason is None, "reason": reason}, status=503 if reason else 200)


async def _healthz(view: View, request: Request) -> Response:
    """503 when a part of this process ended, or an always-zero metric is not zero (OBS-02, OBS-03)."""
    del request
    broken = cast("QimApp", view.app).metrics.broken_promises()
    reason = f"not zero: {', '.join(broken)}" if broken else failed_stages()
    return view.json({"ok": reason is None, "reason": reason}, status=503 if reason else 200)


async def _metrics(view: View, request: Request) -> Response:
    """Prometheus text (OBS-02)."""
    del request
    headers = {"Content-Type": CONTENT_TYPE}
    return view.bytes(cast("QimApp", view.app).metrics.render(), headers=headers)
