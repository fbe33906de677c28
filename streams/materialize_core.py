"""Materialization without I/O: dispatch records of one shard in, what has to be written out (design §6).

`ShardPipeline` decides what of each record goes into the current page and what waits for its lane:

* a light record goes into the page, lane by lane, where its lane is free;
* a heavy record becomes chunks of at most 2,000 entries (DP-02);
* a lane with unfinished chunks keeps its later records queued behind them; every other lane goes on (LANE-03, M-1).

Each plan says what becomes durable together and W of all lanes after it. A plan that was not written is never undone:
the shard builds a new pipeline from W (TAKE-02). Pure: no clock, no random source; a replay plans the same bytes
(TAKE-09).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from schemas.constants import (
    MAILBOX_SUBTASK_TIMEOUT_MS,
    MAILBOX_WRITE_BATCH_MAX_ENTRIES,
    MAX_LOG_OFFSET,
)
from schemas.digests import payload_digest
from schemas.errors import RecordError
from schemas.manifest import encode_manifest, single_chunk_manifest
from schemas.packing import pack_progress
from schemas.records import GROUP_DISPATCH, DispatchProgress, GroupDispatch
from stores.mailbox import EntryWrite
from streams.expand import Expander, PlannedPush, ShardContext, split_lanes
from streams.lanes import LaneLedger

__all__ = [
    "HEAVY_RECIPIENTS",
    "DigestConflict",
    "LaneWork",
    "LogRecord",
    "PagePlan",
    "ShardPipeline",
    "decode_page",
]

_SLOW_TURN_EVERY = 8  # chunks of other lanes before an overdue one: degraded, never held for ever

HEAVY_RECIPIENTS = 128
"""More recipients make a record heavy. Larger: one record fills a page. Smaller: chunks of a handful of entries."""


class LogRecord(Protocol):
    """What is read of a consumed record."""

    @property
    def offset(self) -> int:
        """Log offset."""

    @property
    def value(self) -> bytes | None:
        """Bytes; None is a tombstone."""

    @property
    def timestamp(self) -> int:
        """Log time in ms since 1970."""


class DigestConflict(RecordError):
    """Two different payloads under one dispatch_id: the shard must stop (DISP-08)."""


class PagePlan(NamedTuple):
    """What is written together: `entries` with the lanes' W `marks` first, then the rows, then the watermark row.

    `marks` are log offsets by lane.
    """

    entries: list[EntryWrite]
    progress_rows: list[tuple[bytes, bytes]]
    marks: list[int]
    pushes: list[PlannedPush]


Decoded = list[tuple[int, int, GroupDispatch]]  # (log offset, log time in ms, dispatch)


def decode_page(shard: int, records: Iterable[LogRecord]) -> Decoded:
    """Decode and check a page; raises RecordError on damage or on a record of another shard (DISP-12)."""
    out: Decoded = []
    for record in records:
        if record.value is None:
            raise RecordError(f"offset {record.offset}: a dispatch without a value")
        dispatch = GROUP_DISPATCH.decode(record.value)
        if dispatch["target_mailbox_shard"] != shard:
            raise RecordError(
                f"offset {record.offset}: dispatch for shard {dispatch['target_mailbox_shard']} in partition {shard}"
            )
        out.append((record.offset, record.timestamp, dispatch))
    return out


@dataclass(slots=True)
class LaneWork:
    """One chunk of one record in one lane."""

    offset: int
    dispatch: GroupDispatch
    users: list[int]
    queued_ms: int


class ShardPipeline:
    """Lanes, queues and progress of one shard between two restarts. `starts` are the lanes' W at the restart.

    Lanes in `refused` get nothing (TAKE-01 T4): their parts of a record stay unfinished, everything else goes on. `now_ms`
    is set by the caller before each call; only when a chunk has its turn depends on it, never what is written.
    """

    def __init__(
        self, context: ShardContext, starts: Sequence[int], refused: Collection[int] = ()
    ) -> None:
        self._refused = frozenset(refused)
        self.ledger = LaneLedger(
            [MAX_LOG_OFFSET if lane in self._refused else w for lane, w in enumerate(starts)]
        )
        self.now_ms = 0
        self._expander = Expander(context)
        self._waiting: dict[int, deque[LaneWork]] = {}  # lane -> chunks in order
        self._turn: deque[int] = (
            deque()
        )  # lanes with chunks, the next one first (fair scheduling, LANE-10)
        self._slow: deque[int] = deque()  # lanes whose oldest chunk is overdue (LANE-07)
        self._since_slow = 0
        self._open: dict[bytes, DispatchProgress] = {}  # rows of dispatches with unfinished chunks
        self.backlog_entries = 0

    def take_page(
        self,
        page: Decoded,
        known: Mapping[bytes, DispatchProgress],
        lanes: Mapping[int, dict[int, list[int]]] | None = None,
    ) -> PagePlan:
        """Plan a non-empty page of records that follow each other.

        `known` holds the progress rows of its dispatch ids that exist already, `lanes` the split of recipients by lane
        for records (by offset) where the caller has it already. A dispatch seen before at an earlier offset adds no
        entries but its row and every lane advance (DISP-07); the same offset again is a replay and writes the same
        bytes again where its lane was not covered, because the mailbox may have lost them (design §6). Raises
        DigestConflict (DISP-08) and RecordError.
        """
        seen: dict[bytes, DispatchProgress] = dict(known)
        touched: dict[bytes, DispatchProgress] = {}
        for offset, log_time_ms, dispatch in page:
            self.ledger.see(offset)
            dispatch_id = dispatch["dispatch_id"]
            row = self._open.get(dispatch_id) or seen.get(dispatch_id)
            digest = payload_digest(dispatch)
            if row is not None and row["payload_digest"] != digest:
                raise DigestConflict(
                    f"offset {offset}: dispatch_id is known with another payload digest"
                )
            if row is not None and row["canonical_log_offset"] > offset:
                raise RecordError(f"offset {offset}: progress knows a later canonical offset")
            if row is None or row["canonical_log_offset"] == offset:
                by_lane = (lanes or {}).get(offset) or split_lanes(dispatch, dispatch["recipients"])
                manifest, expected, waiting, unfinished = self._place(offset, dispatch, by_lane)
                row = {
                    "payload_digest": digest,
                    "canonical_log_offset": offset,
                    "max_observed_offset": offset if row is None else row["max_observed_offset"],
                    "last_seen_ms": max(log_time_ms, 0 if row is None else row["last_seen_ms"]),
                    "completed_at_ms": dispatch["committed_at_ms"],
                    "manifest": manifest,
                    "expected": expected,
                    "done": expected - waiting,
                    "unfinished_lanes": unfinished,
                }
                if unfinished and not self._refused.issuperset(unfinished):
                    self._open[dispatch_id] = row
            else:
                row["max_observed_offset"] = max(offset, row["max_observed_offset"])
                row["last_seen_ms"] = max(log_time_ms, row["last_seen_ms"])
            seen[dispatch_id] = touched[dispatch_id] = row
        return self._plan(touched)

    def next_chunk(self) -> PagePlan | None:
        """Plan at most 2,000 waiting entries, one chunk of each lane in turn; None when nothing waits (M-1)."""
        touched: dict[bytes, DispatchProgress] = {}
        budget = MAILBOX_WRITE_BATCH_MAX_ENTRIES
        self._sort_out_overdue()
        while (turn := self._next_turn()) is not None:
            lane = turn[0]
            work = self._waiting[lane][0]
            size = _entry_count(work.dispatch, work.users)
            if touched and size > budget:
                break
            budget -= size
            turn.popleft()
            self._since_slow = 0 if turn is self._slow else self._since_slow + 1
            self._waiting[lane].popleft()
            if self._waiting[lane]:
                self._turn.append(lane)
            else:
                del self._waiting[lane]
            self.backlog_entries -= size
            self._expander.add(work.offset, work.dispatch, work.users)
            ended = self.ledger.finish(lane, work.offset)
            self._count_done(work.dispatch["dispatch_id"], touched, lane if ended else None)
        return self._plan(touched) if touched else None

    @property
    def slow_lanes(self) -> int:
        """Lanes whose oldest chunk has waited for more than mailbox_subtask_timeout (LANE-07)."""
        return len(self._slow)

    def _sort_out_overdue(self) -> None:
        for _ in range(len(self._turn)):
            lane = self._turn.popleft()
            overdue = self.now_ms - self._waiting[lane][0].queued_ms >= MAILBOX_SUBTASK_TIMEOUT_MS
            (self._slow if overdue else self._turn).append(lane)

    def _next_turn(self) -> deque[int] | None:
        """The queue whose first lane is next: the slow one only when no other waits, or once in a while (LANE-07)."""
        if self._slow and (not self._turn or self._since_slow >= _SLOW_TURN_EVERY):
            return self._slow
        return self._turn or None

    def _place(
        self, offset: int, dispatch: GroupDispatch, by_lane: Mapping[int, list[int]]
    ) -> tuple[bytes, int, int, list[int]]:
        """Put each lane's part into the page or behind its lane.

        Returns the manifest, how many chunks it names, how many of them are not written yet, and in which lanes.
        """
        heavy = len(dispatch["recipients"]) > HEAVY_RECIPIENTS
        now: list[int] = []
        waiting = 0
        unfinished: list[int] = []
        for lane, users in by_lane.items():
            if self.ledger.covered(lane, offset):
                if lane in self._refused:
                    waiting += len(_chunks(dispatch, users)) if heavy else 1
                    unfinished.append(lane)
                continue
            if heavy or lane in self._waiting:
                waiting += self._queue(lane, offset, dispatch, _chunks(dispatch, users))
                unfinished.append(lane)
            else:
                now += users
        if now:
            self._expander.add(offset, dispatch, now)
        unfinished.sort()
        if not heavy:
            return single_chunk_manifest(sorted(by_lane)), len(by_lane), waiting, unfinished
        named = {lane: range(len(_chunks(dispatch, users))) for lane, users in by_lane.items()}
        return encode_manifest(named), sum(map(len, named.values())), waiting, unfinished

    def _queue(
        self, lane: int, offset: int, dispatch: GroupDispatch, chunks: list[list[int]]
    ) -> int:
        self.ledger.open(lane, offset, len(chunks))
        if lane not in self._waiting:
            self._waiting[lane] = deque()
            self._turn.append(lane)
        for chunk in chunks:
            self._waiting[lane].append(LaneWork(offset, dispatch, chunk, self.now_ms))
            self.backlog_entries += _entry_count(dispatch, chunk)
        return len(chunks)

    def _count_done(
        self, dispatch_id: bytes, touched: dict[bytes, DispatchProgress], ended_lane: int | None
    ) -> None:
        row = self._open[dispatch_id]
        row["done"] += 1
        touched[dispatch_id] = row
        if ended_lane is not None:
            row["unfinished_lanes"].remove(ended_lane)
            if self._refused.issuperset(row["unfinished_lanes"]):
                del self._open[dispatch_id]

    def _plan(self, touched: Mapping[bytes, DispatchProgress]) -> PagePlan:
        rows = [(key, pack_progress(**row)) for key, row in touched.items()]
        entries, pushes = self._expander.take()
        return PagePlan(entries, rows, self.ledger.marks(), pushes)


def _entry_count(dispatch: GroupDispatch, users: Sequence[int]) -> int:
    mentions = dispatch["mentions"]
    return len(users) + (sum(user in mentions for user in users) if mentions else 0)


def _chunks(dispatch: GroupDispatch, users: list[int]) -> list[list[int]]:
    """Chunks of at most 2,000 entries of one lane (DP-02)."""
    step = MAILBOX_WRITE_BATCH_MAX_ENTRIES // (2 if dispatch["mentions"] else 1)
    if len(users) <= step:
        return [users]
    return [users[at : at + step] for at in range(0, len(users), step)]
