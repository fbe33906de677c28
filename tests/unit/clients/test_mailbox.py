"""When a pull goes out: debounce, one in flight, dirty, refusals; the cores of the login have their own file."""

from __future__ import annotations

from math import inf

import pytest

from clients.config import ClientConfig
from clients.mailbox import MailboxSync
from clients.pulls import Interval
from schemas.errors import Bug, ProtocolError
from schemas.wire import MailboxBatch

CONFIG = ClientConfig(pull_debounce_s=1.0, refused_retry_s=0.5, detection_limit_s=7.0)


def batch(after: int, through: int, *, entries: int = 0, more: bool = False) -> MailboxBatch:
    return {
        "entries": [b"entry"] * entries,
        "after_seq": after,
        "covered_through_seq": through,
        "lane_watermark": through,
        "has_more": more,
        "cursor": b"signed",
    }


@pytest.fixture
def sync() -> MailboxSync:
    """A mailbox that is online with nothing to do."""
    sync = MailboxSync(CONFIG)
    sync.begin_login(5, 5, 0.0)
    assert sync.login_complete
    sync.go_online(0.0)
    return sync


def ask(sync: MailboxSync, now_s: float, cursor: int = 5, request_id: int = 1) -> None:
    assert sync.take_requests(cursor, now_s) == [Interval(cursor, 0)]
    sync.asked(request_id, Interval(cursor, 0), now_s)


def test_idle_mailbox_asks_for_nothing(sync: MailboxSync) -> None:
    assert sync.deadline_s() == inf
    assert sync.take_requests(5, 1e9) == []


@pytest.mark.contract("PUSH-06")
def test_many_hints_make_one_request_one_pause_after_the_first(sync: MailboxSync) -> None:
    for now_s in (10.0, 10.4, 10.9):
        sync.hint(now_s)
    assert sync.deadline_s() == 11.0
    assert sync.take_requests(5, 10.99) == []
    ask(sync, 11.0)
    assert sync.take_requests(5, 11.0) == []


@pytest.mark.contract("PUSH-06")
def test_hint_in_flight_is_only_remembered_and_pulled_once_afterwards(sync: MailboxSync) -> None:
    sync.hint(10.0, at_once=True)
    ask(sync, 10.0)
    sync.hint(10.1)
    sync.hint(10.2, at_once=True)
    assert sync.take_requests(5, 20.0) == []
    (covered,) = sync.deliver(1, batch(5, 9, entries=2), 10.3)
    assert covered.covered_through_seq == 9
    assert sync.deadline_s() == pytest.approx(11.3)
    ask(sync, 11.3, cursor=9)
    sync.deliver(1, batch(9, 9), 11.4)
    assert sync.deadline_s() == inf


def test_hint_during_the_login_is_pulled_after_it() -> None:
    sync = MailboxSync(CONFIG)
    sync.begin_login(0, 5, 0.0)
    sync.hint(0.1)
    (asked,) = sync.take_requests(0, 0.1)
    sync.asked(1, asked, 0.1)
    sync.deliver(1, batch(0, 5), 0.2)
    assert sync.login_complete
    sync.go_online(0.3)
    assert sync.deadline_s() == pytest.approx(1.3)


def test_cut_batch_is_continued_at_once(sync: MailboxSync) -> None:
    sync.hint(10.0, at_once=True)
    ask(sync, 10.0)
    sync.deliver(1, batch(5, 7, entries=2, more=True), 10.1)
    ask(sync, 10.1, cursor=7)


@pytest.mark.contract("CUR-14")
def test_refused_pull_is_asked_again_after_a_pause(sync: MailboxSync) -> None:
    sync.hint(10.0, at_once=True)
    ask(sync, 10.0)
    sync.refuse(1, 10.2)
    assert sync.take_requests(5, 10.6) == []
    ask(sync, 10.7)


def test_refused_pull_of_a_login_goes_back_to_its_plan() -> None:
    sync = MailboxSync(CONFIG)
    sync.begin_login(0, 5, 0.0)
    (asked,) = sync.take_requests(0, 0.0)
    sync.asked(1, asked, 0.0)
    sync.refuse(1, 0.1)
    assert sync.take_requests(0, 0.2) == []
    assert sync.take_requests(0, 0.6) == [asked]


def test_refusal_of_nothing_is_a_bug(sync: MailboxSync) -> None:
    with pytest.raises(Bug):
        sync.refuse(9, 0.0)


@pytest.mark.parametrize(
    "answer", [batch(4, 9), batch(5, 4), batch(5, 5, entries=1)], ids=["other", "back", "nowhere"]
)
def test_answer_that_does_not_fit_is_damage(sync: MailboxSync, answer: MailboxBatch) -> None:
    sync.hint(10.0, at_once=True)
    ask(sync, 10.0)
    with pytest.raises(ProtocolError):
        sync.deliver(1, answer, 10.1)


@pytest.mark.contract("GW-09")
def test_unanswered_pull_is_given_up_after_the_detection_limit(sync: MailboxSync) -> None:
    sync.hint(10.0, at_once=True)
    ask(sync, 10.0)
    assert sync.deadline_s() == 17.0
    assert not sync.given_up(16.9)
    assert sync.given_up(17.0)
    sync.connection_lost()
    assert (sync.given_up(99.0), sync.deadline_s()) == (False, inf)
