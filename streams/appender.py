"""One mailbox call for all shards of a worker: what piled up while the last call was in flight goes in the next.

Each shard's part of a call is judged alone by append_page.lua, so shards stay independent although they share the
round trip (design §2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from stores.mailbox import AppendOutcome, MailboxStore, ShardAppend
from stores.paging import PagedStage

__all__ = ["MailboxAppender"]

_SHARDS_PER_PAGE = 64
_ENTRIES_PER_CALL = 4000
"""About 60 ms of Redis, in which it answers nobody else. Smaller: more calls than pages under load."""
_SETTLE_S = 0.002
"""One fetch feeds all shards, and their plans take a few hundred microseconds each: without this wait the first shard's
page would go alone and every request behind it twice."""


class _Waiting(NamedTuple):
    append: ShardAppend
    outcome: asyncio.Future[AppendOutcome]


class MailboxAppender:
    """Combines the appends of a worker's shards, one stage a mailbox instance."""

    def __init__(self, store: MailboxStore, instances: int) -> None:
        self._store = store
        self._stages = [
            PagedStage(
                "mailbox.append",
                self._append,
                max_records=_SHARDS_PER_PAGE,
                settle_s=_SETTLE_S,
                records_in=lambda waiting: len(waiting.append.entries),
            )
            for _ in range(instances)
        ]

    def start(self) -> None:
        """Start the stages on the running loop."""
        for stage in self._stages:
            stage.start()

    async def stop(self) -> None:
        """Stop the stages; an append in flight has an unknown outcome and is replayed after the next start."""
        for stage in self._stages:
            await stage.stop()

    async def append(self, append: ShardAppend) -> AppendOutcome:
        """One shard's page; raises what the store raised for the whole call (ServerFault and below)."""
        outcome: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        self._stages[append.shard % len(self._stages)].put(_Waiting(append, outcome))
        return await outcome

    async def _append(self, page: Sequence[_Waiting]) -> None:
        call: list[_Waiting] = []
        entries = 0
        for waiting in page:
            if call and entries + len(waiting.append.entries) > _ENTRIES_PER_CALL:
                await self._call(call)
                call, entries = [], 0
            call.append(waiting)
            entries += len(waiting.append.entries)
        await self._call(call)

    async def _call(self, page: Sequence[_Waiting]) -> None:
        try:
            outcomes = await self._store.append_page([waiting.append for waiting in page])
        except Exception as error:  # noqa: BLE001  # every shard judges it, the stage goes on
            for waiting in page:
                if not waiting.outcome.done():
                    waiting.outcome.set_exception(error)
            return
        for waiting, outcome in zip(page, outcomes, strict=True):
            if not waiting.outcome.done():
                waiting.outcome.set_result(outcome)
