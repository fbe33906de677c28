"""Every log record: its type for mypy and its codec.

Numbers above 63 bits travel as big-endian fixed bytes (ADAPT-03), message_type as a plain int so that unknown values
survive (SEQ-17). The wire payloads are in schemas/wire.py.
"""

from __future__ import annotations

from typing import Final, TypedDict

from schemas.codec import Codec

__all__ = [
    "DISPATCH_PROGRESS",
    "EVENT_COMMON",
    "GROUP_DISPATCH",
    "MESSAGE_RECORD",
    "OUTBOX_RECORD",
    "PUSH_BATCH",
    "SHARD_EPOCHS",
    "WATERMARK_ROW",
    "DispatchProgress",
    "EpochBoundary",
    "EventCommon",
    "GroupDispatch",
    "MessageRecord",
    "OutboxRecord",
    "PushBatch",
    "PushRecipient",
    "ShardEpochs",
    "WatermarkRow",
]


class EventCommon(TypedDict):
    """What is the same for every recipient of a message; encoded once, then carried as opaque bytes (PUSH-02)."""

    conversation_seq: (
        bytes  # 8 bytes big-endian, first, because the commit script splices it in (COM-15)
    )
    message_id: bytes
    conversation_id: bytes
    sender_id: int
    created_at_ms: int
    message_type: int
    custom_type: str
    reply_to: bytes | None
    visibility_floor_conversation_seq: int | None
    body: bytes | None  # None: not inlined, read it from the MessageStore (DISP-04)


class MessageRecord(TypedDict):
    """The canonical record, as the MessageStore keeps it: the common part first, byte for byte, then the rest."""

    event: EventCommon
    tenant_id: bytes
    last_activity_id: bytes
    trace_id: bytes
    client_message_id: bytes
    sender_device_id: bytes
    mentions: list[int]
    state: int
    stored_body: bytes | None  # the body when it is not inlined in `event`


class OutboxRecord(TypedDict):
    """One committed message with its frozen audience (COM-09)."""

    tenant_id: bytes
    message_id: bytes
    sender_id: int
    recipients: list[int]  # Direct audience, sender included (DISP-14)
    membership_version: int | None  # set for a GroupSnapshot audience, null for Direct (DISP-14)
    target_shards: list[int]
    event_bytes: int  # how many bytes of `record`, after its version byte, are the common part
    record: bytes  # canonical MessageRecord as encoded


class GroupDispatch(TypedDict):
    """One message for one mailbox shard (DISP-03). What differs by shard comes first, so that the rest is encoded once."""

    dispatch_id: bytes
    target_mailbox_shard: int
    recipients: list[int]
    mentions: list[int]
    tenant_id: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    last_activity_id: bytes
    sender_id: int
    client_message_id: bytes
    origin_device_id: bytes
    fencing_epoch: int | None
    membership_version: int | None
    committed_at_ms: int
    trace_id: bytes
    message_type: int
    custom_type: str
    event_template: bytes


class DispatchProgress(TypedDict):
    """Row of table `progress`, keyed by dispatch_id (DP-10)."""

    payload_digest: bytes
    canonical_log_offset: int
    max_observed_offset: int
    last_seen_ms: int  # log time of the newest observation, never a local clock (DP-13)
    completed_at_ms: int
    manifest: bytes  # DP-08
    expected: int
    done: int
    unfinished_lanes: list[int]  # lanes with unfinished chunks, ascending (TAKE-01 T3)


class WatermarkRow(TypedDict):
    """Row of table `watermarks`: one a shard, and the gateways' only source of W (WM-06)."""

    lease_term: int
    epoch: int
    base_epoch: int
    page_number: int
    w: bytes  # packed v2 (WM-20, WM-21)


class EpochBoundary(TypedDict):
    """From record `first_offset` on, records have `epoch` (CON-39)."""

    epoch: int
    first_offset: int


class ShardEpochs(TypedDict):
    """One row a shard in table `progress`: the log's copy of what the registry knows of a shard (TAKE-04)."""

    lease_term: int
    owner: str
    boundaries: list[EpochBoundary]


class PushRecipient(TypedDict):
    """One recipient of a push: `entry_heads` are the mailbox entries without their common part."""

    user_id: int
    entry_heads: list[bytes]


class PushBatch(TypedDict):
    """One dispatch for one connection shard: the common body once, then the recipients (PUSH-02)."""

    tenant_id: bytes
    mailbox_shard: int
    mailbox_seq: int
    origin_device_id: bytes
    sender_id: int
    common_encoded_body: bytes
    recipients: list[PushRecipient]


EVENT_COMMON: Final[Codec[EventCommon]] = Codec("event_common")
MESSAGE_RECORD: Final[Codec[MessageRecord]] = Codec("message_record")
OUTBOX_RECORD: Final[Codec[OutboxRecord]] = Codec("outbox_record")
GROUP_DISPATCH: Final[Codec[GroupDispatch]] = Codec("group_dispatch")
DISPATCH_PROGRESS: Final[Codec[DispatchProgress]] = Codec("dispatch_progress", versions=2)
WATERMARK_ROW: Final[Codec[WatermarkRow]] = Codec("watermark_row")
SHARD_EPOCHS: Final[Codec[ShardEpochs]] = Codec("shard_epochs")
PUSH_BATCH: Final[Codec[PushBatch]] = Codec("push_batch")
