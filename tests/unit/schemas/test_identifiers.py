"""Ranges and lengths of the identifier types, and the formulas that the contract spells out."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from schemas import identifiers as ids
from schemas.constants import MAX_LOG_OFFSET, MAX_U63, MAX_U128
from schemas.errors import ErrorCode, IdentifierError, is_retryable

RANGES = [
    (ids.TenantId, 0, MAX_U128),
    (ids.UserId, 1, MAX_U63),
    (ids.ConversationSeq, 1, MAX_U63),
    (ids.LogOffset, 0, MAX_LOG_OFFSET),
    (ids.ShardEpoch, 1, 0x7FFF),
    (ids.ShardId, 0, 65535),
    (ids.LaneId, 0, 63),
    (ids.SessionEpoch, 0, MAX_U63),
    (ids.MessageId, 0, MAX_U128),
    (ids.MailboxSeq, 0, MAX_U63),
]
NON_ZERO_BYTES = [ids.ConversationId, ids.ClientMessageId, ids.DeviceId]

users = st.integers(1, MAX_U63)
tenants = st.integers(0, MAX_U128)


@pytest.mark.contract("SEQ-10", "ADAPT-03", "SEQ-05")
@pytest.mark.parametrize(("kind", "low", "high"), RANGES, ids=lambda v: getattr(v, "__name__", v))
def test_numbers_have_closed_ranges(kind: type[int], low: int, high: int) -> None:
    assert kind(low) == low
    assert kind(high) == high
    for outside in (low - 1, high + 1, -1 << 70, 1 << 200):
        with pytest.raises(IdentifierError):
            kind(outside)


@pytest.mark.contract("SEQ-10")
@pytest.mark.parametrize("kind", [k for k, _, high in RANGES if high == MAX_U63])
def test_bit_63_is_refused(kind: type[int]) -> None:
    assert kind((1 << 63) - 1).bit_length() == 63
    with pytest.raises(IdentifierError):
        kind(1 << 63)


@pytest.mark.parametrize("kind", [k for k, _, _ in RANGES])
@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_identifier(kind: type[int], value: bool) -> None:  # noqa: FBT001
    with pytest.raises(IdentifierError):
        kind(value)


@pytest.mark.contract("SEQ-18")
@pytest.mark.parametrize("kind", NON_ZERO_BYTES)
@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
def test_sixteen_bytes_only(kind: type[bytes], length: int) -> None:
    with pytest.raises(IdentifierError):
        kind(b"\x01" * length)


@pytest.mark.contract("SEQ-18")
@pytest.mark.parametrize("kind", NON_ZERO_BYTES)
def test_zero_id_is_refused(kind: type[bytes]) -> None:
    with pytest.raises(IdentifierError):
        kind(bytes(16))
    assert kind(bytes(15) + b"\x01") == bytes(15) + b"\x01"


@pytest.mark.parametrize(
    ("kind", "length"), [(ids.TraceId, 16), (ids.DispatchId, 16), (ids.EventId, 8)]
)
def test_derived_ids_may_be_zero_but_not_short(kind: type[bytes], length: int) -> None:
    assert kind(bytes(length)) == bytes(length)
    with pytest.raises(IdentifierError):
        kind(bytes(length - 1))


def test_an_identifier_error_is_the_clients_fault_and_final() -> None:
    with pytest.raises(IdentifierError) as caught:
        ids.UserId(0)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert not is_retryable(caught.value)


# --- mailbox_seq ---------------------------------------------------------------------------------------------


@pytest.mark.contract("SEQ-07", "SEQ-08")
def test_compose_of_the_first_position_is_2_to_the_48() -> None:
    first = ids.MailboxSeq.compose(1, 0)
    assert first == 1 << 48
    assert (first.epoch, first.log_offset) == (1, 0)


@pytest.mark.contract("SEQ-07", "SEQ-10", "SEQ-12")
@given(st.integers(1, 0x7FFF), st.integers(0, MAX_LOG_OFFSET))
def test_compose_and_its_parts_are_inverse(epoch: int, log_offset: int) -> None:
    seq = ids.MailboxSeq.compose(epoch, log_offset)
    assert (seq.epoch, seq.log_offset) == (epoch, log_offset)
    assert seq >> 63 == 0


@pytest.mark.contract("SEQ-07")
@given(
    st.tuples(st.integers(1, 0x7FFF), st.integers(0, MAX_LOG_OFFSET)),
    st.tuples(st.integers(1, 0x7FFF), st.integers(0, MAX_LOG_OFFSET)),
)
def test_mailbox_seq_orders_by_epoch_then_offset(a: tuple[int, int], b: tuple[int, int]) -> None:
    assert (ids.MailboxSeq.compose(*a) < ids.MailboxSeq.compose(*b)) == (a < b)


@pytest.mark.contract("SEQ-10")
@pytest.mark.parametrize(
    ("epoch", "log_offset"), [(0, 0), (0x8000, 0), (1, -1), (1, 1 << 48), (-1, 5)]
)
def test_compose_refuses_what_would_alias(epoch: int, log_offset: int) -> None:
    with pytest.raises(IdentifierError):
        ids.MailboxSeq.compose(epoch, log_offset)


# --- formulas given by the contract --------------------------------------------------------------------------


@pytest.mark.contract("LANE-02", "LANE-01")
@given(tenants, users)
def test_lane_is_the_contracts_formula(tenant: int, user: int) -> None:
    digest = blake3(tenant.to_bytes(16, "big") + user.to_bytes(8, "big")).digest()
    assert ids.lane_of(tenant, user) == digest[0] & 63


@pytest.mark.contract("DISP-01")
@given(st.integers(0, MAX_U128), st.integers(0, 65535))
def test_dispatch_id_is_the_contracts_formula(message_id: int, shard: int) -> None:
    data = b"qim.group-dispatch.v1\x00" + message_id.to_bytes(16, "big") + shard.to_bytes(4, "big")
    assert ids.dispatch_id_of(message_id, shard) == blake3(data).digest()[:16]


@pytest.mark.contract("SPLIT-03", "SPLIT-04")
@given(tenants, users, st.integers(0, 15))
def test_a_split_moves_users_by_bucket_and_leaves_their_lane(
    tenant: int, user: int, power: int
) -> None:
    before, after = 1 << power, 2 << power
    shard, halved = ids.shard_of(tenant, user, before), ids.shard_of(tenant, user, after)
    assert halved % before == shard  # one shard becomes two, nobody else moves
    assert halved == ids.virtual_bucket(tenant, user) % after
    assert 0 <= ids.lane_of(tenant, user) < 64


@pytest.mark.contract("FAN-12", "LOG-11")
@pytest.mark.parametrize("count", [1, 2, 64, 65536])
def test_shard_counts_that_are_powers_of_two(count: int) -> None:
    assert ids.validate_shard_count(count) == count


@pytest.mark.contract("FAN-12", "LOG-11")
@pytest.mark.parametrize("count", [0, -1, 3, 12, 65535, 131072])
def test_other_shard_counts_are_refused(count: int) -> None:
    with pytest.raises(IdentifierError):
        ids.validate_shard_count(count)


@pytest.mark.contract("COM-22")
def test_every_commit_bucket_is_reached() -> None:
    found = {ids.commit_bucket(0, n.to_bytes(16, "big")) for n in range(1, 4000)}
    assert found == set(range(256))


def test_every_lane_and_every_shard_is_reached() -> None:
    assert {ids.lane_of(0, user) for user in range(1, 1500)} == set(range(64))
    assert {ids.shard_of(0, user, 64) for user in range(1, 1500)} == set(range(64))


@given(tenants, users, users)
def test_a_direct_conversation_is_the_same_from_both_sides(tenant: int, a: int, b: int) -> None:
    assert ids.direct_conversation_id(tenant, a, b) == ids.direct_conversation_id(tenant, b, a)


def test_direct_conversations_differ_by_tenant_and_by_people() -> None:
    made = {
        ids.direct_conversation_id(tenant, a, b)
        for tenant in (0, 1)
        for a in range(1, 12)
        for b in range(a, 12)
    }
    assert len(made) == 2 * 11 * 12 // 2


@pytest.mark.contract("EVT-04")
def test_event_ids_differ_by_each_of_their_inputs() -> None:
    base = (7, bytes(16), 9, 0)
    others = [(8, bytes(16), 9, 0), (7, b"\x01" * 16, 9, 0), (7, bytes(16), 10, 0)]
    made = [ids.event_id_of(*args) for args in (base, *others, (7, bytes(16), 9, 1))]
    assert len(set(made)) == 5
    assert {len(event_id) for event_id in made} == {8}
    assert ids.event_id_of(*base) == made[0]


@pytest.mark.contract("SEQ-21")
def test_trace_id_follows_from_the_message_id() -> None:
    assert ids.trace_id_of(5) == ids.trace_id_of(5)
    assert len({ids.trace_id_of(n) for n in range(50)}) == 50
    assert len(ids.trace_id_of(5)) == 16
