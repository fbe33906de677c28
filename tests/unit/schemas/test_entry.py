"""Mailbox entry bytes: hand-packed head against the Avro writer, order by bytes, damage."""

import io
from typing import Any, cast

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import load_schema
from schemas.constants import MAX_U63
from schemas.entry import (
    ENTRY_HEAD_MAX_BYTES,
    EntryFlag,
    EventType,
    MessageType,
    decode_entry,
    encode_common,
    encode_entry_head,
    entry_mailbox_seq,
)
from schemas.errors import RecordError
from schemas.records import EVENT_COMMON, EventCommon
from tests.support.samples import SAMPLES, id16

_HEAD = parse_schema(load_schema("entry_head", 1), named_schemas={})
FULL, MINIMAL = (cast("EventCommon", record) for record in SAMPLES["event_common"])

heads = st.tuples(
    st.integers(1 << 48, MAX_U63),
    st.sampled_from(list(EventType)),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 63),
    st.integers(0, 63),
    st.none() | st.binary(min_size=16, max_size=16),
)


def by_avro(head: tuple[int, int, bytes, int, int, bytes | None]) -> bytes:
    seq, event_type, event_id, flags, mention_type, cmid = head
    out = io.BytesIO()
    record = {
        "event_ordinal": event_type,
        "event_type": event_type,
        "event_id": event_id,
        "flags": flags,
        "mention_type": mention_type,
        "client_message_id": cmid,
    }
    schemaless_writer(out, _HEAD, record)
    return b"\x01" + seq.to_bytes(8, "big") + out.getvalue()


@pytest.mark.contract("OPEN-06", "EVT-13")
@given(heads)
def test_packed_head_is_what_the_avro_writer_writes(head: tuple[Any, ...]) -> None:
    packed = encode_entry_head(*head)
    assert packed == by_avro(head)
    assert len(packed) <= ENTRY_HEAD_MAX_BYTES


@pytest.mark.contract("EVT-08", "EVT-13", "EVT-16")
@pytest.mark.parametrize("event", [FULL, MINIMAL])
@pytest.mark.parametrize("cmid", [None, id16(9)])
def test_round_trip_of_every_optional_field(event: EventCommon, cmid: bytes | None) -> None:
    head = encode_entry_head(1 << 48, EventType.MENTION, b"eventid8", 3, 1, cmid)
    decoded = decode_entry(head + encode_common(event))
    assert decoded == {
        "mailbox_seq": 1 << 48,
        "event_ordinal": 1,
        "event_type": 1,
        "event_id": b"eventid8",
        "flags": 3,
        "mention_type": 1,
        "client_message_id": cmid,
        "event": event,
    }


@pytest.mark.contract("REG-02")
@given(
    st.text(max_size=64), st.binary(max_size=80), st.none() | st.binary(min_size=16, max_size=16)
)
def test_reg_02_custom_type_moves_the_decoder_on(
    custom_type: str, body: bytes, reply_to: bytes | None
) -> None:
    """What follows the custom_type, in the entry and behind it, is still read."""
    event = MINIMAL | {"custom_type": custom_type, "body": body, "reply_to": reply_to}
    head = encode_entry_head(1 << 48, 0, bytes(8), 0, 0, None)
    assert decode_entry(head + encode_common(event))["event"] == event


@pytest.mark.contract("PUSH-02")
def test_common_part_is_the_same_bytes_in_every_record() -> None:
    common = encode_common(FULL)
    assert EVENT_COMMON.encode(FULL) == b"\x01" + common
    assert common[:8] == FULL["conversation_seq"]


@pytest.mark.contract("EVT-01", "EVT-03")
@given(
    st.lists(st.sampled_from(list(EventType)), unique=True, min_size=2),
    st.binary(min_size=8, max_size=8),
)
def test_entries_of_a_group_sort_by_ordinal_as_plain_bytes(
    types: list[EventType], event_id: bytes
) -> None:
    common = encode_common(MINIMAL)
    entries = [
        encode_entry_head(5 << 48, kind, event_id, 63 - kind, kind, id16(1) if kind else None)
        + common
        for kind in types
    ]
    ordinals = [decode_entry(entry)["event_ordinal"] for entry in sorted(entries)]
    assert ordinals == sorted(types)


@given(st.integers(1 << 48, MAX_U63), st.integers(1 << 48, MAX_U63))
def test_entries_of_two_groups_sort_by_mailbox_seq_as_plain_bytes(a: int, b: int) -> None:
    one, two = (encode_entry_head(seq, 0, bytes(8), 0, 0, None) for seq in (a, b))
    assert (one < two) == (a < b)
    assert entry_mailbox_seq(one + b"rest") == a


@pytest.mark.contract("EVT-03", "SEQ-17")
def test_numbers_of_the_contract() -> None:
    assert [(e.name, e.value) for e in EventType] == [
        ("MESSAGE", 0),
        ("MENTION", 1),
        ("MEMBERSHIP", 2),
        ("CONTROL", 3),
    ]
    assert [(m.name, m.value) for m in MessageType] == [
        ("UNKNOWN", 0),
        ("TEXT", 1),
        ("MEDIA", 2),
        ("CUSTOM", 3),
        ("CONTROL", 4),
    ]
    assert (EntryFlag.COUNTS_UNREAD, EntryFlag.AFFECTS_SESSION_ORDER) == (1, 2)


@pytest.mark.contract("MBX-56")
@pytest.mark.parametrize("event", [FULL, MINIMAL])
def test_every_truncation_of_an_entry_is_refused(event: EventCommon) -> None:
    entry = encode_entry_head(1 << 48, 0, b"eventid8", 1, 0, id16(4)) + encode_common(event)
    for length in range(len(entry)):
        with pytest.raises(RecordError):
            decode_entry(entry[:length])
    with pytest.raises(RecordError, match="trailing"):
        decode_entry(entry + b"\x00")


@pytest.mark.contract("MBX-56")
@settings(max_examples=200)
@given(st.binary(max_size=150))
def test_hostile_entries_raise_record_error_only(data: bytes) -> None:
    for raw in (data, b"\x01" + bytes(8) + data):
        try:
            decode_entry(raw)
        except RecordError:
            continue


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_entry_of_another_version_is_refused(version: int) -> None:
    entry = encode_entry_head(1 << 48, 0, bytes(8), 0, 0, None) + encode_common(MINIMAL)
    with pytest.raises(RecordError):
        entry_mailbox_seq(bytes([version]) + entry[1:])


@pytest.mark.contract("SEQ-10")
def test_an_entry_with_bit_63_is_refused() -> None:
    entry = encode_entry_head(1 << 63, 0, bytes(8), 0, 0, None) + encode_common(MINIMAL)
    with pytest.raises(RecordError):
        decode_entry(entry)


@pytest.mark.parametrize("change", [{"event_type": 64}, {"flags": -1}, {"mention_type": 64}])
def test_a_head_value_that_needs_a_second_byte_is_refused(change: dict[str, int]) -> None:
    values: dict[str, Any] = {
        "mailbox_seq": 1 << 48,
        "event_type": 0,
        "event_id": bytes(8),
        "flags": 0,
        "mention_type": 0,
        "client_message_id": None,
    }
    with pytest.raises(RecordError):
        encode_entry_head(**(values | change))
