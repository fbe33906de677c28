"""Split a page over Redis instances and put the answers back in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from schemas.errors import QimError

__all__ = ["by_instance"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


async def by_instance(
    items: Sequence[Item],
    instance_of: Callable[[Item], int],
    run: Callable[[int, Sequence[Item]], Awaitable[Sequence[Answer]]],
) -> list[Answer | QimError]:
    """Call `run(instance, its items)` once per instance, concurrently; answers in the order of `items`.

    Where a call raises a QimError, that error is the answer of each of its items, so that an instance that does not
    answer fails nothing on the others.
    """
    groups: dict[int, list[int]] = {}
    for at, item in enumerate(items):
        groups.setdefault(instance_of(item), []).append(at)

    async def ask(instance: int, places: list[int]) -> Sequence[Answer | QimError]:
        try:
            return await run(instance, [items[at] for at in places])
        except QimError as error:
            return [error] * len(places)

    answered = await asyncio.gather(*(ask(i, places) for i, places in groups.items()))
    out: dict[int, Answer | QimError] = {}
    for places, answers in zip(groups.values(), answered, strict=True):
        out |= zip(places, answers, strict=True)
    return [out[at] for at in range(len(items))]
