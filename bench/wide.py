"""Wide dispatches: one message to very many users of one shard, as a group will make them."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Final

from schemas.identifiers import lane_of, shard_of, trace_id_of
from schemas.message import encode_message, encode_outbox_head, join_outbox, join_record
from streams.fanout_core import plan_dispatches

__all__ = ["SHARD", "TENANT", "users_in", "wide_dispatch"]

TENANT: Final = 0
SHARD: Final = 0


def users_in(shard_count: int, lanes: Iterable[int], count: int, first: int) -> list[int]:
    """The first `count` users from `first` on that live on shard 0 in one of `lanes`."""
    wanted = frozenset(lanes)
    living = (
        user
        for user in itertools.count(first)
        if shard_of(TENANT, user, shard_count) == SHARD and lane_of(TENANT, user) in wanted
    )
    return list(itertools.islice(living, count))


def wide_dispatch(shard_count: int, users: Sequence[int]) -> tuple[bytes, bytes]:
    """(key, value) of the dispatch of a new message to `users`, who all live on one shard."""
    minted = secrets.randbits(127)
    message_id = minted.to_bytes(16, "big")
    parts = encode_message(
        tenant=TENANT,
        message_id=message_id,
        trace_id=trace_id_of(minted),
        conversation_id=secrets.token_bytes(16),
        sender=users[0],
        sender_device_id=secrets.token_bytes(16),
        client_message_id=secrets.token_bytes(16),
        committed_at_ms=time.time_ns() // 1_000_000,
        message_type=1,
        custom_type="",
        body=b"to everybody",
        mentions=(),
        reply_to=None,
        member_count=1,  # inlined: a group's real size would move the body out of the entry
    )
    head = encode_outbox_head(TENANT, message_id, users[0], list(users), [SHARD], parts.event_bytes)
    (planned,) = plan_dispatches(join_outbox(head, join_record(parts, 1)), shard_count)
    return planned.key, planned.value
