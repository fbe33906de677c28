"""Digests that say whether two requests, or two dispatches, are the same one.

Frozen in `tests/vectors/identifiers.json` (OPEN-04, OPEN-05; docs/decisions/0002-identifiers-and-hashes.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from blake3 import blake3

from schemas.errors import RecordError

__all__ = ["identity_digest", "payload_digest"]

_IDENTITY_DOMAIN: Final = b"qim.commit-identity.v1\0"
_PAYLOAD_DOMAIN: Final = b"qim.dispatch-payload.v1\0"
_IDENTITY_MAGIC: Final = b"QIMD"  # COM-13
_LENGTHS: Final = tuple(n.to_bytes(4, "big") for n in range(512))


def _framed(parts: Iterable[bytes]) -> bytes:
    """Length-prefix each part, so that no two different part lists share one encoding."""
    out: list[bytes] = []
    for part in parts:
        size = len(part)
        out.append(_LENGTHS[size] if size < len(_LENGTHS) else size.to_bytes(4, "big"))
        out.append(part)
    return b"".join(out)


def _packed(users: Sequence[int]) -> bytes:
    """Each user as 8 bytes big-endian; 100,000 of them in a millisecond."""
    return struct.pack(f">{len(users)}Q", *users) if users else b""


def identity_digest(
    device: bytes,
    conversation_id: bytes,
    message_type: int,
    custom_type: str,
    body: bytes,
    mentions: Sequence[int],
    reply_to: int,
) -> bytes:
    """36 bytes `QIMD` + BLAKE3 of what makes two requests the same message (COM-05, COM-13).

    Tenant, sender and client_message_id are the key it is stored under and so are not repeated. `reply_to` is the
    answered message_id or 0.
    """
    parts = (
        device,
        conversation_id,
        message_type.to_bytes(4, "big"),
        custom_type.encode(),
        body,
        _packed(mentions),
        reply_to.to_bytes(16, "big"),
    )
    return _IDENTITY_MAGIC + blake3(_IDENTITY_DOMAIN + _framed(parts)).digest()


# Fixed fields, then how long each part behind them is.
_FIXED: Final = struct.Struct(">16s16s16s16sQ16sQ16s16s?QIQ16sQIIII")


def payload_digest(record: Any) -> bytes:
    """32 bytes over every field of a GroupDispatch that decides what is delivered (DISP-06).

    `record` is a `schemas.records.GroupDispatch`. The digest covers field values, not the Avro bytes, so that a
    replay written by a newer schema version is still the same dispatch. Not covered: the observed log offset, which is
    not in the record, and fencing_epoch, which says who wrote it (DISP-10). Raises RecordError on a negative number.
    """
    version = record["membership_version"]
    custom_type, template = record["custom_type"].encode(), record["event_template"]
    recipients, mentions = record["recipients"], record["mentions"]
    try:
        fixed = _FIXED.pack(
            record["tenant_id"],
            record["dispatch_id"],
            record["message_id"],
            record["conversation_id"],
            record["conversation_seq"],
            record["last_activity_id"],
            record["sender_id"],
            record["client_message_id"],
            record["origin_device_id"],
            version is not None,
            version or 0,
            record["target_mailbox_shard"],
            record["committed_at_ms"],
            record["trace_id"],
            record["message_type"],
            len(custom_type),
            len(recipients),
            len(mentions),
            len(template),
        )
        users = _packed(recipients) + _packed(mentions)
    except struct.error as error:
        raise RecordError(f"dispatch: {error}") from error
    return blake3(_PAYLOAD_DOMAIN + fixed + custom_type + users + template).digest()
