"""Packed watermarks of one shard: 64 lanes of (W, W_floor, W_recomputed), layout v2 (WM-20 to WM-23).

One lane is 19 bytes: a presence byte (1 present, 0 absent with all zero) and three 48-bit big-endian log offsets. 64
equal lanes are written as one 19-byte record, anything else as 1216 bytes; no other length is legal. Offsets, never
composites, are compared (SEQ-12); an absent lane has covered nothing and is below offset 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from schemas.constants import LANE_COUNT, MAX_LOG_OFFSET, W_UNIFORM_BYTES, W_WIDE_BYTES
from schemas.errors import RecordError

__all__ = [
    "ABSENT",
    "NOTHING",
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
    """Log offsets of one lane; -1 stands for absent. `w_floor` <= `w` always holds for a stored mark."""

    w: int
    w_floor: int
    w_recomputed: int


ABSENT: Final = LaneMark(NOTHING, NOTHING, NOTHING)
_ABSENT_BYTES: Final = bytes(W_UNIFORM_BYTES)


def _pack_lane(mark: LaneMark) -> bytes:
    if mark == ABSENT:
        return _ABSENT_BYTES
    if (
        not 0 <= mark.w_floor <= mark.w <= MAX_LOG_OFFSET
        or not 0 <= mark.w_recomputed <= MAX_LOG_OFFSET
    ):
        raise RecordError(f"watermark out of range: {mark}")
    return (
        b"\x01"
        + mark.w.to_bytes(6, "big")
        + mark.w_floor.to_bytes(6, "big")
        + mark.w_recomputed.to_bytes(6, "big")
    )


def _unpack_lane(raw: bytes) -> LaneMark:
    if raw[0] == 0:
        if any(raw):
            raise RecordError("watermark: absent lane with offsets")
        return ABSENT
    if raw[0] != 1:
        raise RecordError(f"watermark: presence byte {raw[0]}")
    w, floor, recomputed = (int.from_bytes(raw[at : at + 6], "big") for at in (1, 7, 13))
    if floor > w:
        raise RecordError("watermark: floor above W")
    return LaneMark(w, floor, recomputed)


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
