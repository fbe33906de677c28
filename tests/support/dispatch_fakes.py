"""Committed messages, the dispatches that fanout makes of them, and users who live where a test needs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, cast

from schemas.identifiers import (
    direct_conversation_id,
    dispatch_id_of,
    lane_of,
    shard_of,
    trace_id_of,
)
from schemas.message import encode_message, encode_outbox_head, join_outbox, join_record
from schemas.records import GROUP_DISPATCH, GroupDispatch
from streams.fanout_core import PlannedDispatch, plan_dispatches
from tests.support.records import FakeRecord
from tests.support.samples import id16
from tests.support.virtual_time import EPOCH_MS

__all__ = ["SHARDS", "direct", "dispatch", "log", "outbox", "users_of"]

SHARDS = 8
_FIRST_MESSAGE = 1 << 80


def outbox(number: int = 1, sender: int = 1001, recipient: int = 2002, **change: Any) -> bytes:
    """The outbox record of message `number`; `change` overrides arguments of encode_message."""
    people = [sender] if sender == recipient else [sender, recipient]
    message_id = _FIRST_MESSAGE + number
    tenant = int(change.get("tenant", 0))
    arguments: dict[str, Any] = {
        "tenant": tenant,
        "message_id": id16(message_id),
        "trace_id": trace_id_of(message_id),
        "conversation_id": direct_conversation_id(tenant, sender, recipient),
        "sender": sender,
        "sender_device_id": id16(0xDE71CE),
        "client_message_id": id16(number),
        "committed_at_ms": EPOCH_MS + number,
        "message_type": 1,
        "custom_type": "",
        "body": b"message %d" % number,
        "mentions": (),
        "reply_to": None,
        "member_count": len(people),
    } | change
    parts = encode_message(**arguments)
    shards = sorted({shard_of(tenant, user, SHARDS) for user in people})
    head = encode_outbox_head(tenant, id16(message_id), sender, people, shards, parts.event_bytes)
    return join_outbox(head, join_record(parts, number))


def direct(
    number: int = 1, sender: int = 1001, recipient: int = 2002, **change: Any
) -> list[PlannedDispatch]:
    """The dispatches of a direct message."""
    return plan_dispatches(outbox(number, sender, recipient, **change), SHARDS)


def dispatch(number: int, users: Sequence[int], shard: int = 0, **change: Any) -> GroupDispatch:
    """A dispatch for any list of users of one shard; `change` overrides its fields."""
    planned, *_ = direct(number, users[0], users[0])
    base = GROUP_DISPATCH.decode(planned.value)
    made = base | {
        "recipients": list(users),
        "target_mailbox_shard": shard,
        "dispatch_id": dispatch_id_of(_FIRST_MESSAGE + number, shard),
        "sender_id": users[0],
        **change,
    }
    return cast("GroupDispatch", made)


def log(dispatches: Iterable[GroupDispatch | bytes], first: int = 0) -> list[FakeRecord]:
    """Records of a dispatch partition, one ms apart."""
    return [
        FakeRecord(
            first + at,
            None,
            made if isinstance(made, bytes) else GROUP_DISPATCH.encode(made),
            EPOCH_MS + first + at,
        )
        for at, made in enumerate(dispatches)
    ]


@cache
def users_of(
    shard: int, count: int, lane: int | None = None, shards: int = SHARDS
) -> tuple[int, ...]:
    """The first `count` users of tenant 0 who live on a shard, and in a lane."""

    def living() -> Iterator[int]:
        for user in range(1, 1 << 30):
            if shard_of(0, user, shards) == shard and lane in {None, lane_of(0, user)}:
                yield user

    found = living()
    return tuple(next(found) for _ in range(count))
