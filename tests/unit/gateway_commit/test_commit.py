"""The commit step: the plain path, refused requests, retries; its steps are numbered in docs/commit.md."""

from dataclasses import replace

import pytest

from schemas.errors import ErrorCode
from schemas.identifiers import shard_of, trace_id_of
from schemas.records import MESSAGE_RECORD
from tests.support.commit_fakes import SHARDS, CommitRig, request
from tests.support.commit_scripts import leave_reserved, play, rig_pass, visible
from tests.support.samples import id16
from tests.support.virtual_time import run

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


# --- refused requests ----------------------------------------------------------------------------------------


@pytest.mark.contract("COM-06")
def test_a_refused_request_uses_no_sequence_and_touches_no_other() -> None:
    async def script(rig: CommitRig) -> None:
        rig.submit(request(1))
        rig.submit(request(1, body=b"another message"))
        rig.submit(request(3))

    rig = play(script)
    one, two, three = rig.waiters
    assert (one.committed.conversation_seq, three.committed.conversation_seq) == (1, 2)
    assert two.error.code is ErrorCode.IDEMPOTENCY_CONFLICT


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
