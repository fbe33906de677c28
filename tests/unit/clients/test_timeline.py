from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.timeline import Entry, Timeline
from schemas.entry import EventType, decode_entry
from schemas.errors import RecordError
from schemas.wire import CursorKind
from tests.support.entries import entry_bytes

ids16 = st.binary(min_size=16, max_size=16)


@given(
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**63 - 1),
    st.sampled_from(EventType),
    st.none() | ids16,
    ids16,
    st.integers(1, 2**63 - 1),
    st.binary(min_size=8, max_size=8),
    st.none() | st.binary(max_size=200),
)
def test_lazy_places_are_what_the_codec_decodes(
    message: int,
    seq: int,
    event_type: int,
    cmid: bytes | None,
    conversation_id: bytes,
    conversation_seq: int,
    event_id: bytes,
    body: bytes | None,
) -> None:
    raw = entry_bytes(
        message,
        seq=seq,
        event_type=event_type,
        cmid=cmid,
        conversation_id=conversation_id,
        conversation_seq=conversation_seq,
        event_id=event_id,
        body=body,
    )
    entry, whole = Entry(raw), decode_entry(raw)
    assert entry.decode() == whole
    assert entry.mailbox_seq == whole["mailbox_seq"]
    assert entry.event_type == whole["event_type"]
    assert entry.event_id == whole["event_id"]
    assert entry.flags == whole["flags"]
    assert entry.client_message_id == whole["client_message_id"]
    assert entry.conversation_seq == int.from_bytes(whole["event"]["conversation_seq"], "big")
    assert entry.message_id == whole["event"]["message_id"]
    assert entry.conversation_id == whole["event"]["conversation_id"]


@given(st.binary(max_size=120))
def test_bytes_that_are_no_entry_are_refused_with_our_own_error(raw: bytes) -> None:
    try:
        Entry(raw)
    except RecordError:
        return
    assert raw[0] == 1
    assert len(raw) >= 62


@pytest.mark.parametrize("cut", [0, 1, 21, 22, 61])
def test_entry_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(RecordError):
        Entry(entry_bytes()[:cut])


def test_entry_equals_another_with_its_bytes() -> None:
    assert Entry(entry_bytes()) == Entry(entry_bytes())
    assert len({Entry(entry_bytes()), Entry(entry_bytes()), Entry(entry_bytes(2))}) == 2
    assert Entry(entry_bytes()) != entry_bytes()


@pytest.mark.contract("SDK-02")
def test_event_is_shown_once_also_at_another_position_after_a_split() -> None:
    timeline = Timeline(keep=True)
    first = entry_bytes(7, seq=5, event_id=b"shard-00")
    moved = entry_bytes(7, seq=9, event_id=b"shard-01")
    assert len(timeline.show([first, first])) == 1
    assert timeline.show([moved]) == []
    assert len(timeline.entries) == 1


def test_two_events_of_one_message_are_both_shown() -> None:
    timeline = Timeline(keep=True)
    shown = timeline.show([entry_bytes(7), entry_bytes(7, event_type=EventType.MENTION)])
    assert [entry.event_type for entry in shown] == [EventType.MESSAGE, EventType.MENTION]


@pytest.mark.contract("CUR-02")
def test_push_moves_no_cursor_and_a_batch_does() -> None:
    timeline = Timeline(keep=False)
    timeline.show([entry_bytes(seq=50)])
    assert (timeline.cursor_kind, timeline.cursor_seq, timeline.cursor) == (CursorKind.ZERO, 0, b"")
    assert timeline.apply_batch([entry_bytes(seq=50)], 60, b"signed") == []
    assert (timeline.cursor_kind, timeline.cursor_seq) == (CursorKind.TOKEN, 60)
    assert timeline.cursor == b"signed"
    assert timeline.entries == []


def test_damaged_entry_shows_nothing_of_its_batch_and_moves_no_cursor() -> None:
    timeline = Timeline(keep=True)
    with pytest.raises(RecordError):
        timeline.apply_batch([entry_bytes(1), b"damage"], 9, b"signed")
    assert (timeline.cursor_seq, timeline.entries) == (0, [])
    assert len(timeline.show([entry_bytes(1)])) == 1


def test_dedup_memory_is_bounded_and_covers_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.timeline._REMEMBERED_EVENTS", 100)
    timeline = Timeline(keep=False)
    for n in range(300):
        assert len(timeline.show([entry_bytes(n)])) == 1
        for recent in range(max(0, n - 100), n):
            assert timeline.show([entry_bytes(recent)]) == []
    assert len(timeline._seen) + len(timeline._older) <= 202


def test_conversation_is_ordered_by_its_own_sequence() -> None:
    timeline = Timeline(keep=True)
    late = entry_bytes(1, seq=5, conversation_seq=2)
    early = entry_bytes(2, seq=6, conversation_seq=1)
    other = entry_bytes(3, seq=7, conversation_id=b"d" * 16)
    timeline.show([late, early, other])
    talk = timeline.conversation(b"c" * 16)
    assert [entry.conversation_seq for entry in talk] == [1, 2]
