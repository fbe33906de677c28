"""Expansion of one dispatch for some of its recipients: mailbox entries and pushes (EVT group, PUSH-02).

A function of the dispatch and its log offset alone: no clock and no random source (EVT-12, FORB-14), so whoever expands
it again writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from schemas.constants import SECONDS_PER_DAY
from schemas.entry import EntryFlag, EventType, MessageType, encode_entry_head
from schemas.errors import RecordError
from schemas.identifiers import (
    compose_seq,
    event_id_of,
    lane_of,
    shard_of_bucket,
    virtual_bucket,
)
from schemas.packing import pack_push, pack_push_head
from schemas.records import GroupDispatch
from schemas.topics import push_partition_of
from stores.mailbox import EntryWrite

__all__ = ["Expander", "PlannedPush", "ShardContext", "epoch_at", "split_lanes"]

_MS_PER_DAY = SECONDS_PER_DAY * 1000
# Plain numbers: operators of an enum cost more than the rest of a head.
_QUIET: Final = int(EntryFlag.AFFECTS_SESSION_ORDER)
_UNREAD: Final = int(EntryFlag.AFFECTS_SESSION_ORDER | EntryFlag.COUNTS_UNREAD)  # EVT-09, UNREAD-02
_CONTROL_MESSAGE: Final = int(MessageType.CONTROL)
_MESSAGE, _MENTION, _CONTROL = (
    int(EventType.MESSAGE),
    int(EventType.MENTION),
    int(EventType.CONTROL),
)


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


def epoch_at(boundaries: Sequence[tuple[int, int]], log_offset: int) -> int:
    """The epoch of a record is a function of its log position, never of who processes it (CON-39)."""
    epoch = 0
    for candidate, first_offset in boundaries:
        if first_offset <= log_offset:
            epoch = candidate
    if not epoch:
        raise RecordError(f"no epoch boundary covers offset {log_offset}")
    return epoch


def split_lanes(dispatch: GroupDispatch, users: Iterable[int]) -> dict[int, list[int]]:
    """Users by lane, in the order of the list (LANE-02)."""
    tenant = int.from_bytes(dispatch["tenant_id"], "big")
    by_lane: dict[int, list[int]] = {}
    for user in users:
        by_lane.setdefault(lane_of(tenant, user), []).append(user)
    return by_lane


class Expander:
    """Expands dispatches of one shard; collects entries and pushes until `take`."""

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self.entries: list[EntryWrite] = []
        self._pushes: list[PlannedPush] = []

    def take(self) -> tuple[list[EntryWrite], list[PlannedPush]]:
        """What was collected since the last call."""
        taken = self.entries, self._pushes
        self.entries, self._pushes = [], []
        return taken

    def add(self, offset: int, dispatch: GroupDispatch, users: Iterable[int]) -> None:
        """Entries and pushes of `users`; raises RecordError for a user of another shard (DISP-13)."""
        shard, shard_count, push_partitions, boundaries = self._context
        tenant_id = dispatch["tenant_id"]
        tenant = int.from_bytes(tenant_id, "big")
        common = dispatch["event_template"]
        seq = compose_seq(epoch_at(boundaries, offset), offset)
        day = dispatch["committed_at_ms"] // _MS_PER_DAY
        listed: dict[int, list[tuple[int, list[bytes]]]] = {}
        for user in users:
            bucket = virtual_bucket(tenant, user)
            if shard_of_bucket(bucket, shard_count) != shard:
                raise RecordError(f"offset {offset}: a recipient belongs to another shard")
            heads = _heads(dispatch, tenant, user, seq)
            for head in heads:
                self.entries.append(EntryWrite(tenant, user, offset, seq, day, head + common))
            partition = push_partition_of(bucket, push_partitions)
            listed.setdefault(partition, []).append((user, heads))
        push_head = pack_push_head(
            tenant_id, shard, seq, dispatch["origin_device_id"], dispatch["sender_id"], common
        )
        for partition, recipients in listed.items():
            self._pushes.append(PlannedPush(partition, pack_push(push_head, recipients)))


def _heads(dispatch: GroupDispatch, tenant: int, user: int, seq: int) -> list[bytes]:
    """The event group of one user without its common part, in ordinal order (EVT-03)."""
    own = user == dispatch["sender_id"]
    is_control = dispatch["message_type"] == _CONTROL_MESSAGE
    flags = _QUIET if own or is_control else _UNREAD
    first = _CONTROL if is_control else _MESSAGE
    types = [first] if user not in dispatch["mentions"] else sorted((first, _MENTION))
    client_message_id = dispatch["client_message_id"] if own else None  # EVT-10
    return [
        encode_entry_head(
            seq,
            event_type,
            event_id_of(tenant, dispatch["dispatch_id"], user, event_type),
            _QUIET if event_type == _MENTION else flags,  # a message counts once
            1 if event_type == _MENTION else 0,
            client_message_id,
        )
        for event_type in types
    ]
