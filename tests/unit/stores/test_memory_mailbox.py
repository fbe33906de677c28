import copy

import pytest

from schemas.constants import SECONDS_PER_DAY
from stores.leases import ShardLeases
from stores.mailbox import MailboxStore
from stores.memory_leases import MemoryShardLeases
from stores.memory_mailbox import Bucket, MemoryMailboxStore
from tests.suites.mailbox import MailboxSuite
from tests.support.mailboxes import TENANT, Damage, MailboxHarness

_DAY = 20_000


class MemoryHarness(MailboxHarness):
    def __init__(self) -> None:
        self._now_s = _DAY * SECONDS_PER_DAY + 50_000.0
        self._now_ms = 1_000_000
        leases = MemoryShardLeases(lambda: self._now_ms)
        self.memory = MemoryMailboxStore(leases, lambda: self._now_s)
        self.store: MailboxStore = self.memory
        self.leases: ShardLeases = leases

    def day(self, number: int) -> int:
        return _DAY + number

    async def age(self, days: int) -> None:
        self._now_s += days * SECONDS_PER_DAY

    async def damage(self, kind: Damage, user: int, day: int) -> None:
        mailbox = self.memory.mailboxes[TENANT, user, 1]
        match kind:
            case Damage.META_LOST:
                mailbox.version, mailbox.proofs = None, {}
            case Damage.FORMAT_3:
                mailbox.version = 3
            case Damage.PROOF_WRONG:
                mailbox.proofs[day] -= 1
            case Damage.BUCKET_LOST:
                del mailbox.buckets[day]
            case Damage.DAY_INDEX_LOST:
                mailbox.index = {}
            case Damage.IDENTITY_LOST:
                mailbox.identity = {}
            case Damage.EXPIRY_MOVED:
                mailbox.buckets[day].expiry_s += 60

    async def plant(self, user: int, day: int, log_offset: int, entry: bytes) -> None:
        buckets = self.memory.mailboxes[TENANT, user, 1].buckets
        bucket = buckets.setdefault(day, Bucket((day + 8) * SECONDS_PER_DAY))
        bucket.members[entry] = log_offset

    async def forget_identity(self, user: int, seq: int) -> None:
        del self.memory.mailboxes[TENANT, user, 1].identity[seq]

    async def snapshot(self) -> object:
        for mailbox in self.memory.mailboxes.values():
            mailbox.expire(self._now_s)  # no write: a server does it by itself, whenever it likes
        return copy.deepcopy((self.memory.mailboxes, self.memory.watermarks))

    async def end_lease(self, shard: int) -> None:
        self._now_ms += 60_000
        assert await self.leases.renew({shard: 1}, 1) == [shard]


@pytest.fixture
def harness() -> MemoryHarness:
    return MemoryHarness()


class TestMemoryMailbox(MailboxSuite):
    """The in-memory backend passes the shared suite."""
