"""Shard leases, shard epochs and the recorded layout: who owns a shard, and under which term (TAKE-01, TAKE-03, TAKE-04).

The lease of a shard lives in the Redis instance that holds its mailboxes, so that append_page.lua can check the term in the
same script as the write. The term fences; the epoch only identifies (design §4).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

from lua import load
from schemas.constants import MAX_EPOCH
from schemas.errors import ErrorCode, StartRefused, StoreFault
from stores.redis_link import RedisLink

__all__ = [
    "Boundaries",
    "Completed",
    "LeaseGrant",
    "LeaseHeld",
    "LeaseLost",
    "RedisShardLeases",
    "ShardLeases",
    "ShardRecord",
    "claim_layout",
]

_LOG: Final = logging.getLogger(__name__)
_ACQUIRE: Final = load("shard_acquire")
_RENEW: Final = load("shard_renew")
_RAISE: Final = load("shard_raise")
_OWNERS: Final = load("shard_owners")
_LAYOUT: Final = load("claim_layout")


Boundaries = list[tuple[int, int]]
"""(epoch, first log offset) of one shard, ascending."""


class LeaseGrant(NamedTuple):
    """The lease is ours under `term`, which is larger than every earlier term of the shard.

    `last_owner` is who completed taking it last, "" for nobody: where that is somebody else, the epoch has to be raised.
    """

    term: int
    last_owner: str = ""


class LeaseHeld(NamedTuple):
    """Another owner's lease, or one of another process with our name, lives for `ttl_ms` more."""

    owner: str
    ttl_ms: int
    instance: str = ""


class Completed(NamedTuple):
    """A shard is taken: from now on its lease has this `term`; `boundaries` are all that there are."""

    term: int
    boundaries: Boundaries


class LeaseLost(StoreFault):
    """The lease is not ours any more; what it was needed for did not happen."""


class ShardRecord(NamedTuple):
    """What the registry knows of a shard: who holds it now ("" for nobody, for `ttl_ms` more), and who had it last."""

    owner: str
    instance: str
    web: str
    term: int
    ttl_ms: int
    last_owner: str
    last_web: str
    released: bool


class ShardLeases(Protocol):
    """Leases of mailbox shards; raises StoreFault or StoreUnknownOutcome when the backend does not answer."""

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
        """Grant when no lease lives or the live one is of the same process (`instance`).

        `replace`: also when it is of another process with the name `owner`, whose former self the new term fences.
        """

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
        """The same for several shards, each alone, in one call an instance."""

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
        """Complete taking a shard under the lease `term`: a new epoch from `first_offset` on, the owner, a new term.

        None raises nothing. `known` are boundaries from elsewhere, restored where they are missing.
        Raises LeaseLost, and StoreFault when an epoch would go back or get a second offset.
        """

    async def owners(self, shards: Sequence[int]) -> list[ShardRecord]:
        """Who holds each shard, and who had it last."""

    async def renew(self, held: Mapping[int, int], ttl_ms: int) -> list[int]:
        """Extend the leases (shard -> term); returns the shards whose lease is gone or has another term."""

    async def release(self, held: Mapping[int, int]) -> None:
        """End the leases that are still held under these terms."""

    async def boundaries(self, shard: int) -> Boundaries:
        """(epoch, first log offset) ascending; epoch 1 begins at offset 0 once the shard was granted (OPEN-11)."""


class RedisShardLeases:
    """The Redis backend; `links` are the mailbox instances in their configured order."""

    __slots__ = ("_links", "_prefix")

    def __init__(self, links: Sequence[RedisLink], app_id: str) -> None:
        self._links = tuple(links)
        self._prefix = f"{app_id}:"

    def _by_instance(self, shards: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for shard in shards:
            groups.setdefault(shard % len(self._links), []).append(shard)
        return groups

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
        grants = await self.acquire_many(
            [shard], owner, ttl_ms, instance=instance, web=web, replace=replace
        )
        return grants[0]

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
        grants: dict[int, LeaseGrant | LeaseHeld] = {}
        who = (self._prefix, owner, instance, web, int(replace), ttl_ms)
        for at, group in self._by_instance(shards).items():
            reply = await self._links[at].run(_ACQUIRE, *who, *group)
            grants.update((shard, _grant(item)) for shard, item in zip(group, reply, strict=True))
        return [grants[shard] for shard in shards]

    async def renew(self, held: Mapping[int, int], ttl_ms: int) -> list[int]:
        """See ShardLeases."""
        lost = []
        for instance, group in self._by_instance(list(held)).items():
            pairs = [value for shard in group for value in (shard, held[shard])]
            reply = await self._links[instance].run(_RENEW, self._prefix, ttl_ms, *pairs)
            lost += [shard for shard, kept in zip(group, reply, strict=True) if not kept]
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
        reply = await self._links[shard % len(self._links)].run(
            _RAISE,
            self._prefix,
            shard,
            term,
            owner,
            web,
            "" if first_offset is None else first_offset,
            MAX_EPOCH,
            *(number for boundary in known for number in boundary),
        )
        if reply[0] == 0:
            raise LeaseLost(f"shard {shard}: {reply[1].decode()}")
        if reply[0] != 1:
            _LOG.error("epoch refused: %s", reply[1].decode(errors="replace"))
            raise StoreFault(reply[1].decode(errors="replace"), ErrorCode.INTERNAL)
        return Completed(reply[1], sorted(zip(reply[2::2], reply[3::2], strict=True)))

    async def owners(self, shards: Sequence[int]) -> list[ShardRecord]:
        """See ShardLeases."""
        found: dict[int, ShardRecord] = {}
        for at, group in self._by_instance(shards).items():
            reply = await self._links[at].run(_OWNERS, self._prefix, *group)
            for shard, item in zip(group, reply, strict=True):
                owner, instance, web, term, last_owner, last_web = (
                    item[at].decode() for at in (0, 1, 2, 3, 5, 6)
                )
                found[shard] = ShardRecord(
                    owner, instance, web, int(term), item[4], last_owner, last_web, item[7] == 1
                )
        return [found[shard] for shard in shards]

    async def boundaries(self, shard: int) -> Boundaries:
        """See ShardLeases."""
        link = self._links[shard % len(self._links)]
        flat: list[bytes] = await link.command("HGETALL", f"{self._prefix}shardepochs:{shard}")
        try:
            found = sorted((int(flat[i]), int(flat[i + 1])) for i in range(0, len(flat), 2))
            if any(low[1] > high[1] for low, high in pairwise(found)):
                raise ValueError("offsets go back")
        except ValueError as error:
            _LOG.error("epochs of shard %d are damaged: %s", shard, error)
            raise StoreFault(f"epochs of shard {shard} are damaged") from error
        return found


def _grant(item: Any) -> LeaseGrant | LeaseHeld:
    if item[0] == 1:
        return LeaseGrant(item[1], item[2].decode())
    if item[0] == 0:
        return LeaseHeld(item[1].decode(), item[2], item[3].decode())
    detail = item[1].decode(errors="replace")
    _LOG.error("lease refused: %s", detail)
    raise StoreFault(detail)


async def claim_layout(links: Sequence[RedisLink], app_id: str, role: str, parts: int) -> None:
    """Record, or compare with the record, that `parts` shards or buckets are spread over exactly these instances.

    Run at start. Raises StartRefused when the instances were used with another number, order or role: keys would be
    looked for where they are not (REDIS-09).
    """
    for at, link in enumerate(links):
        mine = f"{role} {parts} parts, instance {at} of {len(links)}"
        recorded = (await link.run(_LAYOUT, mine, keys=(f"{app_id}:layout:{role}",))).decode()
        if recorded != mine:
            raise StartRefused(
                f"{link.name} was set up as '{recorded}', now configured as '{mine}': restore the"
                " former list of instances and counts, or use a new app_id"
            )
