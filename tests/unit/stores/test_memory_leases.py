import pytest

from stores.leases import ShardLeases
from stores.memory_leases import MemoryShardLeases
from tests.suites.test_leases import TTL_MS, LeaseHarness, LeaseSuite


class MemoryHarness(LeaseHarness):
    def __init__(self) -> None:
        self._now_ms = 1_000_000
        self.memory = MemoryShardLeases(lambda: self._now_ms)
        self.leases: ShardLeases = self.memory

    async def run_out(self, shard: int) -> None:
        others = {s: t for s in range(8) if (t := self.memory.live_term(s)) and s != shard}
        await self.memory.renew(others, 2 * TTL_MS)
        self._now_ms += TTL_MS


@pytest.fixture
def system() -> MemoryHarness:
    return MemoryHarness()


class TestMemoryLeases(LeaseSuite):
    """Leases in memory pass the shared suite."""
