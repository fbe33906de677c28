"""The slots of a worker while it runs: claimed, given away, lost, taken over (design §5, TAKE-01, TAKE-06).

A worker begins with the slots of its configuration, those that are free; without any it is a spare. It never takes a slot
whose leases live: it waits until they ran out by themselves or were released. Every change of its slots is one new assignment
of its consumer: pages in hand are finished, tables of new partitions are recovered, and each shard starts at W + 1.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from schemas.background import Background
from schemas.errors import ServerFault
from stores.leases import ShardLeases, ShardRecord
from stores.slots import SlotBoard, WorkerWords
from streams.leases import LeaseKeeper
from streams.slot_plan import SlotPlanner, SlotState

__all__ = ["SlotKeeper"]

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.5
Drained = Callable[[], Awaitable[None]]
_HISTORY: Final = 32


class SlotKeeper:
    """Keeps the slots of one worker; `own(slots, drained)` makes them its assignment.

    It calls `drained` when the pages in hand of all former shards are finished, and returns when the shards run.
    """

    def __init__(
        self,
        board: SlotBoard,
        leases: ShardLeases,
        keeper: LeaseKeeper,
        *,
        configured: Collection[int],
        slot_count: int,
        shard_count: int,
        own: Callable[[frozenset[int], Drained], Awaitable[None]],
        on_defect: Callable[[BaseException], Awaitable[None]],
    ) -> None:
        self._on_defect = on_defect
        self._board = board
        self._leases = leases
        self._keeper = keeper
        self._configured = frozenset(configured)
        self._slot_count = slot_count
        self._shards = range(shard_count)
        self._own = own
        self._planner = SlotPlanner(keeper.owner, keeper.instance, self._configured)
        self._began_s = 0.0
        self._looking = Background("slots", self._run)
        self.owned: frozenset[int] = frozenset()
        self.lost: dict[int, str] = {}  # slots that others have taken from us, and who
        self.history: deque[str] = deque(maxlen=_HISTORY)

    def _shards_of(self, slot: int) -> list[int]:
        return [shard for shard in self._shards if shard % self._slot_count == slot]

    # --- start and stop ------------------------------------------------------------------------------------------
    async def first_slots(self) -> frozenset[int]:
        """Claim the configured slots that nobody else holds; the first thing that a worker does with its consumer."""
        self._began_s = asyncio.get_running_loop().time()
        self._keeper.start()
        for slot in sorted(self._configured):
            refused = await self._keeper.claim(self._shards_of(slot), replace=True)
            if refused:
                self.lost[slot] = min(refused.values())
                self._note(logging.ERROR, f"slot {slot} is held by {self.lost[slot]}")
            else:
                self.owned |= {slot}
        await self._say()
        return self.owned

    def start(self) -> None:
        """Look after the slots from now on."""
        self._looking.start()

    async def stop(self) -> None:
        """Stop looking after them, say goodbye, and give every lease back."""
        await self._looking.stop()
        try:
            await self._board.beat(self._keeper.owner)
        except ServerFault as error:
            _log.warning("no goodbye to the board: %s", error.detail)
        await self._keeper.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                await self.look()
            except ServerFault as error:
                _log.error("slots are not looked after: %s", error.detail)
            except Exception as error:
                await self._on_defect(error)
                raise

    # --- one round -----------------------------------------------------------------------------------------------
    async def look(self) -> None:
        """Compare what is with what should be, and do the next thing about it."""
        living, orders = await self._say()
        records = await self._leases.owners(self._shards)
        slots = {slot: self._state(slot, records) for slot in range(self._slot_count)}
        now_s = asyncio.get_running_loop().time()
        decision = self._planner.decide(
            slots,
            self.owned,
            {name: words.slots for name, words in living.items()},
            orders,
            now_s,
            now_s - self._began_s,
        )
        if decision.lost:
            self.lost |= decision.lost
            self._note(logging.CRITICAL, f"slots taken over by others: {dict(decision.lost)}")
            await self._change(self.owned - decision.lost.keys())
        elif decision.give:
            self._note(logging.WARNING, f"slots are handed over: {dict(decision.give)}")
            await self._change(self.owned - decision.give.keys())
        elif decision.claims:
            await self._claim(decision.claims, orders)

    async def _claim(self, slots: Sequence[int], orders: dict[int, str]) -> None:
        name, taken = self._keeper.owner, []
        for slot in slots:
            if await self._board.reserve(slot, name) and not await self._keeper.claim(
                self._shards_of(slot)
            ):
                self._note(logging.WARNING, f"slot {slot} is taken over")
                self.lost.pop(slot, None)
                taken.append(slot)
        if not taken:
            return
        await self._change(self.owned.union(taken))
        for slot in taken:
            if orders.get(slot) == name:
                await self._board.fulfilled(slot)

    async def _change(self, slots: frozenset[int]) -> None:
        gone = [shard for slot in self.owned - slots for shard in self._shards_of(slot)]
        self.owned = slots

        async def drained() -> None:
            await self._keeper.release(gone)  # whoever takes them need not wait for the rest of us

        await self._own(slots, drained)
        await self._say()

    async def _say(self) -> tuple[dict[str, WorkerWords], dict[int, str]]:
        words = WorkerWords(self._keeper.web, sorted(self.owned))
        living, orders = await self._board.beat(self._keeper.owner, words)
        return dict(living), dict(orders)

    def _state(self, slot: int, records: list[ShardRecord]) -> SlotState:
        mine = [records[shard] for shard in self._shards_of(slot)]
        holders = frozenset((r.owner, r.instance) for r in mine if r.owner)
        urgent = any(r.last_owner and not r.released for r in mine)
        return SlotState(holders, urgent)

    def _note(self, level: int, text: str) -> None:
        self.history.append(text)
        if level >= logging.ERROR:
            _log.error("slots: %s", text)
        elif level >= logging.WARNING:
            _log.warning("slots: %s", text)
        else:
            _log.info("slots: %s", text)

    @property
    def report(self) -> dict[str, object]:
        """What /stats shows of the slots."""
        return {
            "owned": sorted(self.owned),
            "configured": sorted(self._configured),
            "lost": {str(slot): owner for slot, owner in sorted(self.lost.items())},
            "history": list(self.history),
        }
