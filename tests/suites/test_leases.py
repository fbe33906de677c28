"""The one suite that every implementation of shard leases passes."""

from abc import ABC, abstractmethod

import pytest

from schemas.errors import StoreFault
from stores.leases import LeaseGrant, LeaseHeld, LeaseLost, ShardLeases

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

    @pytest.mark.contract("TAKE-01", "TAKE-04", "CON-39", "OPEN-11")
    async def test_another_owner_raises_the_epoch_the_same_one_does_not(
        self, system: LeaseHarness
    ) -> None:
        leases = system.leases
        first = await leases.acquire(3, "a", TTL_MS)
        assert isinstance(first, LeaseGrant)
        assert first.last_owner == ""
        assert (await leases.raise_epoch(3, first.term, "a", None)).boundaries == [(1, 0)]
        again = await leases.acquire(3, "a", TTL_MS)
        assert isinstance(again, LeaseGrant)
        assert again.last_owner == "a"
        await system.run_out(3)
        taken = await leases.acquire(3, "b", TTL_MS)
        assert isinstance(taken, LeaseGrant)
        assert taken.last_owner == "a"
        assert await leases.boundaries(3) == [
            (1, 0)
        ]  # a crash here leaves the raise to the next taker
        await system.run_out(3)
        retaken = await leases.acquire(3, "c", TTL_MS)
        assert isinstance(retaken, LeaseGrant)
        assert retaken.last_owner == "a"
        raised = await leases.raise_epoch(3, retaken.term, "c", 70)
        assert raised.boundaries == [(1, 0), (2, 70)]
        with pytest.raises(LeaseLost):
            await leases.raise_epoch(3, taken.term, "b", 90)
        assert await leases.boundaries(3) == [(1, 0), (2, 70)]

    @pytest.mark.contract("TAKE-04")
    async def test_an_epoch_never_goes_back_and_never_gets_a_second_offset(
        self, system: LeaseHarness
    ) -> None:
        leases = system.leases
        term = await granted(leases, 3, "a")
        # What Redis lost comes back from the log's copy.
        term, found = await leases.raise_epoch(3, term, "a", None, [(1, 0), (2, 50)])
        assert found == [(1, 0), (2, 50)]
        term, found = await leases.raise_epoch(3, term, "a", 60, [(1, 0)])
        assert found == [(1, 0), (2, 50), (3, 60)]
        for offset, known in ((59, []), (70, [(2, 51)])):
            with pytest.raises(StoreFault):
                await leases.raise_epoch(3, term, "a", offset, known)
        assert await leases.boundaries(3) == [(1, 0), (2, 50), (3, 60)]

    async def test_an_epoch_without_a_record_leaves_no_boundary(self, system: LeaseHarness) -> None:
        term = await granted(system.leases, 3, "a")
        term, found = await system.leases.raise_epoch(3, term, "b", 0)
        assert found == [(2, 0)]
        _, found = await system.leases.raise_epoch(3, term, "b", None, [(2, 0)])
        assert found == [(2, 0)]

    @pytest.mark.contract("TAKE-03", "TAKE-04")
    async def test_a_completed_taking_has_a_term_of_its_own(self, system: LeaseHarness) -> None:
        """Redis may lose the raise and keep the grant before it: that owner must find itself fenced."""
        leases = system.leases
        term = await granted(leases, 3, "a")
        completed, _ = await leases.raise_epoch(3, term, "a", None)
        assert completed > term
        with pytest.raises(LeaseLost):
            await leases.raise_epoch(3, term, "a", 70)
        assert await leases.renew({3: term}, TTL_MS) == [3]
        assert await leases.renew({3: completed}, TTL_MS) == []
        assert await granted(leases, 3, "a") > completed

    @pytest.mark.contract("TAKE-06", "ADAPT-01")
    async def test_a_second_process_of_one_name_replaces_the_first_and_not_the_other_way(
        self, system: LeaseHarness
    ) -> None:
        leases = system.leases
        await leases.acquire(3, "a", TTL_MS, instance="old")
        newer = await leases.acquire(3, "a", TTL_MS, instance="new", replace=True)
        assert isinstance(newer, LeaseGrant)
        held = await leases.acquire(3, "a", TTL_MS, instance="old", replace=False)
        assert isinstance(held, LeaseHeld)
        assert (held.owner, held.instance) == ("a", "new")
        again = await leases.acquire(3, "a", TTL_MS, instance="new", replace=False)
        assert isinstance(again, LeaseGrant)

    async def test_owners_tell_who_holds_who_held_and_where(self, system: LeaseHarness) -> None:
        leases = system.leases
        grant = await leases.acquire(3, "a", TTL_MS, instance="i", web="host:1")
        assert isinstance(grant, LeaseGrant)
        never, now = await leases.owners([2, 3])
        assert (never.owner, never.last_owner, never.ttl_ms) == ("", "", 0)
        assert (now.owner, now.instance, now.web, now.term) == ("a", "i", "host:1", grant.term)
        assert 0 < now.ttl_ms <= TTL_MS
        await leases.release({3: grant.term})
        (after,) = await leases.owners([3])
        assert (after.owner, after.last_owner, after.last_web, after.released) == (
            "",
            "a",
            "host:1",
            True,
        )
