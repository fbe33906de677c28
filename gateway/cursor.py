"""Signed mailbox cursors, and the one place that judges them (CUR-01..04, CUR-12, SEC-03).

Token, 85 bytes: version u8 = 1 | key_id u8 | tenant be16 | user be8 | device 16 | lane u8 | shard_epoch be2 |
last_applied be8 | HMAC-SHA256 32 over domain || everything before. `shard_epoch` is the newest epoch of the user's shard when
the cursor was signed; `last_applied` is the mailbox_seq up to which the device has applied everything, 0 for nothing yet.
The layout is frozen in tests/vectors/cursor.json (OPEN-07).

On the wire an empty cursor and a zero cursor are different kinds, not different values (CON-07, OPEN-13): ZERO is a first
login and reads from -inf (MBX-53), EMPTY is a rebuild and starts at sync_to_seq (REB-06), TOKEN carries the bytes above. A
zero cursor stays raw 0 after an epoch raise: a token whose last_applied is 0 is treated as ZERO whatever its epoch.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from schemas.constants import LANE_COUNT, LOG_OFFSET_BITS, MAX_EPOCH, MAX_U63
from schemas.errors import ErrorCode, RequestError
from schemas.wire import CursorKind

__all__ = [
    "FIRST_BOUNDARIES",
    "TOKEN_BYTES",
    "Cursor",
    "CursorSigner",
    "EpochBoundaries",
    "Verdict",
    "VerdictKind",
    "judge",
]

_DOMAIN: Final = b"qim.cursor.v1\0"
_VERSION: Final = 1
_BODY = struct.Struct(">BB16sQ16sBHQ")
_MAC_BYTES: Final = 32
TOKEN_BYTES: Final = _BODY.size + _MAC_BYTES
MIN_KEY_BYTES: Final = 32
_KEY_IDS: Final = range(256)


class Cursor(NamedTuple):
    """A device's position. `lane` and `shard_epoch` belong to its identity; the client stores the whole (CUR-12)."""

    tenant: int
    user: int
    device_id: bytes
    lane: int
    shard_epoch: int
    last_applied: int


class CursorSigner:
    """Signs and opens cursor tokens. Several keys may be known so that a key can be replaced; the newest one signs."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys or not all(key_id in _KEY_IDS for key_id in keys):
            raise ValueError("cursor keys need ids in 0..255")
        if any(len(key) < MIN_KEY_BYTES for key in keys.values()):
            raise ValueError(f"a cursor key needs at least {MIN_KEY_BYTES} bytes")
        self._keys = dict(keys)
        self._signing_id = max(keys)

    def sign(self, cursor: Cursor) -> bytes:
        """The token of `cursor`, 85 bytes; the same cursor and key always give the same bytes."""
        body = _BODY.pack(
            _VERSION,
            self._signing_id,
            cursor.tenant.to_bytes(16, "big"),
            cursor.user,
            cursor.device_id,
            cursor.lane,
            cursor.shard_epoch,
            cursor.last_applied,
        )
        return body + hmac.digest(self._keys[self._signing_id], _DOMAIN + body, "sha256")

    def open(self, token: bytes) -> Cursor:
        """The cursor inside a token; raises RequestError(CURSOR_INVALID) for anything not signed by us or out of range."""
        if len(token) != TOKEN_BYTES or token[0] != _VERSION:
            raise _invalid("length or version")
        body, mac = token[: _BODY.size], token[_BODY.size :]
        key = self._keys.get(token[1])
        if key is None or not hmac.compare_digest(hmac.digest(key, _DOMAIN + body, "sha256"), mac):
            raise _invalid("signature")
        _, _, tenant, user, device_id, lane, shard_epoch, last_applied = _BODY.unpack(body)
        # Signed by us does not mean sane: an old bug of ours could have signed it. CUR-04 (1) names the range as well.
        sane = user <= MAX_U63 and lane < LANE_COUNT and 1 <= shard_epoch <= MAX_EPOCH
        if not sane or last_applied > MAX_U63 or last_applied >> LOG_OFFSET_BITS > shard_epoch:
            raise _invalid("range")
        return Cursor(
            int.from_bytes(tenant, "big"), user, device_id, lane, shard_epoch, last_applied
        )


def _invalid(what: str) -> RequestError:
    return RequestError(f"cursor refused: {what}", ErrorCode.CURSOR_INVALID)


EpochBoundaries = Sequence[tuple[int, int]]
"""(shard_epoch, first log offset) of one shard, ascending; at least one."""

FIRST_BOUNDARIES: Final[EpochBoundaries] = ((1, 0),)
"""A shard that has never been taken over: epoch 1 from offset 0."""


class VerdictKind(IntEnum):
    """Outcome of CUR-04 steps 2 to 4; step 1 raises."""

    EXPIRED = 2
    REBASED = 3
    OK = 4


class Verdict(NamedTuple):
    """`start_seq`: where the login starts (0 = -inf); for EXPIRED the position that is too old."""

    kind: VerdictKind
    start_seq: int


def judge(
    kind: CursorKind,
    cursor: Cursor | None,
    *,
    effective_trim: int,
    lane_watermark: int,
    boundaries: EpochBoundaries,
) -> Verdict:
    """Judge an opened cursor in the fixed order of CUR-04: expired, then rebased, then ok.

    Raises RequestError(CURSOR_INVALID) for an epoch that this shard has never had: such a cursor is out of range, and no
    boundary resolves it. A cursor above `lane_watermark` is accepted: this gateway's view may lag behind the one that
    answered the pull, and nothing is owed below it.
    """
    if kind is CursorKind.EMPTY:
        return Verdict(VerdictKind.OK, lane_watermark)
    if kind is CursorKind.ZERO or cursor is None or cursor.last_applied == 0:
        return Verdict(VerdictKind.OK, 0)
    newest = boundaries[-1][0]
    known = {epoch for epoch, _ in boundaries}
    if cursor.shard_epoch > newest or cursor.last_applied >> LOG_OFFSET_BITS not in known:
        raise _invalid("epoch")
    if cursor.last_applied < effective_trim:
        return Verdict(VerdictKind.EXPIRED, cursor.last_applied)
    if cursor.shard_epoch < newest:
        return Verdict(VerdictKind.REBASED, cursor.last_applied)
    return Verdict(VerdictKind.OK, cursor.last_applied)
