"""LeaseKeeper: leases are taken, kept alive, lost and given back; never stolen."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from schemas.constants import SHARD_LEASE_RENEW_MS, SHARD_LEASE_TTL_MS
from schemas.errors import StoreUnknownOutcome
from stores.leases import LeaseHeld
from stores.memory_leases import MemoryShardLeases
from streams.leases import LeaseKeeper
from tests.support.virtual_time import VirtualClock, run

Script = Callable[[MemoryShardLeases, LeaseKeeper], Awaitable[None]]


class Leases(MemoryShardLeases):
    """Leases that do not answer for the next `silent` calls."""

    silent = 0

    async def renew(self, held: Mapping[int, int], ttl_ms: int) -> list[int]:
        """See ShardLeases."""
        if self.silent:
            self.silent -= 1
            raise StoreUnknownOutcome("no answer")
        return await super().renew(held, ttl_ms)


def play(script: Callable[[Leases, LeaseKeeper], Awaitable[None]]) -> None:
    async def main() -> None:
        leases = Leases(VirtualClock())
        keeper = LeaseKeeper(leases, "worker-0")
        keeper.start()
        await script(leases, keeper)
        await keeper.stop()

    run(main())


@pytest.mark.contract("TAKE-03")
def test_a_lease_lives_as_long_as_its_keeper_runs() -> None:
    async def script(leases: Leases, keeper: LeaseKeeper) -> None:
        term = (await keeper.take(3)).term
        await asyncio.sleep(10 * SHARD_LEASE_TTL_MS / 1000)
        assert leases.live_term(3) == term
        assert isinstance(await leases.acquire(3, "worker-1", 1000), LeaseHeld)

    play(script)


@pytest.mark.contract("TAKE-03")
def test_two_renewals_without_an_answer_do_not_lose_it() -> None:
    assert 3 * SHARD_LEASE_RENEW_MS < SHARD_LEASE_TTL_MS

    async def script(leases: Leases, keeper: LeaseKeeper) -> None:
        term = (await keeper.take(3)).term
        leases.silent = 2
        await asyncio.sleep(SHARD_LEASE_TTL_MS / 1000 + 1)
        assert leases.live_term(3) == term

    play(script)


@pytest.mark.contract("TAKE-01")
def test_another_owners_lease_is_waited_for_until_it_ends_by_itself() -> None:
    async def script(leases: Leases, keeper: LeaseKeeper) -> None:
        await leases.acquire(3, "worker-1", 15_000)
        begin = asyncio.get_running_loop().time()
        await keeper.take(3)
        waited = asyncio.get_running_loop().time() - begin
        assert 15 <= waited < 15.5

    play(script)


def test_stop_gives_back_what_it_holds() -> None:
    async def script(leases: Leases, keeper: LeaseKeeper) -> None:
        await keeper.take(3)
        await keeper.take(4)
        await keeper.stop()
        assert (leases.live_term(3), leases.live_term(4)) == (None, None)

    play(script)


def test_stop_leaves_the_lease_of_a_successor_alone() -> None:
    async def script(leases: Leases, keeper: LeaseKeeper) -> None:
        await keeper.take(3)
        leases._leases.clear()
        await leases.acquire(3, "worker-1", 60_000)
        term = leases.live_term(3)
        await asyncio.sleep(SHARD_LEASE_RENEW_MS / 1000 + 1)
        await keeper.stop()
        assert leases.live_term(3) == term

    play(script)


def test_stop_without_an_answer_lets_them_end_by_their_ttl() -> None:
    async def script(leases: Leases, keeper: LeaseKeeper) -> None:
        term = (await keeper.take(3)).term
        leases.silent = 1
        await keeper.stop()
        assert leases.live_term(3) == term
        await asyncio.sleep(SHARD_LEASE_TTL_MS / 1000)
        assert leases.live_term(3) is None

    play(script)


def test_a_shard_taken_again_is_kept_under_its_new_term() -> None:
    async def script(leases: Leases, keeper: LeaseKeeper) -> None:
        first = (await keeper.take(3)).term
        second = (await keeper.take(3)).term
        assert second > first
        await asyncio.sleep(2 * SHARD_LEASE_TTL_MS / 1000)
        assert leases.live_term(3) == second

    play(script)
