"""ShardLeases in memory, for tests of everything above the store; `now_ms` is its clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stores.leases import LeaseGrant, LeaseHeld

__all__ = ["MemoryShardLeases"]


@dataclass(slots=True)
class _Lease:
    owner: str
    term: int
    ends_at_ms: int


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryShardLeases:
    """The same rules as shard_acquire.lua and shard_renew.lua."""

    def __init__(self, now_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self._now_ms = now_ms
        self._leases: dict[int, _Lease] = {}
        self._terms: dict[int, int] = {}

    def live_term(self, shard: int) -> int | None:
        """The term of the lease that lives now, None when there is none."""
        lease = self._leases.get(shard)
        return lease.term if lease is not None and lease.ends_at_ms > self._now_ms() else None

    async def acquire(self, shard: int, owner: str, ttl_ms: int) -> LeaseGrant | LeaseHeld:
        """See ShardLeases."""
        now_ms = self._now_ms()
        lease = self._leases.get(shard)
        if lease is not None and lease.ends_at_ms > now_ms and lease.owner != owner:
            return LeaseHeld(lease.owner, lease.ends_at_ms - now_ms)
        term = max(self._terms.get(shard, 0) + 1, now_ms)
        self._terms[shard] = term
        self._leases[shard] = _Lease(owner, term, now_ms + ttl_ms)
        return LeaseGrant(term)

    async def acquire_many(
        self, shards: Sequence[int], owner: str, ttl_ms: int
    ) -> list[LeaseGrant | LeaseHeld]:
        """See ShardLeases."""
        return [await self.acquire(shard, owner, ttl_ms) for shard in shards]

    async def renew(self, held: Mapping[int, int], ttl_ms: int) -> list[int]:
        """See ShardLeases."""
        lost = [shard for shard, term in held.items() if self.live_term(shard) != term]
        for shard in held.keys() - set(lost):
            self._leases[shard].ends_at_ms = self._now_ms() + ttl_ms
        return lost

    async def release(self, held: Mapping[int, int]) -> None:
        """See ShardLeases."""
        await self.renew(held, 0)

    async def boundaries(self, shard: int) -> list[tuple[int, int]]:
        """See ShardLeases."""
        return [(1, 0)] if shard in self._terms else []
