"""The commit step over a store and an outbox that fail on demand; the steps are numbered in gateway/commit.py."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from gateway.commit import CommitStep
from gateway.ports import CommittedMessage
from schemas.errors import ErrorCode
from schemas.identifiers import dispatch_id_of, shard_of, trace_id_of
from schemas.records import MESSAGE_RECORD
from tests.support.commit_fakes import SHARDS, CommitRig, Waiter, request
from tests.support.samples import id16
from tests.support.virtual_time import run

Script = Callable[[CommitRig], Coroutine[Any, Any, None]]


def play(script: Script, **options: int) -> CommitRig:
    """Run a script against a started rig; nobody may be left unanswered and no ACK may come early."""

    async def main() -> CommitRig:
        rig = CommitRig(**options)
        await rig.start()
        await script(rig)
        await rig.settle()
        await rig.commit.stop()
        return rig

    rig = run(main())
    for waiter in rig.waiters:
        assert waiter.calls == 1
        if isinstance(waiter.result, CommittedMessage):
            assert waiter.state == "C"  # COM-01: at the moment of the ACK
    assert_conversations_in_order(rig)
    return rig


def assert_conversations_in_order(rig: CommitRig) -> None:
    """First occurrences of a conversation stand in the outbox in the order of their sequences, duplicates equal."""
    for messages in rig.outbox.messages().values():
        firsts: dict[bytes, bytes] = {}
        order = []
        for message in messages:
            encoded = MESSAGE_RECORD.encode(message)
            message_id = message["event"]["message_id"]
            if message_id not in firsts:
                order.append(message["event"]["conversation_seq"])
            assert firsts.setdefault(message_id, encoded) == encoded
        assert order == sorted(order)
        assert len(set(order)) == len(order)


def visible(rig: CommitRig) -> list[bytes]:
    """Message ids after the deduplication that dispatch_id gives, for each (conversation)."""
    return [
        message_id
        for messages in rig.outbox.messages().values()
        for message_id in dict.fromkeys(m["event"]["message_id"] for m in messages)
    ]


# --- the plain path ------------------------------------------------------------------------------------------


@pytest.mark.contract("COM-01", "COM-02", "GW-17")
def test_a_message_is_recorded_published_marked_and_then_acknowledged() -> None:
    asked = request(mentions=(2002,), reply_to=id16(5), custom_type="x")

    async def script(rig: CommitRig) -> None:
        rig.submit(asked)

    rig = play(script)
    (waiter,) = rig.waiters
    committed = waiter.committed
    (outbox,) = rig.outbox.records()
    record = MESSAGE_RECORD.decode(outbox["record"])
    assert committed.conversation_seq == 1
    assert not committed.duplicate
    assert record["event"]["message_id"] == committed.message_id == outbox["message_id"]
    assert record["event"]["conversation_seq"] == (1).to_bytes(8, "big")
    assert record["event"]["created_at_ms"] == committed.committed_at_ms
    assert record["event"]["body"] == asked.body
    assert record["event"]["reply_to"] == id16(5)
    assert record["mentions"] == [2002]
    assert (record["client_message_id"], record["sender_device_id"]) == (id16(1), asked.device_id)


@pytest.mark.contract("SEQ-03", "SEQ-04", "SEQ-21", "COM-09")
def test_coordinates_come_from_one_allocation_and_travel_in_the_record() -> None:
    async def script(rig: CommitRig) -> None:
        rig.submit(request())

    rig = play(script)
    committed = rig.waiters[0].committed
    (outbox,) = rig.outbox.records()
    record = MESSAGE_RECORD.decode(outbox["record"])
    assert record["last_activity_id"] == committed.last_activity_id == committed.message_id
    assert record["trace_id"] == committed.trace_id
    assert committed.trace_id == trace_id_of(int.from_bytes(committed.message_id, "big"))
    assert outbox["recipients"] == [1001, 2002]
    assert outbox["target_shards"] == sorted({shard_of(0, user, SHARDS) for user in (1001, 2002)})
    assert outbox["membership_version"] is None


@pytest.mark.contract("SEQ-05", "COM-15")
def test_conversations_count_apart_and_in_order_of_submission() -> None:
    async def script(rig: CommitRig) -> None:
        for number in range(1, 61):
            rig.submit(request(number, recipient=2000 + number % 3))

    rig = play(script)
    for rest in range(3):
        seqs = [
            w.committed.conversation_seq
            for w in rig.waiters
            if w.asked.recipient_user_id == 2000 + rest
        ]
        assert seqs == list(range(1, 21))


@pytest.mark.contract("SEQ-06")
def test_two_writers_share_a_conversation_without_gap_or_duplicate() -> None:
    async def main() -> list[int]:
        rig = CommitRig()
        first = await rig.start()
        second = await rig.start()
        for number in range(1, 201):
            rig.commit = first if number % 2 else second
            rig.submit(request(number))
        await rig.settle()
        await first.stop()
        await second.stop()
        return [waiter.committed.conversation_seq for waiter in rig.waiters]

    assert sorted(run(main())) == list(range(1, 201))


def test_what_piles_up_goes_in_one_page() -> None:
    async def script(rig: CommitRig) -> None:
        gate = rig.hooks.block("reserve")
        rig.submit(request(1))
        while not rig.hooks.calls["reserve"]:
            await rig_pass()
        for number in range(2, 101):
            rig.submit(request(number))
        gate.set()

    rig = play(script, instances=1)
    assert rig.store.pages["reserve"] == [1, 99]
    assert len(rig.outbox.pages) <= 2
    assert len(rig.store.pages["mark"]) <= 2


async def rig_pass() -> None:
    """One pass of the event loop."""
    await asyncio.sleep(0)


# --- refused requests ----------------------------------------------------------------------------------------


@pytest.mark.contract("COM-06")
def test_a_refused_request_uses_no_sequence_and_touches_no_other() -> None:
    async def script(rig: CommitRig) -> None:
        rig.submit(request(1))
        rig.submit(request(2, custom_type="x" * 65))
        rig.submit(request(3))

    rig = play(script)
    one, two, three = rig.waiters
    assert (one.committed.conversation_seq, three.committed.conversation_seq) == (1, 2)
    assert two.error.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert two.state is None


@pytest.mark.contract("HLC-02")
def test_without_message_ids_requests_fail_retryably_and_nothing_is_stored() -> None:
    async def script(rig: CommitRig) -> None:
        rig.now_ms.offset_ms += 120_000  # beyond the window
        rig.submit(request(1))

    rig = play(script)
    assert rig.waiters[0].error.code is ErrorCode.UNAVAILABLE
    assert rig.waiters[0].error.code.retryable
    assert rig.waiters[0].state is None


# --- retries -------------------------------------------------------------------------------------------------


@pytest.mark.contract("COM-04", "COM-05", "REG-38")
def test_a_retry_after_the_ack_gets_the_first_coordinates_and_publishes_nothing() -> None:
    async def script(rig: CommitRig) -> None:
        rig.submit(request())
        await rig.settle()
        rig.now_ms.offset_ms += 5_000
        rig.submit(request(session_epoch=2))

    rig = play(script)
    first, second = (w.committed for w in rig.waiters)
    assert second == replace(first, duplicate=True)
    assert len(rig.outbox.records()) == 1


@pytest.mark.contract("COM-08")
@pytest.mark.parametrize("operation", ["reserve", "publish", "mark"])
def test_a_retry_in_flight_joins_and_publishes_once(operation: str) -> None:
    async def script(rig: CommitRig) -> None:
        gate = rig.hooks.block(operation)
        rig.submit(request())
        while not rig.hooks.calls[operation]:
            await rig_pass()
        rig.submit(request())
        rig.submit(request())
        gate.set()

    rig = play(script)
    assert len({w.committed.message_id for w in rig.waiters}) == 1
    assert len(rig.outbox.records()) == 1


@pytest.mark.contract("COM-05")
@pytest.mark.parametrize("settle_first", [True, False])
def test_another_message_under_a_used_id_is_refused(settle_first: bool) -> None:  # noqa: FBT001
    async def script(rig: CommitRig) -> None:
        rig.submit(request())
        if settle_first:
            await rig.settle()
        rig.submit(request(body=b"other"))
        rig.submit(request(recipient=3))

    rig = play(script)
    assert [w.error.code for w in rig.waiters[1:]] == [ErrorCode.IDEMPOTENCY_CONFLICT] * 2
    assert len(rig.outbox.records()) == 1


@pytest.mark.contract("COM-01", "COM-06", "CON-21")
@pytest.mark.parametrize("state", ["R", "D", "C"])
def test_a_retry_continues_whatever_state_the_first_try_left(state: str) -> None:
    """The first try ran in a process that is gone; its ids win over the retry's."""

    async def script(rig: CommitRig) -> None:
        if state == "R":
            await leave_reserved(rig)
        else:
            rig.hooks.add(
                "publish" if state == "D" else "mark", "stop" if state == "D" else "stop_written"
            )
            rig.submit(request())
            await rig.hooks.stopped.wait()
            await rig.crash()
            rig.forget()
            await rig.start()
        assert rig.store.state(request()) == state
        rig.submit(request())

    rig = play(script)
    committed = rig.waiters[0].committed
    assert committed.duplicate
    assert committed.conversation_seq == 1
    assert visible(rig) == [committed.message_id]


async def leave_reserved(rig: CommitRig) -> None:
    """A crash between RESERVED and RECORDED, which only the two-step form can show."""
    commit: CommitStep = rig.commit
    asked = request()
    intent = commit.intents.admit(asked, lambda _: None)
    assert intent is not None
    (result,) = await rig.store.reserve_only([commit._prepare(intent)])
    assert getattr(result, "state", None) == "R"
    await rig.crash()
    rig.forget()
    await rig.start()


# --- answers that do not come --------------------------------------------------------------------------------

FAULTS = ["fail", "lose_reply", "refuse"]


@pytest.mark.contract("COM-01", "COM-08", "LOG-04")
@pytest.mark.parametrize("operation", ["reserve", "publish", "mark"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("times", [1, 7])
@pytest.mark.parametrize("as_results", [True, False])
def test_an_unknown_outcome_is_replayed_in_place(
    operation: str, fault: str, times: int, as_results: bool  # noqa: FBT001
) -> None:
    async def script(rig: CommitRig) -> None:
        rig.store.errors_as_results = as_results
        rig.hooks.add(operation, *[fault] * times)
        for number in range(1, 31):
            rig.submit(request(number, recipient=2000 + number % 4))
            if number % 5 == 0:
                await rig_pass()

    rig = play(script)
    assert len(visible(rig)) == 30
    assert [w.committed.duplicate for w in rig.waiters] == [False] * 30
    duplicates = len(rig.outbox.records()) - 30
    assert (duplicates > 0) == (operation == "publish" and fault == "lose_reply")


@pytest.mark.contract("COM-08")
def test_later_messages_wait_behind_a_page_with_an_unknown_outcome() -> None:
    async def script(rig: CommitRig) -> None:
        rig.hooks.add("publish", "fail", "fail")
        rig.submit(request(1))
        while rig.hooks.calls["publish"] < 1:
            await rig_pass()
        rig.submit(request(2))
        rig.submit(request(3))

    rig = play(script)
    bodies = [MESSAGE_RECORD.decode(o["record"])["event"]["body"] for o in rig.outbox.records()]
    assert bodies == [b"message 1", b"message 2", b"message 3"]


def test_one_outbox_partition_that_fails_is_repeated_alone() -> None:
    async def script(rig: CommitRig) -> None:
        for number in range(1, 41):
            rig.submit(request(number, recipient=2000 + number))
        rig.outbox.refused = {0, 2}
        while len(rig.outbox.pages) < 3:
            await rig_sleep()
        rig.outbox.refused = set()

    rig = play(script)
    assert len(rig.outbox.records()) == len(visible(rig)) == 40  # no partition was written twice


async def rig_sleep() -> None:
    """A moment of virtual time, which passes at once."""
    await asyncio.sleep(0.01)


def test_dispatch_ids_of_a_duplicate_outbox_record_are_the_same() -> None:
    """What COM-08 leans on: a republished record fans out to the same dispatches."""

    async def script(rig: CommitRig) -> None:
        rig.hooks.add("publish", "lose_reply")
        rig.submit(request())

    rig = play(script)
    one, two = rig.outbox.records()
    assert one == two
    ids = [
        [dispatch_id_of(int.from_bytes(o["message_id"], "big"), s) for s in o["target_shards"]]
        for o in (one, two)
    ]
    assert ids[0] == ids[1]


def test_a_damaged_commit_fails_its_own_waiter_only() -> None:
    async def script(rig: CommitRig) -> None:
        gate = rig.hooks.block("mark")
        rig.submit(request(1))
        rig.submit(request(2))
        while not rig.hooks.calls["mark"]:
            await rig_pass()
        del rig.store._commits[0, 1001, id16(1)]
        gate.set()

    rig = play(script)
    assert rig.waiters[0].error.code is ErrorCode.INTERNAL
    assert rig.waiters[1].committed.conversation_seq == 2


# --- crash points (REG-08, REG-09) ---------------------------------------------------------------------------

# (operation, fault): the process dies in the middle of that numbered step
CRASH_POINTS = [
    ("reserve", "stop"),
    ("reserve", "stop_written"),
    ("publish", "stop"),
    ("publish", "stop_written"),
    ("mark", "stop"),
    ("mark", "stop_written"),
]


async def crash_at(rig: CommitRig, operation: str, fault: str) -> list[Waiter]:
    """Send five messages of which the first three meet the crash; the writer is then started again."""
    rig.hooks.add(operation, fault)
    sent = [rig.submit(request(number)) for number in range(1, 4)]
    await rig.hooks.stopped.wait()
    assert [w.result for w in sent] == [None] * 3  # REG-08: no ACK before COMMITTED
    await rig.crash()
    rig.forget()
    await rig.start()
    return sent


@pytest.mark.contract("REG-08", "COM-01", "COM-03")
@pytest.mark.parametrize(("operation", "fault"), CRASH_POINTS)
def test_reg_08_no_ack_before_committed_and_a_retry_finishes_the_message(
    operation: str, fault: str
) -> None:
    async def script(rig: CommitRig) -> None:
        await crash_at(rig, operation, fault)
        for number in range(1, 6):
            rig.submit(request(number))

    rig = play(script)
    assert [w.committed.conversation_seq for w in rig.waiters] == [1, 2, 3, 4, 5]
    assert visible(rig) == [w.committed.message_id for w in rig.waiters]
    written = (operation, fault) != ("reserve", "stop")
    assert [w.committed.duplicate for w in rig.waiters] == [written] * 3 + [False] * 2


@pytest.mark.contract("REG-09", "COM-03", "COM-10")
@pytest.mark.parametrize(("operation", "fault"), CRASH_POINTS[1:])
def test_reg_09_the_recoverer_has_the_whole_payload_without_the_client(
    operation: str, fault: str
) -> None:
    async def script(rig: CommitRig) -> None:
        await crash_at(rig, operation, fault)
        recovered = await rig.recover()
        assert recovered == (0 if (operation, fault) == ("mark", "stop_written") else 3)
        assert {rig.store.state(request(n)) for n in range(1, 4)} == {"C"}

    rig = play(script)
    assert len(visible(rig)) == 3
    bodies = {MESSAGE_RECORD.decode(o["record"])["event"]["body"] for o in rig.outbox.records()}
    assert bodies == {b"message 1", b"message 2", b"message 3"}


@pytest.mark.contract("COM-03", "COM-10")
def test_the_recoverer_continues_a_reservation_without_a_record() -> None:
    async def script(rig: CommitRig) -> None:
        await leave_reserved(rig)
        assert await rig.recover() == 1
        assert rig.store.state(request()) == "C"

    assert len(visible(play(script))) == 1


@pytest.mark.contract("COM-25", "COM-10")
def test_one_round_recovers_more_than_a_batch() -> None:
    async def script(rig: CommitRig) -> None:
        for number in range(1, 1201):
            intent = rig.commit.intents.admit(request(number), lambda _: None)
            assert intent is not None
            await rig.store.reserve_and_record([rig.commit._prepare(intent)])
        await rig.crash()
        await rig.start()
        assert await rig.recover() == 1200

    rig = play(script, instances=1)
    assert len(visible(rig)) == 1200


def test_the_recoverer_leaves_alone_what_is_in_flight_here() -> None:
    async def script(rig: CommitRig) -> None:
        gate = rig.hooks.block("publish")
        rig.submit(request())
        while not rig.hooks.calls["publish"]:
            await rig_pass()
        intent = rig.intent()
        assert not rig.commit.resume(intent, "D")
        gate.set()

    assert len(play(script).outbox.records()) == 1


def test_a_retry_joins_the_recoverer() -> None:
    async def script(rig: CommitRig) -> None:
        await crash_at(rig, "publish", "stop")
        gate = rig.hooks.block("publish")
        recovering = asyncio.ensure_future(rig.recover())
        while not len(rig.commit.intents):
            await rig_pass()
        rig.submit(request(1))
        gate.set()
        await recovering

    rig = play(script)
    assert rig.waiters[0].committed.duplicate
    assert len(rig.outbox.records()) == 3


# --- bounds and the end --------------------------------------------------------------------------------------


@pytest.mark.contract("COM-17", "REG-17", "QUOTA-05")
def test_reg_17_a_full_step_reports_it_and_still_answers_everything() -> None:
    async def script(rig: CommitRig) -> None:
        gate = rig.hooks.block("publish")
        for number in range(1, 11):
            assert rig.commit.has_capacity is (number <= 4)
            rig.submit(request(number))
        gate.set()
        await rig.settle()
        assert rig.commit.has_capacity

    rig = play(script, limit=4)
    assert [w.committed.conversation_seq for w in rig.waiters] == list(range(1, 11))


def test_done_is_never_called_from_inside_submit() -> None:
    async def script(rig: CommitRig) -> None:
        refused = rig.submit(request(1, custom_type="x" * 65))
        accepted = rig.submit(request(2))
        assert (refused.calls, accepted.calls) == (0, 0)

    play(script)


def test_stop_drains_what_is_in_flight_and_refuses_what_comes() -> None:
    async def main() -> CommitRig:
        rig = CommitRig()
        await rig.start()
        rig.hooks.add("publish", "fail")  # one backoff while stopping
        for number in range(1, 6):
            rig.submit(request(number))
        stopping = asyncio.ensure_future(rig.commit.stop())
        await rig_pass()
        late = rig.submit(request(9))
        await stopping
        await rig.settle()
        assert late.error.code is ErrorCode.DRAINING
        assert late.error.code.retryable
        return rig

    rig = run(main())
    assert [w.committed.conversation_seq for w in rig.waiters[:5]] == [1, 2, 3, 4, 5]


def test_stop_does_not_wait_for_ever_and_leaves_the_rest_to_the_recoverer() -> None:
    async def main() -> CommitRig:
        rig = CommitRig()
        await rig.start()
        rig.hooks.add("publish", *["fail"] * 100)
        rig.submit(request())
        await rig.commit.stop()
        assert rig.store.state(request()) == "D"
        return rig

    rig = run(main())
    assert rig.waiters[0].state != "C"
