"""Who is connected here: (tenant, user) -> devices, and the session epochs this gateway has seen.

Several devices of one user are online at once; one device is connected once (GW-10, CON-23). `session_epoch` is minted by the
Auth/Session service and only compared here (SEQ-23): an older one than seen is refused, an equal or newer one replaces the
connection that holds the device.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from gateway.tokens import Identity
from schemas.errors import ErrorCode, RequestError

__all__ = ["Client", "ConnectionRegistry"]

_Device = tuple[int, int, bytes]


class Client(Protocol):
    """What others may do with an authenticated connection."""

    @property
    def identity(self) -> Identity:
        """The device and session that hold it."""

    @property
    def sync_to_seq(self) -> int:
        """What lies at or below is pulled by the client, never pushed (CUR-06)."""

    def push(self, entries: Sequence[bytes]) -> None:
        """Show entries, in order, without moving a cursor."""

    def kick(self) -> None:
        """End it: the device logged in again."""


class ConnectionRegistry:
    """Connected devices by user; at most one connection a device."""

    def __init__(self, max_session_epochs: int) -> None:
        self._users: dict[tuple[int, int], dict[bytes, Client]] = {}
        self._epochs: OrderedDict[_Device, int] = OrderedDict()
        self._max_session_epochs = max_session_epochs
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Client]:
        for devices in self._users.values():
            yield from devices.values()

    def check_session(self, identity: Identity) -> None:
        """Raise RequestError(SESSION_SUPERSEDED) when a newer session of this device was seen."""
        seen = self._epochs.get((identity.tenant, identity.user, identity.device_id))
        if seen is not None and identity.session_epoch < seen:
            raise RequestError("a newer session exists", ErrorCode.SESSION_SUPERSEDED)

    def add(self, client: Client) -> Client | None:
        """Register `client`; returns the connection it replaces, which the caller must kick."""
        identity = client.identity
        device: _Device = (identity.tenant, identity.user, identity.device_id)
        self._epochs[device] = max(identity.session_epoch, self._epochs.get(device, 0))
        self._epochs.move_to_end(device)
        if len(self._epochs) > self._max_session_epochs:
            self._epochs.popitem(last=False)
        devices = self._users.setdefault((identity.tenant, identity.user), {})
        replaced = devices.get(identity.device_id)
        devices[identity.device_id] = client
        if replaced is None:
            self._count += 1
        return replaced

    def remove(self, client: Client) -> None:
        """Forget `client`; does nothing when its device is held by a newer connection already."""
        identity = client.identity
        key = (identity.tenant, identity.user)
        devices = self._users.get(key)
        if devices is None or devices.get(identity.device_id) is not client:
            return
        del devices[identity.device_id]
        self._count -= 1
        if not devices:
            del self._users[key]

    def devices_of(self, tenant: int, user: int) -> Collection[Client]:
        """The connections of a user's devices, possibly none."""
        devices = self._users.get((tenant, user))
        return devices.values() if devices else ()
