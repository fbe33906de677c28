"""Avro bytes of what is written for every message, packed by hand.

`Codec.encode` walks its schema for every field; on the hottest paths that is the largest single cost. These functions
write the same bytes two to four times faster. tests/unit/schemas/test_packing.py holds each of them equal to its codec,
which stays the definition, and the only reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from schemas.errors import RecordError

__all__ = [
    "ABSENT",
    "PRESENT",
    "avro_long",
    "pack_longs",
    "pack_optional",
    "pack_progress",
    "pack_push",
    "pack_push_head",
]

ABSENT: Final = b"\x00"  # of a union [null, x]: null
PRESENT: Final = b"\x02"  # of a union [null, x]: x follows
_VERSION: Final = b"\x01"
_PROGRESS_VERSION: Final = b"\x02"
_END: Final = b"\x00"  # of an Avro array
_ONE: Final = tuple(bytes((n,)) for n in range(256))
_BYTE_LIMIT: Final = 0x80
_LIMIT: Final = 1 << 63


# What is above the lowest bits of an offset or a time comes back with every record of a moment.
@lru_cache(maxsize=1 << 14)
def _base128(value: int) -> bytes:
    if value < _BYTE_LIMIT:
        return _ONE[value]
    return _ONE[value & 0x7F | 0x80] + _base128(value >> 7)


def avro_long(value: int) -> bytes:
    """A non-negative Avro int or long (zigzag, base 128); raises RecordError below 0 or above 63 bits."""
    if not 0 <= value < _LIMIT:
        raise RecordError(f"{value} is no unsigned 63-bit number")
    value <<= 1
    if value < _BYTE_LIMIT:
        return _ONE[value]
    return _ONE[value & 0x7F | 0x80] + _base128(value >> 7)


def pack_longs(values: Sequence[int]) -> bytes:
    """An Avro array of longs, as one block."""
    if not values:
        return _END
    return b"".join((avro_long(len(values)), *map(avro_long, values), _END))


def pack_optional(fixed: bytes | None) -> bytes:
    """An Avro union of null and a fixed type."""
    return ABSENT if fixed is None else PRESENT + fixed


def pack_push_head(
    tenant_id: bytes,
    shard: int,
    mailbox_seq: int,
    origin_device_id: bytes,
    sender: int,
    common: bytes,
) -> bytes:
    """A PushBatch up to its recipients: the same for every partition of one dispatch."""
    return b"".join(
        (
            _VERSION,
            tenant_id,
            avro_long(shard),
            avro_long(mailbox_seq),
            origin_device_id,
            avro_long(sender),
            avro_long(len(common)),
            common,
        )
    )


def pack_push(head: bytes, recipients: Sequence[tuple[int, Iterable[bytes]]]) -> bytes:
    """A PushBatch for recipients (user, heads of its entries), of which each has at least one entry."""
    out = [head, avro_long(len(recipients))]
    for user, heads in recipients:
        listed = [avro_long(len(entry)) + entry for entry in heads]
        out += (avro_long(user), avro_long(len(listed)), *listed, _END)
    out.append(_END)
    return b"".join(out)


def pack_progress(
    payload_digest: bytes,
    canonical_log_offset: int,
    max_observed_offset: int,
    last_seen_ms: int,
    completed_at_ms: int,
    manifest: bytes,
    expected: int,
    done: int,
    unfinished_lanes: Sequence[int],
) -> bytes:
    """A DispatchProgress row; `payload_digest` has 32 bytes."""
    return b"".join(
        (
            _PROGRESS_VERSION,
            payload_digest,
            avro_long(canonical_log_offset),
            avro_long(max_observed_offset),
            avro_long(last_seen_ms),
            avro_long(completed_at_ms),
            avro_long(len(manifest)),
            manifest,
            avro_long(expected),
            avro_long(done),
            pack_longs(unfinished_lanes),
        )
    )
