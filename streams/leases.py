"""The worker's shard leases: taken before anything is read, renewed while it runs (TAKE-01, design §5).

The lease term is the fencing token of every mailbox write. A worker that is started again takes its own leases at
once, with a larger term that fences what is left of its former self; the lease of another owner is waited for.
"""

from __future__ import annotations

import asyncio
import logging

from schemas.constants import SHARD_LEASE_RENEW_MS, SHARD_LEASE_TTL_MS
from schemas.errors import ServerFault
from stores.leases import LeaseGrant, ShardLeases

__all__ = ["LeaseKeeper"]

_log = logging.getLogger(__name__)
_POLL_S = 0.25


class LeaseKeeper:
    """Holds the leases of one worker."""

    def __init__(self, leases: ShardLeases, owner: str) -> None:
        self._leases = leases
        self._owner = owner
        self._held: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start renewing on the running loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._renew(), name="shard-leases")

    async def stop(self) -> None:
        """Stop renewing and release everything, so that a successor need not wait for the TTL."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        held, self._held = self._held, {}
        try:
            await self._leases.release(held)
        except ServerFault as error:
            _log.warning("leases end by their TTL: %s", error.detail)

    async def take(self, shard: int) -> int:
        """The term of a fresh lease; waits while another owner's lease lives (never a theft)."""
        while True:
            grant = await self._leases.acquire(shard, self._owner, SHARD_LEASE_TTL_MS)
            if isinstance(grant, LeaseGrant):
                self._held[shard] = grant.term
                return grant.term
            _log.warning("shard %d is leased to %s for %d ms", shard, grant.owner, grant.ttl_ms)
            await asyncio.sleep(min(_POLL_S, max(grant.ttl_ms, 1) / 1000))

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
                    del self._held[
                        shard
                    ]  # its next write is refused; the shard then takes a new lease
                    _log.error("lease of shard %d is lost", shard)
