from __future__ import annotations

from math import inf

import pytest

from clients.config import ClientConfig
from clients.liveness import Liveness
from clients.pending import Coordinates, FoundBy, PendingMessage, PendingMessages
from schemas.errors import RequestError

DONE = Coordinates(b"m" * 16, 1, 5, duplicate=False, found_by=FoundBy.ACK)


def message(number: int) -> PendingMessage:
    return PendingMessage(
        {
            "client_message_id": number.to_bytes(16, "big"),
            "conversation_id": b"c" * 16,
            "recipient_user_id": 2,
            "message_type": 1,
            "custom_type": "",
            "body": b"",
            "mentions": [],
            "reply_to": None,
        },
        created_s=0.0,
    )


@pytest.fixture
def pending() -> PendingMessages:
    return PendingMessages(ack_timeout_s=3.0, detection_limit_s=7.0)


def sent(pending: PendingMessages, number: int, now_s: float) -> PendingMessage:
    found = message(number)
    pending.add(found)
    pending.sent(found, now_s)
    return found


def test_nothing_in_flight_has_no_deadline(pending: PendingMessages) -> None:
    pending.add(message(1))
    assert pending.deadline_s() == inf
    assert not pending.given_up(1e9)


@pytest.mark.contract("GW-09")
def test_oldest_message_sets_probe_and_limit(pending: PendingMessages) -> None:
    first, second = sent(pending, 1, 10.0), sent(pending, 2, 11.0)
    assert pending.deadline_s() == 13.0
    assert not pending.mark_overdue(12.9)
    assert pending.mark_overdue(13.0)
    assert not pending.mark_overdue(13.1)  # one probe for it
    assert pending.deadline_s() == 17.0
    assert pending.mark_overdue(14.0)
    assert pending.take_overdue() == [first, second]
    assert pending.take_overdue() == []
    assert not pending.given_up(16.9)
    assert pending.given_up(17.0)


def test_settled_message_is_neither_overdue_nor_given_up(pending: PendingMessages) -> None:
    first, second = sent(pending, 1, 10.0), sent(pending, 2, 11.0)
    pending.mark_overdue(13.0)
    assert pending.settle(first, DONE)
    assert pending.take_overdue() == []
    assert not pending.given_up(17.5)
    assert pending.deadline_s() == 14.0
    assert pending.settle(second, RequestError("no"))
    assert pending.deadline_s() == inf
    assert (second.coordinates, second.settled) == (None, True)


def test_second_ending_changes_nothing(pending: PendingMessages) -> None:
    first = sent(pending, 1, 10.0)
    assert pending.settle(first, DONE)
    assert not pending.settle(first, DONE._replace(conversation_seq=9))
    assert first.coordinates == DONE


def test_resend_on_the_same_connection_keeps_the_first_moment(pending: PendingMessages) -> None:
    first = sent(pending, 1, 10.0)
    pending.sent(first, 13.0)
    assert (first.attempts, first.first_sent_s) == (2, 10.0)
    assert pending.given_up(17.0)


def test_lost_connection_starts_every_clock_anew(pending: PendingMessages) -> None:
    first = sent(pending, 1, 10.0)
    pending.mark_overdue(13.0)
    pending.refuse(first, 14.0)
    pending.connection_lost()
    assert pending.deadline_s() == inf
    assert pending.take_refused(99.0) == []
    assert pending.take_overdue() == []
    pending.sent(first, 100.0)
    assert (pending.deadline_s(), first.attempts) == (103.0, 2)


def test_refused_messages_come_back_in_order_after_their_pause(pending: PendingMessages) -> None:
    first, second = sent(pending, 1, 10.0), sent(pending, 2, 10.0)
    pending.refuse(first, 10.5)
    pending.refuse(second, 10.6)
    assert pending.deadline_s() == 10.5
    assert pending.take_refused(10.4) == []
    assert pending.take_refused(10.5) == [first]
    pending.settle(second, DONE)
    assert pending.take_refused(10.6) == []


def test_client_message_id_under_way_is_refused(pending: PendingMessages) -> None:
    pending.add(message(1))
    with pytest.raises(ValueError, match="under way"):
        pending.add(message(1))


@pytest.mark.contract("GW-08", "GW-09")
def test_ping_is_due_at_its_interval_or_for_a_probe_and_never_twice_at_once() -> None:
    alive = Liveness(ClientConfig())
    alive.ping_in(100.0, 60_000)
    assert not alive.take_ping(159.9, probe=False)
    assert alive.take_ping(120.0, probe=True)
    assert not alive.take_ping(121.0, probe=True)  # its PONG answers both
    assert alive.deadline_s() == 124.0
    assert alive.given_up(124.0)
    alive.pong()
    alive.ping_in(121.5, 120_000)
    assert alive.deadline_s() == 241.5
    assert alive.take_ping(241.5, probe=False)


def test_each_answer_of_a_login_gives_it_more_time() -> None:
    alive = Liveness(ClientConfig())
    alive.connection_made(10.0)
    alive.login_answered(16.0)
    assert not alive.given_up(22.9)
    assert alive.given_up(23.0)
    alive.online()
    alive.login_answered(30.0)  # a later pull is no login
    assert alive.deadline_s() == inf
