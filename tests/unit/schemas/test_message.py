"""Spliced message bytes are the bytes of the codecs, and keep their size promises."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.constants import (
    EVENT_GROUP_MAX_BYTES,
    INLINE_BODY_BUDGET_BYTES,
    MAX_BODY_BYTES,
    MAX_U63,
    MAX_U128,
)
from schemas.entry import EventType, decode_entry, encode_entry_head
from schemas.message import encode_message, encode_outbox_head, join_outbox, join_record
from schemas.records import MESSAGE_RECORD, OUTBOX_RECORD
from tests.support.samples import id16

ARGS: dict[str, Any] = {
    "tenant": 5,
    "message_id": id16(77),
    "trace_id": id16(78),
    "conversation_id": id16(79),
    "sender": 1001,
    "sender_device_id": id16(80),
    "client_message_id": id16(81),
    "committed_at_ms": 1_764_468_000_123,
    "message_type": 1,
    "custom_type": "",
    "body": b"hello",
    "mentions": (),
    "reply_to": None,
    "member_count": 2,
}

arguments = st.fixed_dictionaries(
    {
        "tenant": st.integers(0, MAX_U128),
        "message_id": st.binary(min_size=16, max_size=16),
        "trace_id": st.binary(min_size=16, max_size=16),
        "conversation_id": st.binary(min_size=16, max_size=16),
        "sender": st.integers(1, MAX_U63),
        "sender_device_id": st.binary(min_size=16, max_size=16),
        "client_message_id": st.binary(min_size=16, max_size=16),
        "committed_at_ms": st.integers(0, 1 << 47),
        "message_type": st.integers(0, (1 << 32) - 1),
        "custom_type": st.text(max_size=16),
        "body": st.binary(max_size=100) | st.just(bytes(5000)),
        "mentions": st.lists(st.integers(1, MAX_U63), max_size=3).map(tuple),
        "reply_to": st.none() | st.binary(min_size=16, max_size=16),
        "member_count": st.integers(1, 2),
    }
)


def as_record(args: dict[str, Any], seq: int, *, inline: bool) -> dict[str, Any]:
    return {
        "event": {
            "conversation_seq": seq.to_bytes(8, "big"),
            "message_id": args["message_id"],
            "conversation_id": args["conversation_id"],
            "sender_id": args["sender"],
            "created_at_ms": args["committed_at_ms"],
            "message_type": args["message_type"],
            "custom_type": args["custom_type"],
            "reply_to": args["reply_to"],
            "visibility_floor_conversation_seq": None,
            "body": args["body"] if inline else None,
        },
        "tenant_id": args["tenant"].to_bytes(16, "big"),
        "last_activity_id": args["message_id"],
        "trace_id": args["trace_id"],
        "client_message_id": args["client_message_id"],
        "sender_device_id": args["sender_device_id"],
        "mentions": list(args["mentions"]),
        "state": 0,
        "stored_body": None if inline else args["body"],
    }


@pytest.mark.contract("COM-03", "SEQ-03")
@given(arguments, st.integers(1, MAX_U63))
def test_spliced_record_is_what_its_codec_writes(args: dict[str, Any], seq: int) -> None:
    joined = join_record(encode_message(**args), seq)
    inline = MESSAGE_RECORD.decode(joined)["stored_body"] is None
    assert joined == MESSAGE_RECORD.encode(as_record(args, seq, inline=inline))  # type: ignore[arg-type]


@given(arguments, st.integers(1, MAX_U63))
def test_event_bytes_cut_the_common_part_out_of_the_record(args: dict[str, Any], seq: int) -> None:
    parts = encode_message(**args)
    common = join_record(parts, seq)[1 : 1 + parts.event_bytes]
    entry = encode_entry_head(1 << 48, EventType.MESSAGE, bytes(8), 0, 0, None) + common
    assert decode_entry(entry)["event"]["conversation_seq"] == seq.to_bytes(8, "big")


@pytest.mark.contract("COM-09")
@given(
    st.integers(0, MAX_U128),
    st.lists(st.integers(1, MAX_U63), max_size=3),
    st.lists(st.integers(0, 65535), max_size=3),
    st.binary(max_size=300),
)
def test_spliced_outbox_record_is_what_its_codec_writes(
    tenant: int, recipients: list[int], shards: list[int], record: bytes
) -> None:
    head = encode_outbox_head(tenant, id16(7), 1001, recipients, shards, 99)
    assert join_outbox(head, record) == OUTBOX_RECORD.encode(
        {
            "tenant_id": tenant.to_bytes(16, "big"),
            "message_id": id16(7),
            "sender_id": 1001,
            "recipients": recipients,
            "membership_version": None,
            "target_shards": shards,
            "event_bytes": 99,
            "record": record,
        }
    )


@pytest.mark.parametrize("length", [0, 63, 64, 8191, 8192, 200_000])
def test_every_length_of_the_spliced_record_field(length: int) -> None:
    head = encode_outbox_head(0, id16(7), 1, [1], [0], 0)
    assert OUTBOX_RECORD.decode(join_outbox(head, bytes(length)))["record"] == bytes(length)


@pytest.mark.contract("DISP-04", "FORB-03", "QUOTA-04")
@pytest.mark.parametrize(
    ("members", "body_bytes", "inlined"),
    [
        (2, 0, True),
        (2, INLINE_BODY_BUDGET_BYTES // 2, True),
        (2, INLINE_BODY_BUDGET_BYTES // 2 + 1, False),
        (1, 7500, True),
        (2, MAX_BODY_BYTES, False),
    ],
)
def test_body_travels_inline_within_the_budget(
    members: int, body_bytes: int, inlined: bool  # noqa: FBT001
) -> None:
    parts = encode_message(**ARGS | {"body": bytes(body_bytes), "member_count": members})
    record = MESSAGE_RECORD.decode(join_record(parts, 1))
    carried, stored = record["event"]["body"], record["stored_body"]
    assert (carried is not None) is inlined
    assert (carried if inlined else stored) == bytes(body_bytes)
    assert (stored if inlined else carried) is None


@pytest.mark.contract("EVT-02", "CON-38")
@pytest.mark.parametrize("mentions", [(), (1001,), (1001, 2002)])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("body_bytes", [0, 3900, 4000, 4096, 8000, 8100, 8192, MAX_BODY_BYTES])
def test_no_body_makes_an_event_group_above_8_kib(
    mentions: tuple[int, ...], members: int, body_bytes: int
) -> None:
    parts = encode_message(
        **ARGS
        | {
            "body": bytes(body_bytes),
            "member_count": members,
            "mentions": mentions,
            "custom_type": "x" * 64,
            "reply_to": id16(5),
        }
    )
    common = join_record(parts, 1)[1 : 1 + parts.event_bytes]
    types = [EventType.MESSAGE, *([EventType.MENTION] if mentions else [])]
    group = [encode_entry_head(1 << 48, t, bytes(8), 3, 1, id16(9)) + common for t in types]
    assert sum(map(len, group)) <= EVENT_GROUP_MAX_BYTES
