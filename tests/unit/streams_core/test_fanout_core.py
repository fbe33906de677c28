"""Fanout of one outbox record: one dispatch a shard, everything from the record, nothing dropped."""

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.constants import MAX_U63, MAX_U128
from schemas.errors import RecordError
from schemas.identifiers import dispatch_id_of, shard_of, trace_id_of
from schemas.message import encode_outbox_head, join_outbox
from schemas.records import GROUP_DISPATCH, MESSAGE_RECORD, OUTBOX_RECORD, OutboxRecord
from streams.fanout_core import plan_dispatches
from tests.support.dispatch_fakes import SHARDS, direct, outbox, users_of
from tests.support.samples import id16

A, B = users_of(3, 2)  # neighbours on one shard
(C,) = users_of(5, 1)


@pytest.mark.contract("DISP-01", "DISP-02", "DISP-11")
def test_people_on_two_shards_get_one_dispatch_each() -> None:
    planned = direct(7, A, C)
    assert [p.shard for p in planned] == [3, 5]
    for p, user in zip(planned, (A, C), strict=True):
        record = GROUP_DISPATCH.decode(p.value)
        assert p.key == record["dispatch_id"] == dispatch_id_of((1 << 80) + 7, p.shard)
        assert record["recipients"] == [user]
        assert record["target_mailbox_shard"] == p.shard


@pytest.mark.contract("DISP-02", "DISP-11", "EVT-11")
@pytest.mark.parametrize(("sender", "recipient"), [(A, B), (A, A)])
def test_people_on_one_shard_share_a_dispatch(sender: int, recipient: int) -> None:
    (planned,) = direct(7, sender, recipient)
    people = [sender, recipient] if sender != recipient else [sender]
    assert GROUP_DISPATCH.decode(planned.value)["recipients"] == people


@given(
    st.integers(0, MAX_U128),
    st.sampled_from([A, B, C]),
    st.sampled_from([A, B, C]),
    st.integers(0, (1 << 32) - 1),
    st.text(max_size=16),
    st.lists(st.sampled_from([A, B, C]), max_size=3).map(tuple),
    st.binary(max_size=5000),
)
def test_packed_dispatches_are_what_the_codec_writes(
    tenant: int,
    sender: int,
    recipient: int,
    message_type: int,
    custom_type: str,
    mentions: tuple[int, ...],
    body: bytes,
) -> None:
    change: dict[str, Any] = {
        "tenant": tenant,
        "message_type": message_type,
        "custom_type": custom_type,
        "mentions": mentions,
        "body": body,
    }
    for planned in direct(7, sender, recipient, **change):
        assert GROUP_DISPATCH.encode(GROUP_DISPATCH.decode(planned.value)) == planned.value


@pytest.mark.contract("DISP-03", "DISP-05", "DISP-09", "SEQ-17", "SEQ-21")
def test_every_field_comes_from_the_outbox_record() -> None:
    change: dict[str, Any] = {
        "message_type": 0xFFFF_FFFE,
        "custom_type": "qim.poll.v1",
        "mentions": (C, A),
    }
    value = outbox(7, A, C, **change)
    record = MESSAGE_RECORD.decode(OUTBOX_RECORD.decode(value)["record"])
    first, second = (GROUP_DISPATCH.decode(p.value) for p in plan_dispatches(value, SHARDS))
    assert first == {
        "tenant_id": bytes(16),
        "dispatch_id": dispatch_id_of((1 << 80) + 7, 3),
        "message_id": record["event"]["message_id"],
        "conversation_id": record["event"]["conversation_id"],
        "conversation_seq": 7,
        "last_activity_id": record["last_activity_id"],
        "sender_id": A,
        "client_message_id": id16(7),
        "origin_device_id": id16(0xDE71CE),
        "fencing_epoch": None,
        "membership_version": None,
        "target_mailbox_shard": 3,
        "committed_at_ms": record["event"]["created_at_ms"],
        "trace_id": trace_id_of((1 << 80) + 7),
        "message_type": 0xFFFF_FFFE,
        "custom_type": "qim.poll.v1",
        "recipients": [A],
        "mentions": [A],
        "event_template": first["event_template"],
    }
    assert (second["recipients"], second["mentions"]) == ([C], [C])
    assert first["event_template"] == second["event_template"]


@pytest.mark.contract("FAN-02", "GRP-08", "EVT-12")
@given(
    st.integers(1, MAX_U63),
    st.integers(1, MAX_U63),
    st.integers(0, MAX_U128),
    st.binary(max_size=40),
)
def test_a_replay_plans_the_same_bytes(a: int, b: int, tenant: int, body: bytes) -> None:
    value = outbox(3, a, b, tenant=tenant, body=body)
    planned = plan_dispatches(value, SHARDS)
    assert planned == plan_dispatches(bytes(bytearray(value)), SHARDS)
    assert [p.shard for p in planned] == sorted({shard_of(tenant, user, SHARDS) for user in (a, b)})
    reached = [u for p in planned for u in GROUP_DISPATCH.decode(p.value)["recipients"]]
    assert sorted(reached) == sorted({a, b})


@pytest.mark.contract("DISP-13", "FAN-12")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_shards_frozen_under_another_count_are_refused(count: int) -> None:
    with pytest.raises(RecordError, match="frozen"):
        plan_dispatches(outbox(7, A, C), count)


def edited(value: bytes, **change: Any) -> bytes:
    record = OUTBOX_RECORD.decode(value) | change
    return OUTBOX_RECORD.encode(cast("OutboxRecord", record))


@pytest.mark.contract("DISP-13")
@pytest.mark.parametrize("shards", [[], [3], [5], [3, 5, 6], [5, 3]])
def test_other_target_shards_than_those_of_the_recipients_are_refused(shards: list[int]) -> None:
    with pytest.raises(RecordError, match="frozen"):
        plan_dispatches(edited(outbox(7, A, C), target_shards=shards), SHARDS)


@pytest.mark.contract("DISP-14")
def test_a_group_snapshot_is_refused_and_not_guessed() -> None:
    with pytest.raises(RecordError, match="snapshot"):
        plan_dispatches(edited(outbox(7, A, C), membership_version=4), SHARDS)


@pytest.mark.parametrize("by", [-1, 1, -16, 16, 1_000_000])
def test_event_bytes_that_cut_elsewhere_are_refused(by: int) -> None:
    """A wrong cut would put undecodable entries into every mailbox."""
    value = outbox(7, A, C)
    wrong = OUTBOX_RECORD.decode(value)["event_bytes"] + by
    with pytest.raises(RecordError, match="event_bytes"):
        plan_dispatches(edited(value, event_bytes=wrong), SHARDS)


@pytest.mark.contract("EVT-02", "CON-38", "EVT-05")
@pytest.mark.parametrize(
    ("body_bytes", "mentions", "fits"), [(7800, (), True), (8200, (), False), (7800, (A,), False)]
)
def test_an_event_group_above_8_kib_is_refused_before_the_log(
    body_bytes: int, mentions: tuple[int, ...], fits: bool  # noqa: FBT001
) -> None:
    """The commit step never makes one; fanout fails closed if another writer did."""
    record = MESSAGE_RECORD.decode(OUTBOX_RECORD.decode(outbox(7, A, C))["record"])
    record["event"]["body"] = bytes(body_bytes)
    record["mentions"] = list(mentions)
    encoded = MESSAGE_RECORD.encode(record)
    event_bytes = encoded.index(record["tenant_id"] + record["last_activity_id"]) - 1
    head = encode_outbox_head(0, record["event"]["message_id"], A, [A, C], [3, 5], event_bytes)
    value = join_outbox(head, encoded)
    if fits:
        assert len(plan_dispatches(value, SHARDS)) == 2
    else:
        with pytest.raises(RecordError, match="event group"):
            plan_dispatches(value, SHARDS)


@pytest.mark.contract("FAN-04")
def test_damage_is_an_error_and_never_an_empty_plan() -> None:
    value = outbox(7, A, C)
    for cut in range(0, len(value), 7):
        with pytest.raises(RecordError):
            plan_dispatches(value[:cut], SHARDS)
    with pytest.raises(RecordError):
        plan_dispatches(edited(value, record=b"\x01damaged"), SHARDS)


@pytest.mark.contract("DISP-04")
@pytest.mark.parametrize(("body_bytes", "inlined"), [(100, True), (5000, False)])
def test_a_small_body_travels_in_the_template(
    body_bytes: int, inlined: bool  # noqa: FBT001
) -> None:
    planned, *_ = direct(7, A, C, body=b"\xaa" * body_bytes)
    template = GROUP_DISPATCH.decode(planned.value)["event_template"]
    assert (b"\xaa" * 100 in template) is inlined
    assert len(template) < 400


@pytest.mark.contract("FAN-04")
@settings(max_examples=300)
@given(st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_one_damaged_byte_is_a_record_error_or_another_plan(
    at: int, value: int, mention: bool  # noqa: FBT001
) -> None:
    damaged = bytearray(outbox(7, A, C, mentions=(C,) if mention else ()))
    damaged[at % len(damaged)] = value
    try:
        planned = plan_dispatches(bytes(damaged), SHARDS)
    except RecordError:
        return
    assert [p.shard for p in planned] == [3, 5]


@pytest.mark.parametrize("user", [0, -1, -(1 << 63)])
def test_a_recipient_that_is_no_user_is_refused(user: int) -> None:
    with pytest.raises(RecordError):
        plan_dispatches(edited(outbox(7, A, C), recipients=[user, C]), SHARDS)
