"""The commit step over a store and an outbox that fail on demand, and over crashes at each numbered step."""

import asyncio

import pytest

from schemas.errors import ErrorCode
from schemas.identifiers import dispatch_id_of
from schemas.records import MESSAGE_RECORD
from tests.support.commit_fakes import CommitRig, Waiter, request
from tests.support.commit_scripts import leave_reserved, play, rig_pass, rig_sleep, visible
from tests.support.samples import id16
from tests.support.virtual_time import run

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


@pytest.mark.contract("REG-17", "COM-18")
def test_a_stop_that_runs_out_of_time_tells_every_waiter() -> None:
    async def main() -> None:
        rig = CommitRig()
        commit = await rig.start()
        rig.hooks.block("publish")
        waiters = [rig.submit(request(number)) for number in range(1, 4)]
        while not rig.hooks.calls["publish"]:
            await rig_pass()

        await commit.stop()

        assert [waiter.error.code for waiter in waiters] == [ErrorCode.DRAINING] * 3
        assert len(commit.intents) == 0

    run(main())
