"""The commit state machine: admission, joining, and what each stored state needs next."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commit_core import Intent, IntentTable, Step, audience_of, next_step
from gateway.ports import CommittedMessage
from schemas.constants import MAX_U63
from schemas.errors import ErrorCode, QimError, RequestError
from schemas.identifiers import commit_bucket, direct_conversation_id, shard_of
from tests.support.commit_fakes import request
from tests.support.samples import id16


def ignore(result: CommittedMessage | QimError) -> None:
    """A waiter nobody asks."""


@pytest.mark.contract("COM-01", "COM-07")
def test_next_step_of_every_state() -> None:
    assert {state: next_step(state) for state in "RDOC"} == {
        "R": Step.PUBLISH,
        "D": Step.PUBLISH,
        "O": Step.MARK,
        "C": Step.ACK,
    }


@pytest.mark.parametrize("state", ["", "X", "c", "DD"])
def test_an_unknown_state_is_damage_and_never_an_ack(state: str) -> None:
    with pytest.raises(QimError) as caught:
        next_step(state)
    assert caught.value.code is ErrorCode.INTERNAL


@pytest.mark.contract("EVT-11", "DISP-11", "DISP-13")
@given(st.integers(1, MAX_U63), st.integers(1, MAX_U63), st.sampled_from([1, 2, 64, 65536]))
def test_audience_is_both_people_and_the_shards_they_live_on(a: int, b: int, shards: int) -> None:
    recipients, targets = audience_of(5, a, b, shards)
    assert recipients == ([a] if a == b else [a, b])
    assert targets == sorted({shard_of(5, user, shards) for user in (a, b)})
    assert 1 <= len(targets) <= 2


@pytest.mark.contract("COM-08", "COM-05")
def test_a_retry_joins_the_message_in_flight() -> None:
    table = IntentTable(10)
    intent = table.admit(request(), ignore)
    assert intent is not None
    assert intent.bucket == commit_bucket(0, intent.conversation_id)
    assert table.admit(request(), ignore) is None
    assert len(table) == 1
    assert len(table.finish(intent)) == 2
    assert len(table) == 0


@pytest.mark.contract("COM-04", "COM-05")
def test_the_session_is_no_part_of_a_messages_identity() -> None:
    table = IntentTable(10)
    table.admit(request(), ignore)
    assert table.admit(request(session_epoch=99), ignore) is None


OTHER_MESSAGE: list[dict[str, Any]] = [
    {"device_id": id16(4)},
    {"body": b"other"},
    {"message_type": 2},
    {"custom_type": "x"},
    {"mentions": (2002,)},
    {"reply_to": id16(9)},
    {"recipient_user_id": 3, "conversation_id": direct_conversation_id(0, 1001, 3)},
]


@pytest.mark.contract("COM-05")
@pytest.mark.parametrize("change", OTHER_MESSAGE)
def test_another_message_under_the_same_id_is_a_conflict(change: dict[str, Any]) -> None:
    table = IntentTable(10)
    first = table.admit(request(), ignore)
    assert first is not None
    with pytest.raises(RequestError) as caught:
        table.admit(replace(request(), **change), ignore)
    assert caught.value.code is ErrorCode.IDEMPOTENCY_CONFLICT
    assert len(table.finish(first)) == 1  # the first one is untouched


@pytest.mark.parametrize(
    "change", [{"client_message_id": id16(2)}, {"user": 2002, "recipient_user_id": 1001}]
)
def test_another_key_is_another_message(change: dict[str, Any]) -> None:
    table = IntentTable(10)
    table.admit(request(), ignore)
    assert table.admit(replace(request(), **change), ignore) is not None
    assert len(table) == 2


@pytest.mark.contract("COM-17", "REG-17")
def test_reg_17_capacity_is_reported_and_nothing_is_dropped() -> None:
    table = IntentTable(2)
    admitted = []
    for number in range(1, 5):
        assert table.has_capacity is (number <= 2)
        admitted.append(table.admit(request(number), ignore))
    assert None not in admitted
    assert len(table) == 4  # what was already read from the sockets is kept
    for intent in admitted[:3]:
        assert intent is not None
        table.finish(intent)
    assert table.has_capacity


def test_the_recoverer_adopts_only_what_is_not_in_flight() -> None:
    table = IntentTable(10)
    running = table.admit(request(), ignore)
    assert running is not None
    found = Intent(*running.key, running.conversation_id, running.bucket, running.identity)
    assert not table.adopt(found)
    table.finish(running)
    assert table.adopt(found)
    assert table.admit(request(), ignore) is None  # and a retry then joins the recoverer's
    assert len(table.finish(found)) == 1
