"""The mailbox keys of one application: read as digests, thrown away, given their boundaries back. By prefix, never by FLUSH.

Only the derived families are touched (`mailbox:`, `mbmeta:`, `mbdays:`, `mbseqbucket:`, `wm:`). Leases, terms, epoch
boundaries and the records of layout and log are authority and stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from lua import load
from ops.qimctl.digests import DAMAGED, DayDigest, UserDigest, digest_entries
from schemas.constants import RETENTION_FORMAT_VERSION
from schemas.errors import ServerFault
from schemas.identifiers import shard_of
from stores.redis_link import RedisLink

__all__ = ["MailboxKeys", "user_of"]

_FORGET: Final = load("forget_mailbox")
_VERSION: Final = str(RETENTION_FORMAT_VERSION)
_SCAN_COUNT: Final = 1000
_AT_ONCE: Final = 8  # as many as a link has connections
_READ_ENTRIES: Final = 2000
_USER_FAMILIES: Final = ("mbdays", "mbseqbucket")


def user_of(user_key: str) -> tuple[int, int]:
    """(tenant, user) of a store's user key `{<tenant hex>:<user>}:e<base epoch>`."""
    tenant, user = user_key.split("}", maxsplit=1)[0].removeprefix("{").split(":")
    return int(tenant, 16), int(user)


class MailboxKeys:
    """The mailbox keys below `<app_id>:` on the mailbox instances in their configured order."""

    def __init__(self, links: Sequence[RedisLink], app_id: str, shard_count: int) -> None:
        self._links = tuple(links)
        self._prefix = f"{app_id}:"
        self._shards = shard_count

    async def now_s(self) -> int:
        """Redis' clock, by which days expire."""
        return int((await self._links[0].command("TIME"))[0])

    async def digests(
        self, limits: Mapping[int, int] | None = None, floors: Mapping[int, int] | None = None
    ) -> dict[str, UserDigest]:
        """Every user's digest.

        `limits` and `floors` by shard leave out entries above and below those log offsets.
        """
        found: dict[str, UserDigest] = {}
        now_s = await self.now_s()
        for link in self._links:
            days = await self._days(link)

            async def read(
                key: str, link: RedisLink = link, days: Mapping[str, list[int]] = days
            ) -> None:
                shard = shard_of(*user_of(key), self._shards)
                high = "+inf" if limits is None else str(limits.get(shard, -1))
                low = "-inf" if floors is None else str(floors.get(shard, 0))
                meta = await self._meta(link, key)
                buckets = {}
                for day in days[key]:
                    digest = await self._bucket(link, f"{key}:{day}", low, high)
                    if digest is not None:
                        buckets[day] = digest
                gap = max([meta.get("expired_gap_boundary", ""), *_expired(meta, days[key], now_s)])
                found[key] = UserDigest(meta.get("user_trim_seq", ""), gap, buckets)

            await _for_all(days, read)
        return found

    async def forget(self) -> int:
        """Throw away entries, indexes and store W; returns the number of users. Boundaries stay (lua/forget_mailbox)."""
        users = 0
        for link in self._links:
            days = await self._days(link)

            async def one(
                key: str, link: RedisLink = link, days: Mapping[str, list[int]] = days
            ) -> None:
                await link.run(_FORGET, self._prefix, _VERSION, key, *days[key])

            await _for_all(days, one)
            users += len(days)
            for family in _USER_FAMILIES:  # what damage left without its mbmeta
                async for keys in self._scan(link, f"{family}:*"):
                    await link.command("DEL", *keys)
        for shard in range(self._shards):
            await self._links[shard % len(self._links)].command("DEL", f"{self._prefix}wm:{shard}")
        return users

    async def plant(self, users: Mapping[str, UserDigest]) -> None:
        """Give users that have nothing their boundaries, as `forget` leaves them."""
        for key, user in users.items():
            if user.trim or user.gap:
                link = self._links[shard_of(*user_of(key), self._shards) % len(self._links)]
                fields = ["retention_format_version", _VERSION, "active_day_count", "0"]
                fields += ["user_trim_seq", user.trim] if user.trim else []
                fields += ["expired_gap_boundary", user.gap] if user.gap else []
                await link.command("HSET", f"{self._prefix}mbmeta:{key}", *fields)

    async def drop_all(self) -> None:
        """Remove every key below the prefix: for key spaces of our own making only."""
        for link in self._links:
            async for keys in self._scan(link, "*"):
                await link.command("DEL", *keys)

    async def _scan(self, link: RedisLink, pattern: str) -> AsyncIterator[list[str]]:
        cursor = b"0"
        while True:
            cursor, names = await link.command(
                "SCAN", cursor, "MATCH", f"{self._prefix}{pattern}", "COUNT", _SCAN_COUNT
            )
            if names:
                yield [name.decode() for name in names]
            if cursor == b"0":
                return

    async def _days(self, link: RedisLink) -> dict[str, list[int]]:
        """User key -> days that have a bucket; users with a meta only have none."""
        found: dict[str, set[int]] = {}
        head = len(self._prefix)
        async for names in self._scan(link, "mbmeta:*"):
            for name in names:
                found.setdefault(name[head:].removeprefix("mbmeta:"), set())
        async for names in self._scan(link, "mailbox:*"):
            for name in names:
                key, day = name[head:].removeprefix("mailbox:").rsplit(":", 1)
                found.setdefault(key, set()).add(int(day))
        return {key: sorted(days) for key, days in found.items()}

    async def _bucket(self, link: RedisLink, bucket: str, low: str, high: str) -> DayDigest | None:
        try:
            entries = await self._entries(link, bucket, low, high)
            return digest_entries(entries) if entries else None
        except (ServerFault, ValueError):  # another type, or scores that are no offsets
            return DAMAGED

    async def _meta(self, link: RedisLink, key: str) -> dict[str, str]:
        try:
            flat: list[bytes] = await link.command("HGETALL", f"{self._prefix}mbmeta:{key}")
        except ServerFault:
            return {"expired_gap_boundary": "damaged"}
        return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}

    async def _entries(
        self, link: RedisLink, bucket: str, low: str, high: str
    ) -> list[tuple[int, bytes]]:
        entries: list[tuple[int, bytes]] = []
        while True:
            flat: list[bytes] = await link.command(
                "ZRANGE",
                f"{self._prefix}mailbox:{bucket}",
                *(low, high, "BYSCORE", "LIMIT", len(entries), _READ_ENTRIES, "WITHSCORES"),
            )
            entries += [(int(flat[i + 1]), flat[i]) for i in range(0, len(flat), 2)]
            if len(flat) < 2 * _READ_ENTRIES:
                return entries


def _expired(meta: Mapping[str, str], days: Sequence[int], now_s: int) -> list[str]:
    """Highest sequences of days whose proof outlived its bucket: expired, and not promoted yet (MBX-40)."""
    buckets = {str(day) for day in days}
    found = []
    for name, value in meta.items():
        if name.startswith("day:") and name[4:] not in buckets:
            seq, _, expiry = value.partition(":")
            if expiry.isdigit() and int(expiry) <= now_s:
                found.append(seq)
    return found


async def _for_all(keys: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    queue = iter(list(keys))

    async def run() -> None:
        for key in queue:
            await work(key)

    await asyncio.gather(*(run() for _ in range(_AT_ONCE)))
