r"""client_message_ids of one device: deterministic, never used twice, never wrapping (SDK-04).

    cmid = BLAKE3("qim.client-message-id.v1\0" || device_id || ordinal be8)[0:16]

The ordinal only grows. This generator lives in memory: whoever restarts with the same device id must say at which
ordinal to go on, or take a fresh device id; the database that reserves ordinals comes with the persistent SDK.
"""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from schemas.errors import IdentifierError
from schemas.identifiers import ClientMessageId, DeviceId

__all__ = ["MAX_ORDINAL", "ClientMessageIds", "client_message_id"]

_DOMAIN: Final = b"qim.client-message-id.v1\0"
MAX_ORDINAL: Final = (1 << 64) - 1


def client_message_id(device_id: bytes, ordinal: int) -> ClientMessageId:
    """Return the id of the device's message number `ordinal` (u64).

    Raises IdentifierError for a device id that is zero or not 16 bytes, an ordinal outside u64, and for the one hash in
    2^128 that is zero and therefore no id (SEQ-18).
    """
    if not 0 <= ordinal <= MAX_ORDINAL:
        raise IdentifierError(
            f"message ordinal {ordinal} is outside u64; this device id is used up"
        )
    key = _DOMAIN + DeviceId(device_id) + ordinal.to_bytes(8, "big")
    return ClientMessageId(blake3(key).digest(16))


class ClientMessageIds:
    """Hands out the ids of one device in order, each once."""

    __slots__ = ("_prefix", "next_ordinal")

    def __init__(self, device_id: bytes, first_ordinal: int = 0) -> None:
        client_message_id(
            device_id, first_ordinal
        )  # refuses bad input now, not at the first message
        self._prefix = _DOMAIN + device_id
        self.next_ordinal = first_ordinal

    def take(self) -> bytes:
        """Return the next id; raises IdentifierError when the ordinals are used up, it never starts over."""
        ordinal = self.next_ordinal
        if ordinal > MAX_ORDINAL:
            raise IdentifierError("message ordinals are used up; take a new device id")
        self.next_ordinal = ordinal + 1
        return bytes(blake3(self._prefix + ordinal.to_bytes(8, "big")).digest(16))
