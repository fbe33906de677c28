"""MailboxStore on Redis: every page is one EVALSHA an instance (MBX-30, REDIS-07).

A shard's instance is `shard % instances`; the list of instances is a start-up contract (REDIS-09). The scripts hold all
rules; this file packs arguments, unpacks answers and decides nothing about retention.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from lua import load
from schemas.constants import (
    MAILBOX_RETENTION_DAYS,
    MAILBOX_WRITE_BATCH_MAX_ENTRIES,
    MAX_LOG_OFFSET,
    RETENTION_FORMAT_VERSION,
)
from schemas.errors import Bug, QimError, StoreUnknownOutcome
from schemas.watermarks import W_LAYOUT
from stores.instances import by_instance
from stores.mailbox import (
    OK,
    AppendOutcome,
    CursorExpired,
    MailboxBehind,
    MailboxDirty,
    MailboxHead,
    ScanRequest,
    ScanResult,
    ShardAppend,
    StoredWatermark,
)
from stores.packing import pack
from stores.redis_link import RedisLink, redacted
from stores.scan import (
    Bounds,
    DayRead,
    answer,
    bounds_of,
    effective_trim,
    promised_offset,
    read_limit,
)

__all__ = ["RedisMailboxStore", "user_key"]

_LOG: Final = logging.getLogger(__name__)
_APPEND: Final = load("append_page")
_SCAN: Final = load("scan_page")
_TRUNCATE: Final = load("truncate")
_VERSION: Final = str(RETENTION_FORMAT_VERSION)
_SEQ_END: Final = 9
_W_FIELDS: Final = 3
_ENTRY_ITEMS: Final = 4
_USER_ITEMS_MAX: Final = MAILBOX_WRITE_BATCH_MAX_ENTRIES * _ENTRY_ITEMS  # DP-02


def user_key(tenant: int, user: int, base_epoch: int) -> str:
    """The part of a key that names one user's mailbox of one incarnation (MBX-10, OPEN-06)."""
    return f"{{{tenant:x}:{user}}}:e{base_epoch}"


def _section(append: ShardAppend) -> list[Any]:
    """One section as append_page.lua reads it, its length first."""
    users: dict[tuple[int, int], list[Any]] = {}
    for tenant, user, log_offset, seq, day, member in append.entries:
        seq_bytes = member[1:_SEQ_END]
        if log_offset != seq & MAX_LOG_OFFSET or int.from_bytes(seq_bytes, "big") != seq:
            raise Bug("entry bytes, mailbox_seq and log offset disagree")
        rows = users.get((tenant, user))
        if rows is None:
            users[tenant, user] = rows = []
        rows += (day, str(log_offset), seq_bytes.hex(), member)
    section: list[Any] = [
        0,
        append.shard,
        str(append.lease_term),
        str(append.w_epoch),
        append.expected_w or b"",
        append.new_w,
        len(users),
    ]
    for (tenant, user), rows in users.items():
        if len(rows) > _USER_ITEMS_MAX:  # a script's commands take a bounded number of arguments
            raise Bug(f"more than {MAILBOX_WRITE_BATCH_MAX_ENTRIES} entries for one user")
        section += (user_key(tenant, user, append.base_epoch), len(rows) // _ENTRY_ITEMS)
        section += rows
    section[0] = len(section) - 1
    return section


def _outcome(item: Any) -> AppendOutcome:
    if item == 1:
        return OK
    code, detail, stored = item
    outcome = AppendOutcome(
        code.decode(), redacted(detail.decode(errors="replace")), stored or None
    )
    _LOG.error("append refused: %s: %s", outcome.code, outcome.detail)
    return outcome


def _scan_items(scan: ScanRequest, limit: int) -> list[Any]:
    promised = promised_offset(scan) if limit else None
    items: list[Any] = [limit, scan.max_bytes, len(scan.base_epochs)]
    items += ("", 0, 0) if promised is None else (str(scan.shard), scan.lane, promised)
    for base_epoch, bounds in zip(scan.base_epochs, bounds_of(scan), strict=True):
        items += (user_key(scan.tenant, scan.user, base_epoch), *_scores(bounds))
    return items


def _scores(bounds: Bounds | None) -> tuple[str, str]:
    if bounds is None:
        return "", ""
    low, high = bounds
    return "-inf" if low is None else f"({low}", "+inf" if high is None else str(high)


def _dirty(code: bytes, detail: bytes) -> MailboxDirty:
    text = f"{code.decode()}: {redacted(detail.decode(errors='replace'))}"
    _LOG.error("mailbox damaged: %s", text)
    return MailboxDirty(text)


def _hex_seq(text: bytes) -> int:
    return int(text, 16) if text else 0


def _scan_result(scan: ScanRequest, item: Any) -> ScanResult | QimError:
    if item[0] == b"behind":
        return MailboxBehind()
    if item[0] != 0:
        return _dirty(item[0], item[1])
    days = [DayRead(day[0] == 1, day[1:]) for day in item[3]]
    try:
        return answer(scan, days, _hex_seq(item[1]), _hex_seq(item[2]))
    except CursorExpired as expired:  # an answer to the client, not a failure
        return expired
    except MailboxDirty as dirty:
        _LOG.error("mailbox damaged: %s", dirty.detail)
        return dirty


def _head(item: Any) -> MailboxHead | QimError:
    if item[0] != 0:
        return _dirty(item[0], item[1])
    return MailboxHead(effective_trim(_hex_seq(item[1]), _hex_seq(item[2])), item[3])


class RedisMailboxStore:
    """The Redis backend; `links` are the instances in their configured order, `app_id` prefixes every key."""

    __slots__ = ("_links", "_prefix")

    def __init__(self, links: Sequence[RedisLink], app_id: str) -> None:
        self._links = tuple(links)
        self._prefix = f"{app_id}:"

    def _of(self, item: ShardAppend | ScanRequest) -> int:
        return item.shard % len(self._links)

    async def append_page(self, appends: Sequence[ShardAppend]) -> list[AppendOutcome]:
        """See MailboxStore; raises when an instance did not answer, after all others have."""

        async def run(instance: int, page: Sequence[ShardAppend]) -> list[AppendOutcome]:
            items: list[Any] = [MAILBOX_RETENTION_DAYS, _VERSION, W_LAYOUT, len(page)]
            for append in page:
                items += _section(append)
            reply = await self._links[instance].run(_APPEND, self._prefix, pack(items))
            return [_outcome(item) for item in reply]

        outcomes: list[AppendOutcome] = []
        for item in await by_instance(appends, self._of, run):
            if isinstance(item, QimError):
                raise item
            outcomes.append(item)
        return outcomes

    async def range_scan(self, scans: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
        """See MailboxStore."""

        async def run(instance: int, page: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
            reply = await self._scan(instance, page, [read_limit(scan) for scan in page])
            return [_scan_result(scan, item) for scan, item in zip(page, reply, strict=True)]

        return await by_instance(scans, self._of, run)

    async def heads(self, scans: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
        """See MailboxStore."""

        async def run(instance: int, page: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
            return [_head(item) for item in await self._scan(instance, page, [0] * len(page))]

        return await by_instance(scans, self._of, run)

    async def _scan(
        self, instance: int, scans: Sequence[ScanRequest], limits: Sequence[int]
    ) -> list[Any]:
        items: list[Any] = [MAILBOX_RETENTION_DAYS, _VERSION, len(scans)]
        for scan, limit in zip(scans, limits, strict=True):
            items += _scan_items(scan, limit)
        reply: list[Any] = await self._links[instance].run(_SCAN, self._prefix, pack(items))
        return reply

    async def truncate_before(
        self, tenant: int, user: int, shard: int, base_epoch: int, seq: int
    ) -> None:
        """See MailboxStore."""
        reply = await self._links[shard % len(self._links)].run(
            _TRUNCATE,
            self._prefix,
            MAILBOX_RETENTION_DAYS,
            _VERSION,
            user_key(tenant, user, base_epoch),
            f"{seq:016x}",
            f"({seq & MAX_LOG_OFFSET}",
        )
        if reply != 1:
            raise _dirty(reply[0], reply[1])

    async def watermark(self, shard: int) -> StoredWatermark | None:
        """See MailboxStore."""
        link = self._links[shard % len(self._links)]
        key = f"{self._prefix}wm:{shard}"
        try:
            flat: list[bytes] = await link.command("HGETALL", key)
        except StoreUnknownOutcome:
            if await link.command("TYPE", key) not in {b"hash", b"none"}:
                raise _dirty(b"wrong_type", key.encode()) from None
            raise
        if not flat:
            return None
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            if len(fields) != _W_FIELDS:
                raise ValueError("fields of another form")
            return StoredWatermark(
                fields[b"wm_layout"].decode(), int(fields[b"wm_epoch"]), fields[b"wm_blob"]
            )
        except (KeyError, ValueError) as error:
            raise _dirty(b"corrupt", key.encode()) from error
