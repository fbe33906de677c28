import pytest

from stores.memory_messages import MemoryMessageStore
from stores.messages import MessageStore, ReserveRequest
from tests.suites.test_messages import MessageSuite
from tests.support.messages import TTL_MS, MessageHarness


class MemoryHarness(MessageHarness):
    def __init__(self) -> None:
        self._now_ms = 1_700_000_000_000
        self.memory = MemoryMessageStore(2, self.now_ms)
        self.store: MessageStore = self.memory

    def now_ms(self) -> int:
        return self._now_ms

    async def expiry_ms(self, request: ReserveRequest) -> int | None:
        return self.memory.ends_at_ms(request.tenant, request.sender, request.client_message_id)

    async def history(self, request: ReserveRequest) -> dict[int, bytes]:
        return dict(self.memory.history.get((request.tenant, request.conversation_id), {}))

    async def pass_dedup_ttl(self, request: ReserveRequest) -> None:
        self._now_ms += TTL_MS

    async def end_writer_lease(self, region: int, writer: int) -> None:
        self._now_ms += 60_000


@pytest.fixture
def messages() -> MemoryHarness:
    return MemoryHarness()


class TestMemoryMessages(MessageSuite):
    """The in-memory backend passes the shared suite."""
