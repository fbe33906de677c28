"""Packed watermarks of one shard: 64 lanes of (W, W_floor, W_recomputed), layout v2 (WM-20 to WM-23).

One lane is 19 bytes: a presence byte and three 48-bit big-endian log offsets, zero where absent. 64 equal lanes are
written as one 19-byte record, anything else as 1216 bytes; no other length is legal. Offsets, never composites, are
compared (SEQ-12); an absent lane has covered nothing and is below offset 0.

Presence: 0 nothing, 1 all three, and for a lane that a takeover found behind its floor (WM-07, TAKE-01 T4) 2 the floor
only, 3 W and floor, 6 floor and W_recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from schemas.constants import LANE_COUNT, MAX_LOG_OFFSET, W_UNIFORM_BYTES, W_WIDE_BYTES
from schemas.errors import RecordError

__all__ = [
    "ABSENT",
    "NOTHING",
    "PRESENCE_BYTES",
    "W_LAYOUT",
    "LaneMark",
    "pack_uniform",
    "pack_w",
    "unpack_w",
    "w_of",
]

W_LAYOUT: Final = "packed-v2"
NOTHING: Final = -1  # "no offset is covered yet"


class LaneMark(NamedTuple):
    """Log offsets of one lane; -1 stands for absent.

    `w_floor` is what was covered once; with W or W_recomputed below it the lane is not served: it is replayed (W) or
    refused (W_recomputed).
    """

    w: int
    w_floor: int
    w_recomputed: int

    @property
    def is_served(self) -> bool:
        """Whether a client may be told this W (WM-07)."""
        return self.w >= self.w_floor <= self.w_recomputed


ABSENT: Final = LaneMark(NOTHING, NOTHING, NOTHING)
_LANES_REMEMBERED: Final = 1024  # 64 lanes hold few different marks, and those of the page before
_ABSENT_BYTES: Final = bytes(W_UNIFORM_BYTES)
_ALL: Final = 1
# presence byte by (W, W_floor, W_recomputed) is there
_PRESENCE: Final = {
    (False, False, False): 0,
    (True, True, True): _ALL,
    (False, True, False): 2,
    (True, True, False): 3,
    (False, True, True): 6,
}
_FIELDS: Final = {presence: fields for fields, presence in _PRESENCE.items()}
PRESENCE_BYTES: Final = frozenset(_FIELDS)


@lru_cache(maxsize=_LANES_REMEMBERED)
def _pack_lane(mark: LaneMark) -> bytes:
    if mark == ABSENT:
        return _ABSENT_BYTES
    there = (mark.w != NOTHING, mark.w_floor != NOTHING, mark.w_recomputed != NOTHING)
    if there not in _PRESENCE or not all(NOTHING <= offset <= MAX_LOG_OFFSET for offset in mark):
        raise RecordError(f"watermark out of range: {mark}")
    return bytes((_PRESENCE[there],)) + b"".join(
        max(offset, 0).to_bytes(6, "big") for offset in mark
    )


@lru_cache(maxsize=_LANES_REMEMBERED)
def _unpack_lane(raw: bytes) -> LaneMark:
    there = _FIELDS.get(raw[0])
    if there is None:
        raise RecordError(f"watermark: presence byte {raw[0]}")
    offsets = [int.from_bytes(raw[at : at + 6], "big") for at in (1, 7, 13)]
    if raw[0] == _ALL:
        return LaneMark(*offsets)
    if any(offset for offset, is_there in zip(offsets, there, strict=True) if not is_there):
        raise RecordError("watermark: absent field with an offset")
    return LaneMark(*(o if here else NOTHING for o, here in zip(offsets, there, strict=True)))


def pack_w(lanes: Sequence[LaneMark]) -> bytes:
    """64 lanes -> 19 bytes when all are equal, else 1216 bytes (WM-21)."""
    if len(lanes) != LANE_COUNT:
        raise RecordError(f"watermark: {len(lanes)} lanes")
    first = lanes[0]
    if all(lane == first for lane in lanes):
        return _pack_lane(first)
    return b"".join(_pack_lane(lane) for lane in lanes)


def pack_uniform(offset: int) -> bytes:
    """All 64 lanes at `offset` (>= 0): the common case of a page without unfinished lanes."""
    return _pack_lane(LaneMark(offset, offset, offset))


def unpack_w(blob: bytes) -> list[LaneMark]:
    """Always 64 lanes, the 19-byte form expanded (WM-23); raises RecordError on any damage (fail closed)."""
    if len(blob) == W_UNIFORM_BYTES:
        return [_unpack_lane(blob)] * LANE_COUNT
    if len(blob) != W_WIDE_BYTES:
        raise RecordError(f"watermark: {len(blob)} bytes")
    return [
        _unpack_lane(blob[at : at + W_UNIFORM_BYTES])
        for at in range(0, W_WIDE_BYTES, W_UNIFORM_BYTES)
    ]


def w_of(blob: bytes, lane: int) -> int:
    """W of one lane as log offset, -1 when absent; both lengths are understood (WM-23), others raise RecordError."""
    if len(blob) not in {W_UNIFORM_BYTES, W_WIDE_BYTES}:
        raise RecordError(f"watermark: {len(blob)} bytes")
    at = 0 if len(blob) == W_UNIFORM_BYTES else lane * W_UNIFORM_BYTES
    return _unpack_lane(blob[at : at + W_UNIFORM_BYTES]).w
