"""Expansion of one dispatch: who gets which entries, with which flags, always the same bytes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.entry import EntryFlag, EventType, MailboxEntry, MessageType, decode_entry
from schemas.errors import RecordError
from schemas.identifiers import MailboxSeq, event_id_of, lane_of, virtual_bucket
from schemas.records import PUSH_BATCH, GroupDispatch
from stores.mailbox import EntryWrite
from streams.expand import Expander, PlannedPush, ShardContext, epoch_at, split_lanes
from tests.support.dispatch_fakes import SHARDS, dispatch, users_of
from tests.support.samples import id16
from tests.support.virtual_time import EPOCH_MS

CONTEXT = ShardContext(shard=3, shard_count=SHARDS, push_partitions=4, boundaries=[(1, 0)])
SENDER, OTHER, THIRD = users_of(3, 3)
(STRANGER,) = users_of(4, 1)


def expand(
    made: GroupDispatch, offset: int = 9, context: ShardContext = CONTEXT
) -> tuple[list[EntryWrite], list[PlannedPush]]:
    expander = Expander(context)
    expander.add(offset, made, made["recipients"])
    return expander.take()


def entries_by_user(made: GroupDispatch) -> dict[int, list[MailboxEntry]]:
    found: dict[int, list[MailboxEntry]] = {}
    for write in expand(made)[0]:
        found.setdefault(write.user, []).append(decode_entry(write.member))
    return found


def plain(**change: Any) -> GroupDispatch:
    return dispatch(7, [SENDER, OTHER], shard=3, **change)


@pytest.mark.contract("EVT-08", "EVT-11", "EVT-12", "MBX-20", "DISP-09")
def test_each_recipient_gets_the_message_with_the_time_of_the_commit() -> None:
    writes, _ = expand(plain(committed_at_ms=EPOCH_MS))
    assert [w.user for w in writes] == [SENDER, OTHER]
    for write in writes:
        assert write[:1] == (0,)
        assert write.log_offset == 9
        assert write.mailbox_seq == MailboxSeq.compose(1, 9)
        assert write.day == EPOCH_MS // 86_400_000
        entry = decode_entry(write.member)
        assert entry["mailbox_seq"] == write.mailbox_seq
        assert (entry["event_type"], entry["event_ordinal"]) == (EventType.MESSAGE, 0)
        assert entry["event"]["body"] == b"message 7"


@pytest.mark.contract("REG-01", "SEQ-08")
def test_reg_01_offset_0_is_a_position_like_any_other() -> None:
    writes, pushes = expand(plain(), offset=0)
    assert [(w.log_offset, w.mailbox_seq) for w in writes] == [(0, 1 << 48)] * 2
    assert PUSH_BATCH.decode(pushes[0].value)["mailbox_seq"] == 1 << 48


@pytest.mark.contract("EVT-10")
def test_only_the_senders_own_entry_carries_the_client_message_id() -> None:
    found = entries_by_user(plain(mentions=[SENDER, OTHER]))
    assert {e["client_message_id"] for e in found[SENDER]} == {id16(7)}
    assert {e["client_message_id"] for e in found[OTHER]} == {None}


@pytest.mark.contract("EVT-09", "UNREAD-02")
@pytest.mark.parametrize(
    ("message_type", "own", "others"),
    [
        (MessageType.TEXT, 2, 3),
        (MessageType.UNKNOWN, 2, 3),
        (0xFFFF_FFFF, 2, 3),
        (MessageType.CONTROL, 2, 2),
    ],
)
def test_flags_by_recipient_and_type(message_type: int, own: int, others: int) -> None:
    found = entries_by_user(plain(message_type=message_type))
    assert [e["flags"] for e in found[SENDER]] == [own]
    assert [e["flags"] for e in found[OTHER]] == [others]
    assert own & EntryFlag.COUNTS_UNREAD == 0


@pytest.mark.contract("EVT-01", "EVT-02", "EVT-03", "EVT-09")
@pytest.mark.parametrize(
    ("message_type", "first"), [(MessageType.TEXT, 0), (MessageType.CONTROL, 3)]
)
def test_a_mention_is_a_second_entry_of_the_same_group(message_type: int, first: int) -> None:
    found = entries_by_user(plain(message_type=message_type, mentions=[OTHER]))
    assert [e["event_type"] for e in found[SENDER]] == [first]
    group = found[OTHER]
    assert [e["event_ordinal"] for e in group] == sorted({first, EventType.MENTION})
    assert len({e["mailbox_seq"] for e in group}) == 1
    assert len({e["event_id"] for e in group}) == 2
    assert [e["mention_type"] for e in group] == [int(e["event_type"] == 1) for e in group]
    counting = [e["event_type"] for e in group if e["flags"] & EntryFlag.COUNTS_UNREAD]
    assert counting == (
        [first] if message_type == MessageType.TEXT else []
    )  # a message counts once


@pytest.mark.contract("EVT-04")
def test_event_ids_are_derived_from_the_dispatch() -> None:
    made = plain(mentions=[OTHER])
    for user, entries in entries_by_user(made).items():
        for entry in entries:
            expected = event_id_of(0, made["dispatch_id"], user, entry["event_type"])
            assert entry["event_id"] == expected


@pytest.mark.contract("DISP-13")
@pytest.mark.parametrize("users", [[STRANGER], [SENDER, STRANGER], [STRANGER, SENDER]])
def test_a_recipient_of_another_shard_is_refused(users: list[int]) -> None:
    with pytest.raises(RecordError, match="another shard"):
        expand(dispatch(7, users, shard=3))


@pytest.mark.contract("TAKE-09", "FORB-14", "EVT-12")
@settings(max_examples=40)
@given(st.integers(0, 1 << 40), st.lists(st.sampled_from([SENDER, OTHER, THIRD]), max_size=3))
def test_who_expands_again_writes_the_same_bytes(offset: int, mentions: list[int]) -> None:
    made = dispatch(7, [SENDER, OTHER, THIRD], shard=3, mentions=mentions)
    whole = expand(made, offset)
    assert whole == expand(made, offset)
    parts = Expander(CONTEXT)  # in another cut
    for user in made["recipients"]:
        parts.add(offset, made, [user])
    assert parts.take()[0] == whole[0]


# --- epochs --------------------------------------------------------------------------------------------------

BOUNDARIES = [(1, 0), (2, 10), (5, 10), (6, 25)]


@pytest.mark.contract("CON-39", "SEQ-07", "OPEN-11")
@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, 1), (9, 1), (10, 5), (24, 5), (25, 6), (1 << 40, 6)]
)
def test_the_epoch_is_a_function_of_the_log_position(offset: int, epoch: int) -> None:
    assert epoch_at(BOUNDARIES, offset) == epoch
    context = CONTEXT._replace(boundaries=BOUNDARIES)
    writes, _ = expand(plain(), offset, context)
    assert {w.mailbox_seq for w in writes} == {MailboxSeq.compose(epoch, offset)}
    assert {w.log_offset for w in writes} == {offset}


@pytest.mark.contract("CON-39")
def test_records_before_a_boundary_keep_their_bytes_after_a_takeover() -> None:
    before, after = CONTEXT, CONTEXT._replace(boundaries=[(1, 0), (2, 10)])
    assert expand(plain(), 9, before) == expand(plain(), 9, after)
    assert expand(plain(), 10, before) != expand(plain(), 10, after)


@pytest.mark.parametrize("boundaries", [[], [(2, 5)]])
def test_a_position_without_a_boundary_is_refused(boundaries: list[tuple[int, int]]) -> None:
    with pytest.raises(RecordError, match="boundary"):
        epoch_at(boundaries, 4)


@pytest.mark.contract("SEQ-10")
def test_an_offset_beyond_48_bits_is_refused_and_not_folded() -> None:
    with pytest.raises(ValueError, match="LogOffset"):
        expand(plain(), 1 << 48)


# --- pushes --------------------------------------------------------------------------------------------------


@pytest.mark.contract("PUSH-02", "SEQ-21")
def test_a_push_carries_the_common_part_once_and_the_same_entries() -> None:
    made = plain(mentions=[OTHER])
    writes, pushes = expand(made)
    pushed = []
    for push in pushes:
        batch = PUSH_BATCH.decode(push.value)
        assert batch["common_encoded_body"] == made["event_template"]
        assert batch["origin_device_id"] == made["origin_device_id"]
        assert (batch["mailbox_shard"], batch["sender_id"]) == (3, SENDER)
        for recipient in batch["recipients"]:
            assert virtual_bucket(0, recipient["user_id"]) % 4 == push.partition
            heads = recipient["entry_heads"]
            pushed += [(recipient["user_id"], h + batch["common_encoded_body"]) for h in heads]
    assert sorted(pushed) == sorted((w.user, w.member) for w in writes)


@pytest.mark.contract("PUSH-03")
def test_at_most_one_push_a_connection_shard() -> None:
    made = dispatch(7, users_of(3, 100), shard=3)
    pushes = expand(made, context=CONTEXT._replace(push_partitions=3))[1]
    assert sorted(push.partition for push in pushes) == [0, 1, 2]


@given(st.lists(st.integers(1, 1 << 62), unique=True, max_size=40))
def test_split_lanes_keeps_everybody_and_their_order(users: list[int]) -> None:
    by_lane = split_lanes(plain(), users)
    assert sorted(u for part in by_lane.values() for u in part) == sorted(users)
    for lane, part in by_lane.items():
        assert part == [u for u in users if lane_of(0, u) == lane]
