"""Materialization without I/O: a page of dispatch records of one shard -> entries, progress rows, W and pushes.

No clock and no random source (EVT-12, FORB-14): everything is a function of the records, their offsets and the
progress rows already known, so a replay plans the same bytes and a crash at any point converges (TAKE-09).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from schemas.constants import MAX_LOG_OFFSET, SECONDS_PER_DAY
from schemas.entry import EntryFlag, EventType, MessageType, encode_entry_head
from schemas.errors import RecordError
from schemas.identifiers import (
    MailboxSeq,
    event_id_of,
    lane_of,
    payload_digest,
    shard_of,
    virtual_bucket,
)
from schemas.manifest import single_chunk_manifest
from schemas.records import (
    DISPATCH_PROGRESS,
    GROUP_DISPATCH,
    PUSH_BATCH,
    DispatchProgress,
    GroupDispatch,
    PushBatch,
    PushRecipient,
)
from schemas.topics import push_partition_of
from stores.mailbox import EntryWrite

__all__ = [
    "DigestConflict",
    "LogRecord",
    "PagePlan",
    "PlannedPush",
    "ShardContext",
    "decode_page",
    "epoch_at",
    "plan_page",
]

_MS_PER_DAY = SECONDS_PER_DAY * 1000


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


class ShardContext(NamedTuple):
    """What a plan needs to know of its shard. `boundaries` are (epoch, first log offset), ascending (design §4)."""

    shard: int
    shard_count: int
    push_partitions: int
    boundaries: Sequence[tuple[int, int]]


class PlannedPush(NamedTuple):
    """A PushBatch for one partition of the push topic."""

    partition: int
    value: bytes


class PagePlan(NamedTuple):
    """What one page writes, in the order in which it must become durable."""

    entries: list[EntryWrite]
    progress_rows: list[tuple[bytes, bytes]]
    last_offset: int
    pushes: list[PlannedPush]


Decoded = list[tuple[int, int, GroupDispatch]]  # (log offset, log time in ms, dispatch)


def decode_page(shard: int, records: Sequence[LogRecord]) -> Decoded:
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


def epoch_at(boundaries: Sequence[tuple[int, int]], log_offset: int) -> int:
    """The epoch of a record is a function of its log position, never of who processes it (CON-39)."""
    epoch = 0
    for candidate, first_offset in boundaries:
        if first_offset <= log_offset:
            epoch = candidate
    if not epoch:
        raise RecordError(f"no epoch boundary covers offset {log_offset}")
    return epoch


def plan_page(
    context: ShardContext, page: Decoded, known: Mapping[bytes, DispatchProgress]
) -> PagePlan:
    """Plan a non-empty page. `known` holds the progress rows of its dispatch ids that exist already.

    A dispatch seen before at an earlier offset adds no entries but its row advances (DISP-07); the same offset again
    is a replay and writes the same bytes again, because the mailbox may have lost them (design §6). Raises
    DigestConflict (DISP-08) and RecordError.
    """
    seen: dict[bytes, DispatchProgress] = dict(known)
    touched: dict[bytes, DispatchProgress] = {}
    entries: list[EntryWrite] = []
    pushes: list[PlannedPush] = []
    for offset, log_time_ms, dispatch in page:
        dispatch_id = dispatch["dispatch_id"]
        digest = payload_digest(dispatch)
        row = seen.get(dispatch_id)
        if row is not None and row["payload_digest"] != digest:
            raise DigestConflict(
                f"offset {offset}: dispatch_id is known with another payload digest"
            )
        if row is not None and row["canonical_log_offset"] > offset:
            raise RecordError(f"offset {offset}: progress knows a later canonical offset")
        if row is None or row["canonical_log_offset"] == offset:
            lanes = _expand(context, offset, dispatch, entries, pushes)
            row = {
                "payload_digest": digest,
                "canonical_log_offset": offset,
                "max_observed_offset": (
                    offset if row is None else max(offset, row["max_observed_offset"])
                ),
                "last_seen_ms": (
                    log_time_ms if row is None else max(log_time_ms, row["last_seen_ms"])
                ),
                "completed_at_ms": dispatch["committed_at_ms"],
                "manifest": single_chunk_manifest(lanes),
                "expected": len(lanes),
                "done": len(lanes),
            }
        else:
            row = {
                **row,
                "max_observed_offset": max(offset, row["max_observed_offset"]),
                "last_seen_ms": max(log_time_ms, row["last_seen_ms"]),
            }
        seen[dispatch_id] = touched[dispatch_id] = row
    rows = [(key, DISPATCH_PROGRESS.encode(row)) for key, row in touched.items()]
    return PagePlan(entries, rows, page[-1][0], pushes)


def _expand(
    context: ShardContext,
    offset: int,
    dispatch: GroupDispatch,
    entries: list[EntryWrite],
    pushes: list[PlannedPush],
) -> list[int]:
    """Append the entries and pushes of one dispatch; returns its non-empty lanes, ascending."""
    tenant = int.from_bytes(dispatch["tenant_id"], "big")
    dispatch_id, sender, common = (
        dispatch["dispatch_id"],
        dispatch["sender_id"],
        dispatch["event_template"],
    )
    seq = MailboxSeq.compose(epoch_at(context.boundaries, offset), offset & MAX_LOG_OFFSET)
    day = dispatch["committed_at_ms"] // _MS_PER_DAY
    is_control = dispatch["message_type"] == MessageType.CONTROL
    mentioned = set(dispatch["mentions"])
    lanes: set[int] = set()
    recipients: dict[int, list[PushRecipient]] = {}
    for user in dispatch["recipients"]:
        if shard_of(tenant, user, context.shard_count) != context.shard:
            raise RecordError(f"offset {offset}: a recipient belongs to another shard")  # DISP-13
        own = user == sender
        flags = EntryFlag.AFFECTS_SESSION_ORDER
        if not own and not is_control:
            flags |= EntryFlag.COUNTS_UNREAD  # EVT-09, UNREAD-02
        types = [EventType.CONTROL if is_control else EventType.MESSAGE]
        if user in mentioned:
            types.append(EventType.MENTION)
        heads = [
            encode_entry_head(
                seq,
                event_type,
                event_id_of(tenant, dispatch_id, user, event_type),
                flags,
                1 if event_type is EventType.MENTION else 0,
                dispatch["client_message_id"] if own else None,  # EVT-10
            )
            for event_type in sorted(types)
        ]
        entries.extend(EntryWrite(tenant, user, offset, seq, day, head + common) for head in heads)
        lanes.add(lane_of(tenant, user))
        partition = push_partition_of(virtual_bucket(tenant, user), context.push_partitions)
        recipients.setdefault(partition, []).append({"user_id": user, "entry_heads": heads})
    for partition, listed in recipients.items():
        batch: PushBatch = {
            "tenant_id": dispatch["tenant_id"],
            "mailbox_shard": context.shard,
            "mailbox_seq": seq,
            "origin_device_id": dispatch["origin_device_id"],
            "sender_id": sender,
            "common_encoded_body": common,
            "recipients": listed,
        }
        pushes.append(PlannedPush(partition, PUSH_BATCH.encode(batch)))
    return sorted(lanes)
