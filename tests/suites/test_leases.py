"""The one suite that every implementation of shard leases passes."""

from abc import ABC, abstractmethod

import pytest

from stores.leases import LeaseGrant, LeaseHeld, ShardLeases

__all__ = ["LeaseHarness", "LeaseSuite"]

TTL_MS = 60_000


class LeaseHarness(ABC):
    """Leases of one empty system."""

    leases: ShardLeases

    @abstractmethod
    async def run_out(self, shard: int) -> None:
        """Let a lease reach its TTL."""


async def granted(leases: ShardLeases, shard: int, owner: str) -> int:
    """Acquire; must be granted."""
    grant = await leases.acquire(shard, owner, TTL_MS)
    assert isinstance(grant, LeaseGrant)
    return grant.term


class LeaseSuite:
    """Inherit it in a test module that provides the fixture `system`."""

    @pytest.mark.contract("TAKE-01", "TAKE-06", "ADAPT-01")
    async def test_a_living_lease_is_never_stolen(self, system: LeaseHarness) -> None:
        await granted(system.leases, 3, "a")
        held = await system.leases.acquire(3, "b", TTL_MS)
        assert isinstance(held, LeaseHeld)
        assert held.owner == "a"
        assert 0 < held.ttl_ms <= TTL_MS

    @pytest.mark.contract("TAKE-01", "TAKE-03")
    async def test_a_lease_that_ran_out_goes_to_the_next_owner_with_a_larger_term(
        self, system: LeaseHarness
    ) -> None:
        first = await granted(system.leases, 3, "a")
        await system.run_out(3)
        second = await granted(system.leases, 3, "b")
        assert second > first
        assert await system.leases.renew({3: first}, TTL_MS) == [3]
        assert await system.leases.renew({3: second}, TTL_MS) == []

    async def test_a_restarted_owner_fences_its_former_self(self, system: LeaseHarness) -> None:
        first = await granted(system.leases, 3, "a")
        second = await granted(system.leases, 3, "a")
        assert second > first
        assert await system.leases.renew({3: first}, TTL_MS) == [3]

    async def test_released_leases_are_free_at_once(self, system: LeaseHarness) -> None:
        term = await granted(system.leases, 3, "a")
        await system.leases.release({3: term - 1})  # not ours any more: no effect
        assert isinstance(await system.leases.acquire(3, "b", TTL_MS), LeaseHeld)
        await system.leases.release({3: term})
        assert await granted(system.leases, 3, "b") > term

    async def test_many_shards_are_judged_alone(self, system: LeaseHarness) -> None:
        await granted(system.leases, 2, "b")
        grants = await system.leases.acquire_many([1, 2, 3, 4], "a", TTL_MS)
        assert [type(grant) for grant in grants] == [LeaseGrant, LeaseHeld, LeaseGrant, LeaseGrant]
        terms = {
            s: g.term
            for s, g in zip([1, 2, 3, 4], grants, strict=True)
            if isinstance(g, LeaseGrant)
        }
        await system.run_out(3)
        assert await system.leases.renew(terms | {7: 1}, TTL_MS) == [3, 7]

    @pytest.mark.contract("TAKE-04", "OPEN-11")
    async def test_the_first_grant_opens_epoch_1_at_offset_0(self, system: LeaseHarness) -> None:
        assert await system.leases.boundaries(3) == []
        await granted(system.leases, 3, "a")
        await granted(system.leases, 3, "a")
        assert await system.leases.boundaries(3) == [(1, 0)]
