"""Fanout without I/O: one committed message -> one GroupDispatch per target shard (DISP-02, DISP-11).

Everything in a dispatch comes from the outbox record: no clock, no current membership, so a replay plans the same
bytes (FAN-02, GRP-08).
"""

from __future__ import annotations

from typing import NamedTuple

from schemas.constants import EVENT_GROUP_MAX_BYTES
from schemas.errors import RecordError
from schemas.identifiers import dispatch_id_of, shard_of
from schemas.message import event_group_bytes
from schemas.packing import ABSENT, avro_long, pack_longs
from schemas.records import MESSAGE_RECORD, OUTBOX_RECORD, MessageRecord, OutboxRecord

__all__ = ["PlannedDispatch", "plan_dispatches"]

_VERSION = b"\x01"


class PlannedDispatch(NamedTuple):
    """Record for partition `shard` of the dispatch topic; `key` is the dispatch_id."""

    shard: int
    key: bytes
    value: bytes


def plan_dispatches(outbox_value: bytes, shard_count: int) -> list[PlannedDispatch]:
    """Dispatches of one outbox record, in shard order.

    Raises RecordError when the record is damaged, when its frozen shards are not those of its recipients under
    `shard_count` (DISP-13), or when an event group could exceed its limit (CON-38): the caller stops the partition,
    it never drops a committed message (FAN-04).
    """
    outbox = OUTBOX_RECORD.decode(outbox_value)
    record = MESSAGE_RECORD.decode(outbox["record"])
    if outbox["membership_version"] is not None:
        raise RecordError("outbox record names a group snapshot, which this version cannot expand")
    if min(outbox["recipients"], default=1) < 1:
        raise RecordError("outbox record names a recipient that is no user")
    tenant = int.from_bytes(outbox["tenant_id"], "big")
    by_shard: dict[int, list[int]] = {}
    for user in outbox["recipients"]:
        by_shard.setdefault(shard_of(tenant, user, shard_count), []).append(user)
    if sorted(by_shard) != outbox["target_shards"]:
        raise RecordError("frozen target shards differ from the shards of the recipients")
    end = len(_VERSION) + outbox["event_bytes"]
    template = outbox["record"][len(_VERSION) : end]
    # The common part ends where the record's own part begins, and that begins with these two fields.
    if not outbox["record"][end:].startswith(record["tenant_id"] + record["last_activity_id"]):
        raise RecordError("event_bytes does not cut the record behind its common part")
    if event_group_bytes(len(template), record["mentions"]) > EVENT_GROUP_MAX_BYTES:
        raise RecordError(f"event group of entries with {len(template)} common bytes")
    message_id = int.from_bytes(outbox["message_id"], "big")
    shared = _shared_part(outbox, record, template)
    planned = []
    for shard in outbox["target_shards"]:
        recipients = by_shard[shard]
        mentions = [user for user in record["mentions"] if user in recipients]
        dispatch_id = dispatch_id_of(message_id, shard)
        own = (
            _VERSION,
            dispatch_id,
            avro_long(shard),
            pack_longs(recipients),
            pack_longs(mentions),
            shared,
        )
        planned.append(PlannedDispatch(shard, dispatch_id, b"".join(own)))
    return planned


def _shared_part(outbox: OutboxRecord, record: MessageRecord, template: bytes) -> bytes:
    """What the dispatches of a message have in common: a GroupDispatch from its tenant_id on; equal to its codec by test."""
    event = record["event"]
    custom_type = event["custom_type"].encode()
    return b"".join(
        (
            outbox["tenant_id"],
            outbox["message_id"],
            event["conversation_id"],
            avro_long(int.from_bytes(event["conversation_seq"], "big")),
            record["last_activity_id"],
            avro_long(outbox["sender_id"]),
            record["client_message_id"],
            record["sender_device_id"],
            ABSENT,  # fencing_epoch (DISP-10)
            ABSENT,  # membership_version: a direct audience
            avro_long(event["created_at_ms"]),
            record["trace_id"],
            avro_long(event["message_type"]),
            avro_long(len(custom_type)),
            custom_type,
            avro_long(len(template)),
            template,
        )
    )
