"""A worker with a shard pipeline in miniature, run as a process of its own by the stream tests.

    python -m tests.support.page_app '{"app_id": ..., "broker": ..., ...}'

Topic `<app_id>.in` is read in pages; each record becomes a row of table `seen`, then the row W of table `marks` takes
the last offset. What happened is printed as JSON lines. `PageAppOptions` says what goes wrong on purpose.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faust.types import TP

from stores.paging import Pace
from streams.app import QimApp, StreamConfig
from streams.pages import Page

__all__ = ["PageAppOptions", "build", "changelog_of", "topic_of"]

_HIGH, _LOW = 16, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAppOptions:
    """What the process is told; offsets and counts are of records."""

    app_id: str
    broker: str
    data_dir: str
    partitions: int = 8
    slot_count: int = 4
    slots: list[int] = field(default_factory=lambda: [0, 1, 2, 3])
    web_port: int = 0
    fail_partition: int = -1  # raises once in this shard ...
    fail_at: int = 0  # ... at the first page that starts at or behind this offset
    slow_partition: int = -1
    slow_s: float = 0.0  # each page of the slow shard takes this long
    crash_after: int = 0  # the process dies (os._exit) after so many records
    late_start_s: float = 0.0  # the start hook takes this long
    write: bool = True  # False: read and acknowledge only
    latency: bool = False  # print how old each record is at delivery
    pace_ms: float = 0.0
    overrides: dict[str, float] = field(default_factory=dict)


def topic_of(app_id: str) -> str:
    """The input topic."""
    return f"{app_id}.in"


def changelog_of(app_id: str, table: str) -> str:
    """The changelog of a table."""
    return f"{app_id}-{table}-changelog"


def say(what: str, **values: Any) -> None:
    """One line of the report."""
    print(json.dumps({"what": what, "at": time.monotonic(), **values}), flush=True)


class Shard:
    """One partition: pages in order, rows, W, acknowledgement."""

    def __init__(self, worker: Worker, tp: TP) -> None:
        self.worker, self.tp = worker, tp
        self.pages: deque[Any] = deque()
        self.wake = asyncio.Event()
        self.next = worker.mark(tp.partition) + 1
        self.held = self.failed = self.stopping = False
        self.most = 0
        self.task = asyncio.create_task(self.run())

    def put(self, event: Any) -> None:
        self.pages.append(event)
        self.most = max(self.most, len(self.pages))
        self.wake.set()
        if len(self.pages) >= _HIGH and not self.held:
            self.held = True
            self.worker.app.qim_consumer.hold(self.tp)

    async def run(self) -> None:
        try:
            while not self.stopping:
                if not self.pages:
                    self.wake.clear()
                    await self.wake.wait()
                    continue
                event = self.pages.popleft()
                if self.held and len(self.pages) <= _LOW:
                    self.held = False
                    self.worker.app.qim_consumer.release(self.tp)
                page = event.value
                if page.first != self.next:
                    raise RuntimeError(f"{page} does not follow {self.next}")
                await self.worker.process(page)
                event.ack()
                self.next = page.offset + 1
        except RuntimeError as error:
            self.failed = True
            self.pages.clear()
            self.worker.app.qim_consumer.hold(self.tp)
            say("failed", partition=self.tp.partition, next=self.next, error=str(error))


class Worker:
    """The app, its tables and its shards."""

    def __init__(self, options: PageAppOptions) -> None:
        self.options = options
        config = StreamConfig(
            app_id=options.app_id,
            brokers=(options.broker,),
            data_dir=Path(options.data_dir),
            slot_count=options.slot_count,
            owned_slots=frozenset(options.slots),
            web_port=options.web_port,
            fetch_pace=Pace(options.pace_ms / 1000),
            **options.overrides,  # type: ignore[arg-type]
        )
        self.app = QimApp(config)
        self.topic = self.app.stream_topic(topic_of(options.app_id), options.partitions)
        self.seen = self.app.page_table("seen", options.partitions)
        self.marks = self.app.page_table("marks", options.partitions)
        self.shards: dict[int, Shard] = {}
        self.total = self.cpu_records = 0
        self.cpu_from = 0.0
        self.failures = self.places = 0
        self.app.start_offsets = self.start_offsets
        self.app.drain_shards = self.drain
        self.app.agent(self.topic, name="shards")(self.shards_agent)

    def mark(self, partition: int) -> int:
        row = self.app.page_writer.get(self.marks, partition, b"W")
        return -1 if row is None else int(row)

    async def start_offsets(self, partitions: set[TP]) -> dict[TP, int]:
        starts = {tp: self.mark(tp.partition) + 1 for tp in partitions}
        rows = {
            tp.partition: sum(1 for _ in self.app.page_writer.scan(self.seen, tp.partition))
            for tp in partitions
        }
        say("loop", module=type(asyncio.get_running_loop()).__module__)
        say("start", offsets={tp.partition: o for tp, o in starts.items()}, rows=rows)
        await asyncio.sleep(self.options.late_start_s)
        self.count_places()
        return starts

    def count_places(self) -> None:
        """From now on count how often a position is set."""
        inline = self.app.qim_consumer.inline
        place = inline.place

        def counted(starts: Mapping[TP, int]) -> None:
            self.places += len(starts)
            place(starts)

        inline.place = counted  # type: ignore[method-assign]

    async def shards_agent(self, stream: Any) -> None:
        async for event in stream.noack().events():
            page: Page = event.value
            if not self.app.qim_consumer.is_current(page):
                say("stale", partition=page.partition, first=page.first)
                continue
            if self.options.latency:
                say("age", ms=time.time() * 1000 - page.records[-1].timestamp)
            shard = self.shards.get(page.partition)
            if shard is None:
                shard = self.shards[page.partition] = Shard(self, event.message.tp)
            if not shard.failed:
                shard.put(event)

    async def process(self, page: Page) -> None:
        if not self.cpu_from:
            self.cpu_from = time.process_time()
        if page.partition == self.options.slow_partition:
            await asyncio.sleep(self.options.slow_s)
        told = page.partition == self.options.fail_partition and page.first >= self.options.fail_at
        if told and not self.failures:
            self.failures = 1
            raise RuntimeError("told to fail")
        if self.options.write:
            await self.write(page)
            say("page", partition=page.partition, first=page.first, last=page.offset)
        self.total += len(page.records)
        if self.options.crash_after and self.total >= self.options.crash_after:
            os._exit(9)

    async def write(self, page: Page) -> None:
        rows = [(b"%016d" % r.offset, r.value or b"") for r in page.records]
        await self.app.page_writer.write(self.seen, page.partition, rows)
        await self.app.page_writer.write(self.marks, page.partition, [(b"W", b"%d" % page.offset)])

    def digest(self) -> dict[str, str]:
        """A hash of all rows of each table partition, in key order."""
        digests = {}
        for table in (self.seen, self.marks):
            for tp in self.app.assignor.assigned_actives():
                if tp.topic == changelog_of(self.options.app_id, table.name):
                    rows = repr(list(self.app.page_writer.scan(table, tp.partition))).encode()
                    digests[f"{table.name}-{tp.partition}"] = hashlib.sha256(rows).hexdigest()
        return digests

    async def restart_shard(self, partition: int) -> None:
        shard = self.shards.pop(partition)
        await self.app.qim_consumer.reposition({shard.tp: self.mark(partition) + 1})
        say("repositioned", partition=partition, offset=self.mark(partition) + 1)

    async def drain(self) -> None:
        running = [shard for shard in self.shards.values() if not shard.failed]
        for shard in running:
            shard.stopping = True
            shard.wake.set()
        if running:
            await asyncio.wait([shard.task for shard in running])
        say(
            "drained",
            marks={p: self.mark(p) for p in self.shards},
            most={p: shard.most for p, shard in self.shards.items()},
        )

    async def commands(self) -> None:
        """Lines on standard input: `restart N`, `status`, `digest`."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            if line[0] == "restart":
                await self.restart_shard(int(line[1]))
            elif line[0] == "status":
                cpu = time.process_time() - self.cpu_from if self.cpu_from else 0.0
                say(
                    "status",
                    total=self.total,
                    cpu_s=cpu,
                    process_cpu_s=time.process_time(),
                    not_ready=self.app.not_ready(),
                    places=self.places,
                    most={p: shard.most for p, shard in self.shards.items()},
                )
            elif line[0] == "digest":
                say("digest", digest=self.digest())


def build(options: PageAppOptions) -> Worker:
    """The worker, not started."""
    worker = Worker(options)
    worker.app.task(worker.commands)
    return worker


def main() -> None:
    """Run until a signal."""
    worker = build(PageAppOptions(**json.loads(sys.argv[1])))
    worker.app.Worker(loglevel="warning", quiet=True).execute_from_commandline()


if __name__ == "__main__":
    main()
