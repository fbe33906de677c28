"""The worker's shard leases: taken before anything is read, renewed while it runs (TAKE-01, design §5).

The lease term is the fencing token of every mailbox write. A worker that is started again takes its own leases at
once, with a larger term that fences what is left of its former self; the lease of another owner is waited for. A process
that lost its lease to a newer one of the same name does not take it back: `instance` tells them apart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from schemas.background import Background
from schemas.constants import SHARD_LEASE_RENEW_MS, SHARD_LEASE_TTL_MS
from schemas.errors import ServerFault
from stores.leases import Completed, LeaseGrant, LeaseHeld, ShardLeases

__all__ = ["LeaseKeeper"]

_log = logging.getLogger(__name__)
_POLL_S = 0.25


class LeaseKeeper:
    """Holds the leases of one worker: `owner` is its name, `instance` this process, `web` where its pages are.

    `on_lost` is called for each shard whose lease is found gone.
    """

    def __init__(
        self,
        leases: ShardLeases,
        owner: str,
        *,
        instance: str = "",
        web: str = "",
        on_lost: Callable[[int], None] | None = None,
    ) -> None:
        self._leases = leases
        self.owner = owner
        self.instance = instance
        self.web = web
        self.on_lost = on_lost
        self.waiting: dict[int, str] = {}  # shards that are leased to somebody else, and to whom
        self._held: dict[int, int] = {}
        self.renewing = Background("shard-leases", self._renew)

    def start(self) -> None:
        """Start renewing on the running loop."""
        self.renewing.start()

    async def stop(self) -> None:
        """Stop renewing and release everything, so that a successor need not wait for the TTL."""
        await self.renewing.stop()
        await self.release(list(self._held))

    async def release(self, shards: Sequence[int]) -> None:
        """Give leases back; those that are not held any more are left alone."""
        held = {shard: self._held.pop(shard) for shard in shards if shard in self._held}
        try:
            await self._leases.release(held)
        except ServerFault as error:
            _log.warning("leases end by their TTL: %s", error.detail)

    async def claim(self, shards: Sequence[int], *, replace: bool = False) -> Mapping[int, str]:
        """Take all of these or none; returns who holds what was not free ({} when all are ours now).

        `replace` also takes what a former process of the same name still holds.
        """
        grants = await self._leases.acquire_many(
            shards,
            self.owner,
            SHARD_LEASE_TTL_MS,
            instance=self.instance,
            web=self.web,
            replace=replace,
        )
        taken = zip(shards, grants, strict=True)
        refused = {}
        for shard, grant in taken:
            if isinstance(grant, LeaseHeld):
                refused[shard] = grant.owner
            else:
                self._held[shard] = grant.term
        if refused:
            await self.release([shard for shard in shards if shard not in refused])
        return refused

    async def take(self, shard: int) -> LeaseGrant:
        """A fresh lease; waits while another owner's lease lives (never a theft)."""
        replace = self.instance == ""
        try:
            while True:
                grant = await self._leases.acquire(
                    shard,
                    self.owner,
                    SHARD_LEASE_TTL_MS,
                    instance=self.instance,
                    web=self.web,
                    replace=replace,
                )
                if isinstance(grant, LeaseGrant):
                    self._held[shard] = grant.term
                    return grant
                if self.waiting.get(shard) != grant.owner:
                    _log.error(
                        "shard %d is leased to %s for %d ms", shard, grant.owner, grant.ttl_ms
                    )
                self.waiting[shard] = grant.owner
                await asyncio.sleep(min(_POLL_S, max(grant.ttl_ms, 1) / 1000))
        finally:
            self.waiting.pop(shard, None)

    async def complete(
        self, shard: int, term: int, first_offset: int | None, known: Sequence[tuple[int, int]]
    ) -> Completed:
        """Store the boundary of a new epoch, if any, and that the shard is ours; see ShardLeases.raise_epoch."""
        completed = await self._leases.raise_epoch(
            shard, term, self.owner, first_offset, known, web=self.web
        )
        self._held[shard] = completed.term
        return completed

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(SHARD_LEASE_RENEW_MS / 1000)
            if not self._held:
                continue
            held = dict(self._held)
            try:
                lost = await self._leases.renew(held, SHARD_LEASE_TTL_MS)
            except ServerFault as error:
                _log.error("leases are not renewed: %s", error.detail)
                continue
            for shard in lost:
                if self._held.get(shard) == held[shard]:
                    # Its next write would be refused anyway; an idle shard would not notice.
                    del self._held[shard]
                    _log.error("lease of shard %d is lost", shard)
                    if self.on_lost is not None:
                        self.on_lost(shard)
