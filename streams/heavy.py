"""Splits the recipients of heavy records by lane, in steps: a wide record must not hold up the other shards of its worker."""

from __future__ import annotations

import asyncio

from streams.expand import split_lanes
from streams.materialize_core import HEAVY_RECIPIENTS, Decoded

__all__ = ["split_heavy"]

_SPLIT_STEP = 4096  # recipients split by lane in one go, 3 ms; then the other shards get their turn


async def split_heavy(decoded: Decoded) -> dict[int, dict[int, list[int]]]:
    """Recipients by lane of the heavy records of a page, by offset."""
    found: dict[int, dict[int, list[int]]] = {}
    for offset, _, dispatch in decoded:
        users = dispatch["recipients"]
        if len(users) <= HEAVY_RECIPIENTS:
            continue
        by_lane: dict[int, list[int]] = {}
        for at in range(0, len(users), _SPLIT_STEP):
            for lane, part in split_lanes(dispatch, users[at : at + _SPLIT_STEP]).items():
                by_lane.setdefault(lane, []).extend(part)
            await asyncio.sleep(0)
        found[offset] = by_lane
    return found
