"""The board of slots: which workers live and what they hold, and which slots an operator moves (design §5).

It orders nothing by itself: who owns a shard is decided by its lease alone (TAKE-06). Kept in the first mailbox instance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lua import load
from stores.redis_link import RedisLink

__all__ = ["SlotBoard", "WorkerWords"]

_BEAT: Final = load("worker_beat")
_LIVES_MS: Final = 5000  # a worker that was not heard of for so long is not waited for
_ORDER_MS: Final = 60_000  # an order that nobody carried out in that time is void
_CLAIM_MS: Final = 3000


class WorkerWords(NamedTuple):
    """What a worker says of itself: the address of its pages, and the slots it holds (none: a spare)."""

    web: str
    slots: Sequence[int]


class SlotBoard:
    """Reads and writes the board of one system; raises ServerFault when Redis does not answer."""

    def __init__(self, link: RedisLink, app_id: str, slot_count: int) -> None:
        self._link = link
        self._prefix = f"{app_id}:"
        self._slot_count = slot_count

    async def beat(
        self, name: str = "", words: WorkerWords | None = None
    ) -> tuple[Mapping[str, WorkerWords], Mapping[int, str]]:
        """Say that `name` lives; returns who else lives, and the slots that are to be moved, with their new owner.

        Without `words` the worker says goodbye; without `name` nothing is said.
        """
        said = "" if words is None else json.dumps(words._asdict())
        flat, ordered = await self._link.run(
            _BEAT, self._prefix, name, said, _LIVES_MS, self._slot_count
        )
        living = {flat[i].decode(): _words(flat[i + 1]) for i in range(0, len(flat), 2)}
        orders = {slot: target.decode() for slot, target in enumerate(ordered) if target}
        return living, orders

    async def order(self, slot: int, target: str) -> None:
        """Ask the owner of a slot to hand it to `target`; void after a minute."""
        await self._link.command("SET", self._key("slotorder", slot), target, "PX", _ORDER_MS)

    async def fulfilled(self, slot: int) -> None:
        """Take the order back."""
        await self._link.command("DEL", self._key("slotorder", slot))

    async def reserve(self, slot: int, name: str) -> bool:
        """Let one of several workers that want the same slot try; for a few seconds only."""
        key = self._key("slotclaim", slot)
        return await self._link.command("SET", key, name, "NX", "PX", _CLAIM_MS) is not None

    def _key(self, family: str, slot: int) -> str:
        return f"{self._prefix}{family}:{slot}"


def _words(raw: bytes) -> WorkerWords:
    try:
        plain: dict[str, Any] = json.loads(raw)
        return WorkerWords(str(plain["web"]), [int(slot) for slot in plain["slots"]])
    except (ValueError, KeyError, TypeError):
        return WorkerWords("", [])
