r"""Chunk manifest of a dispatch: which lanes have which chunks (DP-02, DP-07, DP-08).

v2: magic `DPM\x02`, then only the non-empty lanes: lane byte, LEB128 count, LEB128 chunk ids; one lane with one chunk
takes 7 bytes. Non-shortest LEB128, lanes out of order and trailing bytes are refused. v1 (`DPM\x01`, all 64 lanes of 5
bytes: presence, u16 count, u16 first chunk) is only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from schemas.constants import LANE_COUNT
from schemas.errors import RecordError

__all__ = ["decode_manifest", "encode_manifest", "single_chunk_manifest"]

_MAGIC_V1: Final = b"DPM\x01"
_MAGIC_V2: Final = b"DPM\x02"
_V1_LANE_BYTES: Final = 5


def _leb128(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_leb128(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise RecordError("manifest: LEB128 does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise RecordError("manifest: LEB128 is not the shortest form")
            return value, at
        shift += 7


def encode_manifest(chunks_by_lane: Mapping[int, Sequence[int]]) -> bytes:
    """Lane -> ascending chunk ids, as v2 bytes; empty lanes must not be named."""
    out = [_MAGIC_V2]
    for lane, chunks in sorted(chunks_by_lane.items()):
        if not 0 <= lane < LANE_COUNT or not chunks:
            raise RecordError(f"manifest: lane {lane} with {len(chunks)} chunks")
        out.append(bytes((lane,)) + _leb128(len(chunks)) + b"".join(map(_leb128, chunks)))
    return b"".join(out)


def single_chunk_manifest(lanes: Sequence[int]) -> bytes:
    """The manifest of a light dispatch: each named lane has chunk 0 only; `lanes` ascending, without repeats."""
    return _MAGIC_V2 + b"".join(bytes((lane, 1, 0)) for lane in lanes)


def decode_manifest(data: bytes) -> dict[int, tuple[int, ...]]:
    """v1 or v2 bytes -> lane -> chunk ids; raises RecordError on anything else."""
    if data[:4] == _MAGIC_V1:
        return _decode_v1(data)
    if data[:4] != _MAGIC_V2:
        raise RecordError("manifest: unknown magic")
    out: dict[int, tuple[int, ...]] = {}
    at, previous = 4, -1
    while at < len(data):
        lane = data[at]
        if not previous < lane < LANE_COUNT:
            raise RecordError(f"manifest: lane {lane} out of order")
        count, at = _read_leb128(data, at + 1)
        if count == 0:
            raise RecordError("manifest: empty lane is named")
        chunks = []
        for _ in range(count):
            chunk, at = _read_leb128(data, at)
            chunks.append(chunk)
        out[lane] = tuple(chunks)
        previous = lane
    return out


def _decode_v1(data: bytes) -> dict[int, tuple[int, ...]]:
    if len(data) != 4 + LANE_COUNT * _V1_LANE_BYTES:
        raise RecordError(f"manifest v1 of {len(data)} bytes")
    out: dict[int, tuple[int, ...]] = {}
    for lane in range(LANE_COUNT):
        raw = data[4 + lane * _V1_LANE_BYTES : 4 + (lane + 1) * _V1_LANE_BYTES]
        count, first = int.from_bytes(raw[1:3], "big"), int.from_bytes(raw[3:5], "big")
        if raw[0] not in (0, 1) or (raw[0] == 1) != (count > 0):
            raise RecordError(f"manifest v1: lane {lane} is damaged")
        if count:
            out[lane] = tuple(range(first, first + count))
    return out
