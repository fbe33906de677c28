"""Planted faults: each kind of damage in a recorded run must be found, and a clean run must be clean."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.judge import Arrival, Sent, judge
from bench.payload import MIN_BODY_BYTES, body_of, index_in

TALK = b"c" * 16
OTHER = b"d" * 16


def clean_run(count: int = 6) -> tuple[list[Sent], list[Arrival]]:
    """Client 0 sends `count` messages to client 1; each is acknowledged after 10 ms, shown after 30 ms."""
    sent = [Sent(0, 1, float(i), i + 0.01) for i in range(count)]
    seen = [Arrival(1, i, TALK, i + 1, i + 0.03) for i in range(count)]
    return sent, seen


def test_clean_run_is_whole_and_counts_latency_from_the_due_moment() -> None:
    sent, seen = clean_run()
    verdict = judge(sent, seen)
    assert (verdict.offered, verdict.acked, verdict.delivered) == (6, 6, 6)
    assert (verdict.duplicates, verdict.order_breaks, verdict.strangers) == (0, 0, 0)
    assert verdict.delivered_share == 1.0
    assert all(abs(sample - 0.03) < 1e-9 for sample in verdict.e2e_s)
    assert all(abs(sample - 0.01) < 1e-9 for sample in verdict.ack_s)


def test_lost_message_is_named_and_lowers_the_share() -> None:
    sent, seen = clean_run(4)
    del seen[2]
    verdict = judge(sent, seen)
    assert verdict.acked_not_delivered == [2]
    assert verdict.delivered_share == 0.75
    assert verdict.order_breaks == 0  # a gap is not a break of order


def test_message_without_ack_and_arrival_is_lost_but_was_never_acknowledged() -> None:
    sent, seen = clean_run(2)
    sent[1] = sent[1]._replace(acked_s=None)
    verdict = judge(sent, seen[:1])
    assert (verdict.acked, verdict.acked_not_delivered, verdict.delivered_share) == (1, [], 0.5)


def test_duplicate_is_counted_even_under_a_new_conversation_seq() -> None:
    sent, seen = clean_run()
    verdict = judge(sent, [*seen, seen[3]._replace(conversation_seq=99)])
    assert (verdict.duplicates, verdict.delivered, len(verdict.e2e_s)) == (1, 6, 6)


def test_swapped_arrivals_are_one_order_break() -> None:
    sent, seen = clean_run()
    seen[1], seen[2] = seen[2], seen[1]
    assert judge(sent, seen).order_breaks == 1


def test_two_messages_with_one_conversation_seq_are_an_order_break() -> None:
    sent, seen = clean_run(2)
    seen[1] = seen[1]._replace(conversation_seq=1)
    assert judge(sent, seen).order_breaks == 1


def test_order_is_judged_for_each_conversation_and_client_alone() -> None:
    sent = [Sent(0, 1, 0.0, 0.1), Sent(2, 1, 0.0, 0.1), Sent(1, 0, 0.0, 0.1)]
    seen = [
        Arrival(1, 0, TALK, 9, 1.0),
        Arrival(1, 1, OTHER, 1, 1.0),  # another conversation begins at one again
        Arrival(0, 2, TALK, 3, 1.0),  # another client has not seen number nine
    ]
    assert judge(sent, seen).order_breaks == 0


def test_own_entry_counts_for_duplicates_but_neither_for_order_nor_delivery() -> None:
    sent = [Sent(0, 1, 0.0, 0.1), Sent(1, 0, 0.0, 0.1)]
    seen = [Arrival(0, 1, TALK, 2, 1.0), Arrival(0, 0, TALK, 1, 2.0), Arrival(0, 0, TALK, 1, 3.0)]
    verdict = judge(sent, seen)
    assert (verdict.order_breaks, verdict.delivered, verdict.duplicates) == (0, 1, 1)


def test_message_shown_to_a_third_client_is_a_stranger() -> None:
    sent, seen = clean_run(1)
    verdict = judge(sent, [*seen, Arrival(7, 0, TALK, 1, 0.5)])
    assert (verdict.strangers, verdict.delivered) == (1, 1)


def test_empty_run_delivered_nothing() -> None:
    assert judge([], []).delivered_share == 0.0


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_any_order_and_any_loss_is_found(order: list[int], lost: set[int]) -> None:
    sent, seen = clean_run()
    shown = [seen[i] for i in order if i not in lost]
    verdict = judge(sent, shown)
    in_order = [a.message for a in shown] == sorted(a.message for a in shown)
    assert (verdict.order_breaks == 0) is in_order
    assert verdict.acked_not_delivered == sorted(lost)
    assert verdict.delivered == 6 - len(lost)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1), st.integers(0, 200))
def test_body_round_trips_its_index_at_any_size(nonce: bytes, index: int, padding: int) -> None:
    body = body_of(nonce, index, MIN_BODY_BYTES + padding)
    assert len(body) == MIN_BODY_BYTES + padding
    assert index_in(nonce, body) == index


def test_body_of_an_older_run_is_not_counted() -> None:
    assert index_in(b"n" * 16, body_of(b"o" * 16, 3, 64)) is None
    assert index_in(b"n" * 16, b"hello") is None
