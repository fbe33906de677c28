from collections.abc import Sequence

import pytest

from gateway.connections import ConnectionRegistry
from gateway.tokens import Identity
from schemas.errors import ErrorCode, RequestError
from tests.support.gateway import ALICE, BOB


class Device:
    """A connection that only remembers."""

    def __init__(self, user: int, device: int = 1, epoch: int = 1, sync_to_seq: int = 0) -> None:
        self.identity = Identity(0, user, device.to_bytes(16, "big"), epoch)
        self.sync_to_seq = sync_to_seq
        self.kicked = False
        self.pushed: list[bytes] = []

    def push(self, entries: Sequence[bytes]) -> None:
        self.pushed += entries

    def kick(self) -> None:
        self.kicked = True


@pytest.fixture
def registry() -> ConnectionRegistry:
    return ConnectionRegistry(max_session_epochs=3)


def test_several_devices_of_one_user_are_online_at_once(registry: ConnectionRegistry) -> None:
    phone, laptop, other = Device(ALICE, 1), Device(ALICE, 2), Device(BOB, 1)
    assert [registry.add(device) for device in (phone, laptop, other)] == [None, None, None]
    assert list(registry.devices_of(0, ALICE)) == [phone, laptop]
    assert list(registry.devices_of(1, ALICE)) == []
    assert (len(registry), set(registry)) == (3, {phone, laptop, other})


@pytest.mark.contract("GW-10", "CON-23")
def test_only_the_same_device_of_the_same_user_is_replaced(registry: ConnectionRegistry) -> None:
    first, again = Device(ALICE, 1), Device(ALICE, 1)
    registry.add(first)
    registry.add(Device(BOB, 1))
    registry.add(Device(ALICE, 2))
    assert registry.add(again) is first
    assert len(registry) == 3
    registry.remove(first)  # its socket closes later: the newer connection stays
    assert again in registry.devices_of(0, ALICE)
    registry.remove(again)
    registry.remove(again)
    assert len(registry) == 2


def test_the_last_device_takes_its_user_along(registry: ConnectionRegistry) -> None:
    device = Device(ALICE)
    registry.add(device)
    registry.remove(device)
    assert list(registry.devices_of(0, ALICE)) == []
    assert len(registry) == 0


@pytest.mark.contract("SEQ-23")
def test_an_older_session_is_refused_also_after_the_newer_has_left(
    registry: ConnectionRegistry,
) -> None:
    device = Device(ALICE, 1, epoch=5)
    registry.check_session(device.identity)
    registry.add(device)
    registry.remove(device)
    registry.check_session(device.identity)
    registry.check_session(device.identity._replace(session_epoch=6))
    registry.check_session(device.identity._replace(device_id=b"x" * 16, session_epoch=1))
    with pytest.raises(RequestError) as caught:
        registry.check_session(device.identity._replace(session_epoch=4))
    assert caught.value.code is ErrorCode.SESSION_SUPERSEDED


def test_remembered_sessions_are_bounded(registry: ConnectionRegistry) -> None:
    for user in range(1, 6):
        registry.add(Device(user, 1, epoch=9))
    registry.check_session(Identity(0, 1, (1).to_bytes(16, "big"), 1))  # forgotten
    with pytest.raises(RequestError):
        registry.check_session(Identity(0, 5, (1).to_bytes(16, "big"), 1))
