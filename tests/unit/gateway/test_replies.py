"""Payloads that are packed by hand are what the codecs write."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import replies
from gateway.ports import CommittedMessage
from schemas.constants import MAX_U63
from schemas.wire import PUSH_EVENTS, SEND_ACK

ids = st.binary(min_size=16, max_size=16)
u63 = st.one_of(st.integers(0, 300), st.integers(0, MAX_U63), st.just(MAX_U63))


@pytest.mark.contract("COM-02")
@given(ids, st.builds(CommittedMessage, ids, u63, ids, u63, ids, st.booleans()))
def test_send_ack_is_what_the_codec_writes(cmid: bytes, committed: CommittedMessage) -> None:
    payload = replies.send_ack(cmid, committed)
    record = {"client_message_id": cmid, **dataclasses.asdict(committed)}
    assert SEND_ACK.decode(payload) == record
    assert SEND_ACK.encode(SEND_ACK.decode(payload)) == payload


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=200))
def test_push_events_is_what_the_codec_writes(entries: list[bytes]) -> None:
    payload = replies.push_events(entries)
    assert payload == PUSH_EVENTS.encode({"entries": entries})
    assert PUSH_EVENTS.decode(payload) == {"entries": entries}


def test_long_entries_and_long_lists() -> None:
    for entries in ([bytes(100_000)], [b""] * 20_000):
        assert replies.push_events(entries) == PUSH_EVENTS.encode({"entries": entries})
