"""Hold every shard of an application while it is being rebuilt: nobody else writes, and nobody is pushed aside.

A live lease of a worker is a refusal, never a theft (TAKE-01). The leases of a rebuild that was killed are waited for: they
end by themselves within their TTL.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.constants import SHARD_LEASE_RENEW_MS, SHARD_LEASE_TTL_MS
from schemas.errors import ServerFault, StartRefused
from stores.leases import LeaseGrant, LeaseHeld, ShardLeases

__all__ = ["HeldShards", "hold_shards"]

_OWNER = "qimctl-"
_POLL_S = 0.5
_WAIT_S = SHARD_LEASE_TTL_MS / 1000 + 2


class HeldShards:
    """The lease terms by shard, and whether they still hold."""

    def __init__(self, terms: dict[int, int]) -> None:
        self.terms = terms
        self.lost: list[int] = []

    def check(self) -> None:
        """Raise ServerFault once a lease is gone: whatever is written after that may meet another writer."""
        if self.lost:
            raise ServerFault(f"the leases of shards {self.lost} were lost: run the same again")


async def _acquire(leases: ShardLeases, shards: list[int], owner: str) -> dict[int, int]:
    terms: dict[int, int] = {}
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        wanted = [shard for shard in shards if shard not in terms]
        grants = await leases.acquire_many(wanted, owner, SHARD_LEASE_TTL_MS)
        held: dict[int, LeaseHeld] = {}
        for shard, grant in zip(wanted, grants, strict=True):
            if isinstance(grant, LeaseGrant):
                terms[shard] = grant.term
            else:
                held[shard] = grant
        if not held:
            return terms
        others = {shard: h for shard, h in held.items() if not h.owner.startswith(_OWNER)}
        if others or time.monotonic() > deadline_s:
            await leases.release(terms)
            owners = ", ".join(
                f"{shard} to {h.owner} for {h.ttl_ms / 1000:.0f} s" for shard, h in held.items()
            )
            raise StartRefused(f"shards are leased: {owners}; stop the workers first")
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def hold_shards(leases: ShardLeases, count: int) -> AsyncIterator[HeldShards]:
    """Take the leases of shards 0..count-1, renew them, give them back; raises StartRefused when one lives elsewhere."""
    owner = f"{_OWNER}{os.getpid()}-{secrets.token_hex(4)}"
    held = HeldShards(await _acquire(leases, list(range(count)), owner))

    async def renew() -> None:
        while True:
            await asyncio.sleep(SHARD_LEASE_RENEW_MS / 1000)
            try:
                held.lost += await leases.renew(held.terms, SHARD_LEASE_TTL_MS)
            except ServerFault:
                continue  # the next write tells whether it was too long

    task = asyncio.create_task(renew(), name="rebuild-leases")
    try:
        yield held
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await leases.release(held.terms)
