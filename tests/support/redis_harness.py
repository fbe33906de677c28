"""What the shared mailbox suite needs of Redis beside the store: time that passes, damage, snapshots.

A day that passes is told by moving every day of the stored state one back, its absolute expiries with it: that is exactly what
the same state looks like one day later, and Redis itself removes what is past its expiry.
"""

import time
from collections.abc import Sequence
from typing import Any

from schemas.constants import MAILBOX_RETENTION_DAYS, SECONDS_PER_DAY
from stores.leases import ShardLeases
from stores.mailbox import MailboxStore
from stores.redis_link import RedisLink
from stores.redis_mailbox import user_key
from tests.support.mailboxes import TENANT, Damage, MailboxHarness

__all__ = ["RedisHarness", "script_calls"]


async def script_calls(links: Sequence[RedisLink]) -> int:
    """EVALSHA calls of these instances since they started."""
    total = 0
    for link in links:
        info: bytes = await link.command("INFO", "commandstats")
        lines = [line for line in info.decode().splitlines() if line.startswith("cmdstat_evalsha:")]
        total += sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)
    return total


def _expiry_of(day: int) -> int:
    return (day + MAILBOX_RETENTION_DAYS + 1) * SECONDS_PER_DAY


class RedisHarness(MailboxHarness):
    """The instances of one test, its keys told by their prefix."""

    def __init__(
        self, links: Sequence[RedisLink], app_id: str, store: MailboxStore, leases: ShardLeases
    ) -> None:
        self.links = links
        self.prefix = f"{app_id}:"
        self.store = store
        self.leases = leases
        self._aged = 0
        self._today = int(time.time()) // SECONDS_PER_DAY

    def day(self, number: int) -> int:
        return self._today - self._aged + number

    async def keys(self, link: RedisLink, family: str = "") -> list[str]:
        """Names of this test's keys, without the prefix."""
        found = await link.command("KEYS", f"{self.prefix}{family}*")
        return [name.decode().removeprefix(self.prefix) for name in found]

    async def run(self, link: RedisLink, command: str, key: str, *args: str | bytes | int) -> Any:
        return await link.command(command, f"{self.prefix}{key}", *args)

    async def age(self, days: int) -> None:
        self._aged += days
        for link in self.links:
            for key in await self.keys(link, "mailbox:"):
                base, day = key.rsplit(":", 1)
                moved = f"{base}:{int(day) - days}"
                await self.run(link, "RENAME", key, f"{self.prefix}{moved}")
                await self.run(link, "EXPIREAT", moved, _expiry_of(int(day) - days))
            for key in await self.keys(link, "mbmeta:"):
                await self._age_proofs(link, key.removeprefix("mbmeta:"), days)

    async def _age_proofs(self, link: RedisLink, user: str, days: int) -> None:
        meta, index, identity = f"mbmeta:{user}", f"mbdays:{user}", f"mbseqbucket:{user}"
        flat = await self.run(link, "HGETALL", meta)
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if name.startswith(b"day:"):
                day = int(name[4:]) - days
                await self.run(link, "HDEL", meta, name)
                await self.run(
                    link, "HSET", meta, f"day:{day}", value[:17] + str(_expiry_of(day)).encode()
                )
            elif name in {b"min_day", b"max_day"}:
                await self.run(link, "HSET", meta, name, int(value) - days)
        for day in await self.run(link, "ZRANGE", index, 0, -1):
            await self.run(link, "ZREM", index, day)
            moved = int(day) - days
            await self.run(link, "ZADD", index, _expiry_of(moved), moved)
        for seq in await self.run(link, "ZRANGE", identity, 0, -1):
            await self.run(link, "ZINCRBY", identity, -days * SECONDS_PER_DAY, seq)
        expiry = await self.run(link, "EXPIRETIME", identity)
        if expiry > 0:
            await self.run(link, "EXPIREAT", identity, expiry - days * SECONDS_PER_DAY)

    async def damage(self, kind: Damage, user: int, day: int) -> None:
        link, key = self.links[0], user_key(TENANT, user, 1)
        bucket, meta = f"mailbox:{key}:{day}", f"mbmeta:{key}"
        match kind:
            case Damage.META_LOST:
                await self.run(link, "DEL", meta)
            case Damage.FORMAT_3:
                await self.run(link, "HSET", meta, "retention_format_version", 3)
            case Damage.PROOF_WRONG:
                wrong = f"{1 << 48 | 1:016x}:{_expiry_of(day)}"
                await self.run(link, "HSET", meta, f"day:{day}", wrong)
            case Damage.BUCKET_LOST:
                await self.run(link, "DEL", bucket)
            case Damage.DAY_INDEX_LOST:
                await self.run(link, "DEL", f"mbdays:{key}")
            case Damage.IDENTITY_LOST:
                await self.run(link, "DEL", f"mbseqbucket:{key}")
            case Damage.EXPIRY_MOVED:
                await self.run(link, "EXPIREAT", bucket, _expiry_of(day) + 60)

    async def plant(self, user: int, day: int, log_offset: int, entry: bytes) -> None:
        key = f"mailbox:{user_key(TENANT, user, 1)}:{day}"
        await self.run(self.links[0], "ZADD", key, log_offset, entry)

    async def forget_identity(self, user: int, seq: int) -> None:
        key = f"mbseqbucket:{user_key(TENANT, user, 1)}"
        assert await self.run(self.links[0], "ZREM", key, f"{seq:016x}") == 1

    async def snapshot(self) -> object:
        return {
            (link.name, key): (
                await self.run(link, "DUMP", key),
                await self.run(link, "PEXPIRETIME", key),
            )
            for link in self.links
            for key in sorted(await self.keys(link))
        }

    async def end_lease(self, shard: int) -> None:
        await self.run(self.links[shard % len(self.links)], "DEL", f"shardlease:{shard}")

    async def evalsha_calls(self) -> int:
        """Scripts run so far on all instances."""
        total = 0
        for link in self.links:
            info: bytes = await link.command("INFO", "commandstats")
            for line in info.decode().splitlines():
                if line.startswith("cmdstat_evalsha:"):
                    total += int(line.split("calls=")[1].split(",")[0])
        return total
