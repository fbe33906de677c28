"""MessageStore on Redis: one EVALSHA an instance for each page of reservations or marks (design §8).

A conversation's instance is `bucket % instances`; HLC windows and writer ids live on the first one (REDIS-10). The scripts
hold the state machine; this file packs and unpacks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from lua import load
from schemas.constants import CLIENT_DEDUP_TTL_S, HLC_WINDOW_MS
from schemas.errors import QimError, StoreFault, StoreUnknownOutcome
from stores.instances import by_instance
from stores.messages import (
    CommitDamaged,
    MarkRequest,
    MarkResult,
    ReserveRequest,
    ReserveResult,
    StaleIntent,
)
from stores.packing import pack
from stores.redis_link import RedisLink, redacted

__all__ = ["RedisMessageStore", "commit_key", "conversation_key"]

_LOG: Final = logging.getLogger(__name__)
_RESERVE: Final = load("reserve_page")
_MARK: Final = load("mark_page")
_RECOVER: Final = load("recover_page")
_HLC: Final = load("hlc_window")
_CLAIM: Final = load("writer_claim")
_RENEW: Final = load("writer_renew")
_TTL_MS: Final = CLIENT_DEDUP_TTL_S * 1000
_WRITER_IDS: Final = 65_536  # 16 bits of a message_id
_ID: Final = 16


def commit_key(bucket: int, tenant: int, sender: int, client_message_id: bytes) -> str:
    """What names one commit in all its keys (COM-05, COM-22)."""
    return f"{{b{bucket:03d}}}:{tenant:x}:{sender}:{client_message_id.hex()}"


def conversation_key(bucket: int, tenant: int, conversation_id: bytes) -> str:
    """What names one conversation in all its keys (COM-22)."""
    return f"{{b{bucket:03d}}}:{tenant:x}:{conversation_id.hex()}"


def _damaged(code: bytes, detail: bytes) -> CommitDamaged:
    text = f"{code.decode()}: {redacted(detail.decode(errors='replace'))}"
    _LOG.error("commit refused: %s", text)
    return CommitDamaged(text)


def _coordinates(text: bytes) -> tuple[int, int] | tuple[None, None]:
    if not text:
        return None, None
    partition, _, offset = text.partition(b":")
    return int(partition), int(offset)


def _reserved(request: ReserveRequest, item: Any, state: str) -> ReserveResult | QimError:
    if isinstance(item, int):
        record = request.record_head + item.to_bytes(8, "big") + request.record_tail
        return ReserveResult(
            "fresh",
            state,
            item,
            request.message_id,
            request.last_activity_id,
            request.trace_id,
            request.committed_at_ms,
            record,
            request.outbox_meta,
        )
    if item[0] == b"conflict":
        return ReserveResult("conflict")
    if len(item) == 2:  # noqa: PLR2004 - {code, detail}
        return _damaged(*item)
    found, seq, ids, committed_at_ms, record, meta, outbox = item
    return ReserveResult(
        "existing",
        found.decode(),
        seq,
        ids[:_ID],
        ids[_ID : 2 * _ID],
        ids[2 * _ID : 3 * _ID],
        committed_at_ms,
        record or None,
        meta or None,
        *_coordinates(outbox),
    )


def _marked(request: MarkRequest, item: Any) -> MarkResult | QimError:
    if item == 1:
        return MarkResult("marked", request.outbox_partition, request.outbox_offset)
    if item[0] == b"C":
        partition, offset = _coordinates(item[1])
        if partition is None or offset is None:
            return _damaged(b"corrupt", b"committed without outbox coordinates")
        return MarkResult("existing", partition, offset)
    return _damaged(*item)


def _stale(item: Any) -> StaleIntent:
    key, state, identity, seq, ids, committed_at_ms, record, meta = item
    bucket, tenant, sender, client_message_id = key.decode().split(":")
    return StaleIntent(
        state.decode(),
        int(tenant, 16),
        int(sender),
        bytes.fromhex(client_message_id),
        ids[3 * _ID :],
        int(bucket[2:-1]),
        identity,
        ids[:_ID],
        ids[_ID : 2 * _ID],
        ids[2 * _ID : 3 * _ID],
        committed_at_ms,
        seq,
        record,
        meta,
    )


def _raise_unknown(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, StoreUnknownOutcome):
            raise result


class RedisMessageStore:
    """The Redis backend; `links` are the commit instances in their configured order."""

    __slots__ = ("_links", "_prefix")

    def __init__(self, links: Sequence[RedisLink], app_id: str) -> None:
        self._links = tuple(links)
        self._prefix = f"{app_id}:"

    def _of(self, item: ReserveRequest | MarkRequest) -> int:
        return item.bucket % len(self._links)

    async def reserve_and_record(
        self, page: Sequence[ReserveRequest]
    ) -> list[ReserveResult | QimError]:
        """See MessageStore."""
        return await self._reserve(page, "D")

    async def reserve_only(self, page: Sequence[ReserveRequest]) -> list[ReserveResult | QimError]:
        """See MessageStore."""
        return await self._reserve(page, "R")

    async def _reserve(
        self, page: Sequence[ReserveRequest], state: str
    ) -> list[ReserveResult | QimError]:
        async def run(
            instance: int, part: Sequence[ReserveRequest]
        ) -> list[ReserveResult | QimError]:
            items: list[Any] = [_TTL_MS, state, len(part)]
            for r in part:
                items += (
                    commit_key(r.bucket, r.tenant, r.sender, r.client_message_id),
                    conversation_key(r.bucket, r.tenant, r.conversation_id),
                    r.identity,
                    r.message_id + r.last_activity_id + r.trace_id + r.conversation_id,
                    str(r.committed_at_ms),
                    r.record_head,
                    r.record_tail,
                    r.outbox_meta,
                )
            reply = await self._links[instance].run(_RESERVE, self._prefix, pack(items))
            return [_reserved(r, item, state) for r, item in zip(part, reply, strict=True)]

        results = await by_instance(page, self._of, run)
        _raise_unknown(results)
        return results

    async def mark_committed(self, page: Sequence[MarkRequest]) -> list[MarkResult | QimError]:
        """See MessageStore."""

        async def run(instance: int, part: Sequence[MarkRequest]) -> list[MarkResult | QimError]:
            items: list[Any] = [_TTL_MS, len(part)]
            for m in part:
                items += (
                    commit_key(m.bucket, m.tenant, m.sender, m.client_message_id),
                    m.message_id,
                    f"{m.outbox_partition}:{m.outbox_offset}",
                )
            reply = await self._links[instance].run(_MARK, self._prefix, pack(items))
            return [_marked(m, item) for m, item in zip(part, reply, strict=True)]

        results = await by_instance(page, self._of, run)
        _raise_unknown(results)
        return results

    async def stale_intents(
        self, instance: int, older_than_ms: int, limit: int
    ) -> list[StaleIntent]:
        """See MessageStore."""
        reply = await self._links[instance].run(_RECOVER, self._prefix, older_than_ms, limit)
        for item in reply:
            if len(item) == 2:  # noqa: PLR2004 - {code, detail}
                _damaged(*item)
        return [_stale(item) for item in reply if len(item) > 2]  # noqa: PLR2004

    async def claim_hlc_window(
        self, region_id: int, writer_id: int, now_ms: int
    ) -> tuple[int, int]:
        """See MessageStore."""
        key = f"{self._prefix}hlc:{region_id}:{writer_id}"
        reply = await self._links[0].run(_HLC, now_ms, HLC_WINDOW_MS, keys=(key,))
        if len(reply) != 2:  # noqa: PLR2004 - {first, beyond}
            raise _damaged(b"corrupt", key.encode())
        return reply[0], reply[1]

    async def claim_writer_id(self, region_id: int, owner: str, ttl_ms: int) -> int:
        """See MessageStore."""
        args = (self._prefix, region_id, owner, ttl_ms, _WRITER_IDS)
        writer_id: int = await self._links[0].run(_CLAIM, *args)
        if writer_id < 0:
            raise StoreFault(f"every writer id of region {region_id} is leased")
        return writer_id

    async def renew_writer_id(
        self, region_id: int, writer_id: int, owner: str, ttl_ms: int
    ) -> bool:
        """See MessageStore."""
        key = f"{self._prefix}writer:{region_id}:{writer_id}"
        return bool(await self._links[0].run(_RENEW, owner, ttl_ms, keys=(key,)))
