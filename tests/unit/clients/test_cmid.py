from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from clients.cmid import MAX_ORDINAL, ClientMessageIds, client_message_id
from schemas.errors import IdentifierError

DEVICE = bytes(range(16))


@pytest.mark.contract("SDK-04")
def test_id_is_the_domain_separated_hash_of_full_device_id_and_ordinal() -> None:
    expected = blake3(b"qim.client-message-id.v1\0" + DEVICE + bytes(7) + b"\x05").digest(16)
    assert client_message_id(DEVICE, 5) == expected


@pytest.mark.contract("SDK-04")
def test_generator_hands_out_each_ordinal_once_in_order() -> None:
    ids = ClientMessageIds(DEVICE, first_ordinal=3)
    taken = [ids.take() for _ in range(100)]
    assert taken == [client_message_id(DEVICE, n) for n in range(3, 103)]
    assert len(set(taken)) == 100


@pytest.mark.contract("SDK-04")
def test_exhausted_generator_refuses_and_never_wraps() -> None:
    ids = ClientMessageIds(DEVICE, first_ordinal=MAX_ORDINAL)
    ids.take()
    for _ in range(2):
        with pytest.raises(IdentifierError, match="used up"):
            ids.take()
    assert ids.next_ordinal == MAX_ORDINAL + 1


@pytest.mark.parametrize("device", [b"", bytes(16), b"d" * 15, b"d" * 17])
@pytest.mark.contract("SEQ-18")
def test_bad_device_id_is_refused_before_the_first_message(device: bytes) -> None:
    with pytest.raises(IdentifierError):
        ClientMessageIds(device)


@pytest.mark.parametrize("ordinal", [-1, MAX_ORDINAL + 1])
def test_ordinal_outside_u64_is_refused(ordinal: int) -> None:
    with pytest.raises(IdentifierError):
        client_message_id(DEVICE, ordinal)


@given(
    st.tuples(st.binary(min_size=16, max_size=16).filter(any), st.integers(0, MAX_ORDINAL)),
    st.tuples(st.binary(min_size=16, max_size=16).filter(any), st.integers(0, MAX_ORDINAL)),
)
def test_two_devices_or_ordinals_never_share_an_id(
    one: tuple[bytes, int], other: tuple[bytes, int]
) -> None:
    assert (client_message_id(*one) == client_message_id(*other)) is (one == other)
