"""ShardLeases in memory, for tests of everything above the store; `now_ms` is its clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from schemas.errors import ErrorCode, StoreFault
from stores.leases import Boundaries, Completed, LeaseGrant, LeaseHeld, LeaseLost, ShardRecord

__all__ = ["MemoryShardLeases"]


@dataclass(slots=True)
class _Lease:
    owner: str
    term: int
    ends_at_ms: int
    instance: str = ""
    web: str = ""


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryShardLeases:
    """The same rules as the scripts shard_*.lua."""

    def __init__(self, now_ms: Callable[[], int] = _wall_clock_ms) -> None:
        self._now_ms = now_ms
        self._leases: dict[int, _Lease] = {}
        self._terms: dict[int, int] = {}
        self._epochs: dict[int, dict[int, int]] = {}
        self._last: dict[int, tuple[str, str, bool]] = {}  # owner, web, released

    def live_term(self, shard: int) -> int | None:
        """The term of the lease that lives now, None when there is none."""
        lease = self._live(shard)
        return None if lease is None else lease.term

    def _live(self, shard: int) -> _Lease | None:
        lease = self._leases.get(shard)
        return lease if lease is not None and lease.ends_at_ms > self._now_ms() else None

    async def acquire(
        self,
        shard: int,
        owner: str,
        ttl_ms: int,
        *,
        instance: str = "",
        web: str = "",
        replace: bool = True,
    ) -> LeaseGrant | LeaseHeld:
        """See ShardLeases."""
        now_ms = self._now_ms()
        lease = self._live(shard)
        if lease is not None and (
            lease.owner != owner or not (replace or lease.instance == instance)
        ):
            return LeaseHeld(lease.owner, lease.ends_at_ms - now_ms, lease.instance)
        term = max(self._terms.get(shard, 0) + 1, now_ms)
        self._terms[shard] = term
        self._leases[shard] = _Lease(owner, term, now_ms + ttl_ms, instance, web)
        self._epochs.setdefault(shard, {1: 0})
        last_owner = self._last.get(shard, ("", "", False))[0]
        if last_owner in {"", owner}:
            self._last[shard] = (owner, web, False)
        return LeaseGrant(term, last_owner)

    async def acquire_many(
        self,
        shards: Sequence[int],
        owner: str,
        ttl_ms: int,
        *,
        instance: str = "",
        web: str = "",
        replace: bool = True,
    ) -> list[LeaseGrant | LeaseHeld]:
        """See ShardLeases."""
        return [
            await self.acquire(s, owner, ttl_ms, instance=instance, web=web, replace=replace)
            for s in shards
        ]

    async def renew(self, held: Mapping[int, int], ttl_ms: int) -> list[int]:
        """See ShardLeases."""
        lost = [shard for shard, term in held.items() if self.live_term(shard) != term]
        for shard in held.keys() - set(lost):
            self._leases[shard].ends_at_ms = self._now_ms() + ttl_ms
            if not ttl_ms and shard in self._last:
                self._last[shard] = (*self._last[shard][:2], True)
        return lost

    async def release(self, held: Mapping[int, int]) -> None:
        """See ShardLeases."""
        await self.renew(held, 0)

    async def raise_epoch(
        self,
        shard: int,
        term: int,
        owner: str,
        first_offset: int | None,
        known: Sequence[tuple[int, int]] = (),
        *,
        web: str = "",
    ) -> Completed:
        """See ShardLeases."""
        if self.live_term(shard) != term:
            raise LeaseLost(f"shard {shard}: lease term {self.live_term(shard)}")
        epochs = dict(self._epochs.get(shard, {}))
        if known and epochs == {1: 0} and known[0][0] != 1:
            epochs = {}
        for epoch, offset in known:
            if epochs.setdefault(epoch, offset) != offset:
                raise StoreFault(
                    f"epoch {epoch} of shard {shard} has two offsets", ErrorCode.INTERNAL
                )
        if first_offset is not None:
            newest = max(epochs)
            if first_offset < epochs[newest]:
                detail = f"the log of shard {shard} ends before its last boundary"
                raise StoreFault(detail, ErrorCode.INTERNAL)
            epochs = {**(epochs if first_offset else {}), newest + 1: first_offset}
        self._epochs[shard] = epochs
        self._last[shard] = (owner, web, False)
        renewed = max(term + 1, self._now_ms())
        self._terms[shard] = renewed
        self._leases[shard].term = renewed
        return Completed(renewed, sorted(epochs.items()))

    async def owners(self, shards: Sequence[int]) -> list[ShardRecord]:
        """See ShardLeases."""
        found = []
        for shard in shards:
            lease = self._live(shard) or _Lease("", 0, 0)
            ttl_ms = max(0, lease.ends_at_ms - self._now_ms())
            now = (lease.owner, lease.instance, lease.web, lease.term, ttl_ms)
            found.append(ShardRecord(*now, *self._last.get(shard, ("", "", False))))
        return found

    async def boundaries(self, shard: int) -> Boundaries:
        """See ShardLeases."""
        return sorted(self._epochs.get(shard, {}).items())
