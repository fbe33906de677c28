"""The body of a generated message: which run and which message it is, so that what a client saw can be judged.

    nonce 16 bytes (fresh each run: a store that still holds an older run cannot be counted) | index u32 | padding

The body is opaque to every server, like any other message body (GW-06).
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["MIN_BODY_BYTES", "body_of", "index_in"]

_HEAD: Final = struct.Struct(">16sI")
MIN_BODY_BYTES: Final = _HEAD.size


def body_of(nonce: bytes, index: int, size_bytes: int) -> bytes:
    """Return the body of message `index` padded to `size_bytes`.

    Raises ValueError if the size leaves no room for nonce and index.
    """
    if size_bytes < MIN_BODY_BYTES or len(nonce) != 16:  # noqa: PLR2004 - the nonce's own length
        raise ValueError(f"body of {size_bytes} bytes with a nonce of {len(nonce)}")
    return _HEAD.pack(nonce, index).ljust(size_bytes, b".")


def index_in(nonce: bytes, body: bytes) -> int | None:
    """Return the message's number, or None where the body belongs to no message of this run."""
    if len(body) < MIN_BODY_BYTES:
        return None
    run, index = _HEAD.unpack_from(body)
    return int(index) if run == nonce else None
