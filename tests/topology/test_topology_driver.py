"""Messages through the whole pipeline, in one process: what arrives, what a crash leaves, and any schedule of both."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ports import CommitRequest, CommittedMessage
from schemas.entry import MailboxEntry
from schemas.identifiers import lane_of, shard_of
from schemas.records import GROUP_DISPATCH, WATERMARK_ROW
from streams.materialize_core import HEAVY_RECIPIENTS
from tests.support.commit_fakes import Waiter, request
from tests.support.dispatch_fakes import SHARDS, dispatch, users_of
from tests.support.samples import id16
from tests.support.topology_driver import TopologyDriver
from tests.support.virtual_time import run
from tests.support.worker_rig import Durable, WorkerRig

ALICE, BOB, CAROL = 1001, 2002, 3003


@pytest.fixture
def driver() -> Iterator[TopologyDriver]:
    with TopologyDriver() as made:
        yield made


def body(entry: MailboxEntry) -> bytes:
    return entry["event"]["body"] or b""


@pytest.mark.contract("DISP-11", "EVT-11", "COM-01", "SEQ-21")
def test_a_message_arrives_at_both_people_with_the_coordinates_of_its_ack(
    driver: TopologyDriver,
) -> None:
    waiter = driver.send(request(1))
    driver.settle()
    committed = waiter.committed
    for user in (ALICE, BOB):
        (entry,) = driver.pull(user)
        assert body(entry) == b"message 1"
        assert entry["event"]["message_id"] == committed.message_id
        assert (
            int.from_bytes(entry["event"]["conversation_seq"], "big") == committed.conversation_seq
        )
        assert entry["event"]["created_at_ms"] == committed.committed_at_ms
        assert entry["client_message_id"] == (id16(1) if user == ALICE else None)
    pushed = [r["user_id"] for _, batch in driver.durable.pushes for r in batch["recipients"]]
    assert sorted(pushed) == [ALICE, BOB]


def test_a_note_to_oneself_arrives_once(driver: TopologyDriver) -> None:
    driver.send(request(1, ALICE, ALICE))
    driver.settle()
    assert [body(entry) for entry in driver.pull(ALICE)] == [b"message 1"]


@pytest.mark.contract("SEQ-05")
def test_a_conversation_arrives_in_order_at_both_sides(driver: TopologyDriver) -> None:
    for number in range(1, 40):
        driver.send(request(number, *((ALICE, BOB) if number % 3 else (BOB, ALICE))))
        if number % 5 == 0:
            driver.run(0.01)
    driver.settle()
    for user in (ALICE, BOB):
        seqs = [int.from_bytes(e["event"]["conversation_seq"], "big") for e in driver.pull(user)]
        assert seqs == list(range(1, 40))


@pytest.mark.contract("MBX-57", "WM-10", "CUR-11")
def test_nothing_is_shown_before_w_covers_it(driver: TopologyDriver) -> None:
    driver.fault("watermark", "stop")
    driver.send(request(1, ALICE, ALICE))
    driver.run(5)
    assert driver.stopped
    shard = shard_of(0, ALICE, SHARDS)
    assert len(driver.durable.mailboxes.mailboxes) == 1  # the entry is there, W is not
    assert driver.watermark(ALICE) == -1
    assert driver.pull(ALICE) == []
    driver.crash_worker()
    driver.settle()
    assert len(driver.pull(ALICE)) == 1
    assert driver.watermark(ALICE) == len(driver.durable.dispatch[shard]) - 1


@pytest.mark.contract("COM-08", "DISP-07", "FAN-02")
def test_duplicates_of_every_log_arrive_once(driver: TopologyDriver) -> None:
    driver.fault("publish", "lose_reply")
    driver.fault("dispatch", "lose_reply", "lose_reply")
    for number in (1, 2, 3):
        driver.send(request(number))
    driver.settle()
    assert len(driver.rig.outbox.records()) > 3
    dispatched = sum(map(len, driver.durable.dispatch.values()))
    assert dispatched > 2 * 3
    for user in (ALICE, BOB):
        assert [body(e) for e in driver.pull(user)] == [b"message 1", b"message 2", b"message 3"]


@pytest.mark.contract("TAKE-05", "WM-07")
def test_lanes_stay_closed_while_a_mailbox_that_lost_data_is_replayed(
    driver: TopologyDriver,
) -> None:
    driver.send(request(1))
    driver.settle()
    snapshot = driver.mailbox_state()
    driver.send(request(2))
    driver.settle()
    before = driver.pull_raw(BOB)
    driver.crash_worker(mailbox=snapshot)
    assert driver.watermark(BOB) is None  # SHARD_MOVED, not "nothing there"
    driver.settle()
    assert driver.watermark(BOB) is not None
    assert driver.pull_raw(BOB) == before


@pytest.mark.contract("LANE-03", "LANE-04", "LANE-09", "LANE-10")
def test_a_direct_message_passes_a_wide_dispatch_on_its_shard(
    driver: TopologyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.materialize_core.MAILBOX_WRITE_BATCH_MAX_ENTRIES", 20)
    shard, lane = shard_of(0, ALICE, SHARDS), lane_of(0, ALICE)
    everybody = [u for u in users_of(shard, HEAVY_RECIPIENTS * 4) if lane_of(0, u) != lane]
    wide = GROUP_DISPATCH.encode(dispatch(99, everybody, shard))
    driver.append_dispatches(shard, [(None, wide)])
    driver.rig.hooks.latency_s["append"] = 0.05  # the wide dispatch needs more than 25 of these
    driver.run(0.5)
    driver.send(request(1, ALICE, ALICE))
    driver.run(0.25)
    assert [body(entry) for entry in driver.pull(ALICE)] == [b"message 1"]
    assert not driver.durable.done(shard)
    assert any(driver.pull(user) == [] for user in everybody)
    driver.crash_worker()
    driver.settle()
    for user in everybody[::50]:
        assert len(driver.pull(user)) == 1


# --- any schedule --------------------------------------------------------------------------------------------

PEOPLE = st.sampled_from([ALICE, BOB, CAROL])
FAULTS = st.sampled_from(["fail", "lose_reply", "refuse", "stop", "stop_written"])
WORKER_CALLS = st.sampled_from(
    ["dispatch", "append", "progress", "watermark", "lease", "reposition", "push"]
)
GATEWAY_CALLS = st.sampled_from(["reserve", "publish", "mark"])
Event = tuple[str, int, int] | tuple[str, str, str] | tuple[str, int]
WORKER_EVENTS: list[st.SearchStrategy[Event]] = [
    st.tuples(st.just("send"), PEOPLE, PEOPLE),
    st.tuples(st.just("fault"), WORKER_CALLS, FAULTS),
    st.tuples(st.just("run"), st.integers(0, 60)),
    st.tuples(st.just("worker"), st.integers(0, 2)),
]
GATEWAY_EVENTS: list[st.SearchStrategy[Event]] = [
    st.tuples(st.just("fault"), GATEWAY_CALLS, FAULTS),
    st.tuples(st.just("gateway"), st.just(0)),
]


class Schedule:
    """Plays events and remembers what was shown: a device that saw a prefix must keep it."""

    def __init__(self, driver: TopologyDriver) -> None:
        self.driver = driver
        self.sent: list[Waiter] = []
        self.shown: list[tuple[int, int, list[bytes]]] = []
        self._snapshot = driver.mailbox_state()

    def play(self, events: list[Event]) -> None:
        for event in events:
            self._step(event)
            self._look()
        self.driver.rig.hooks._next.clear()
        for _ in range(3):
            self._revive()
            self.driver.run(5)
        self._revive()
        self.driver.recover()
        self.driver.settle()
        self._look()

    def _step(self, event: Event) -> None:
        kind, first, *rest = event
        driver = self.driver
        if kind == "send":
            number = len(self.sent) + 1
            self.sent.append(driver.send(request(number, int(first), int(rest[0]))))
        elif kind == "fault":
            driver.fault(str(first), str(rest[0]))
        elif kind == "run":
            driver.run(int(first) / 1000)
        elif kind == "worker":
            self._crash_worker(int(first))
        else:
            self._resend(driver.crash_gateway())
        self._revive()

    def _crash_worker(self, how: int) -> None:
        self.driver.crash_worker(lose_disk=how == 1, mailbox=self._snapshot if how == 2 else None)
        self._snapshot = self.driver.mailbox_state()

    def _revive(self) -> None:
        """A hook stopped one of the processes in the middle of a call: it dies there."""
        if self.driver.stopped:
            self._crash_worker(0)
            self._resend(self.driver.crash_gateway())

    def _resend(self, lost: list[CommitRequest]) -> None:
        for asked in lost:
            self.sent.append(self.driver.send(asked))

    def _look(self) -> None:
        for user in (ALICE, BOB, CAROL):
            shown = self.driver.watermark(user)
            if shown is not None:
                self.shown.append((user, shown, self.driver.pull_raw(user)))

    def judge(self, *, ordered: bool) -> None:
        """No loss, no duplicate, order, and nothing that was shown has changed below the W it was shown under."""
        driver = self.driver
        expected: dict[int, set[bytes]] = {ALICE: set(), BOB: set(), CAROL: set()}
        for waiter in self.sent:
            if isinstance(waiter.result, CommittedMessage):
                for user in (waiter.asked.user, waiter.asked.recipient_user_id):
                    expected[user].add(waiter.result.message_id)
        for user, messages in expected.items():
            pulled = driver.pull(user)
            ids = [entry["event"]["message_id"] for entry in pulled]
            assert len(set(ids)) == len(ids)
            assert set(ids) == messages
            for conversation in {entry["event"]["conversation_id"] for entry in pulled}:
                seqs = [
                    int.from_bytes(entry["event"]["conversation_seq"], "big")
                    for entry in pulled
                    if entry["event"]["conversation_id"] == conversation
                ]
                assert sorted(seqs) == list(range(1, len(seqs) + 1))
                assert not ordered or seqs == sorted(seqs)
        for user, up_to, entries in self.shown:
            assert driver.pull_raw(user, up_to) == entries


def replayed(driver: TopologyDriver) -> dict[tuple[int, int], list[bytes]]:
    """Entries of a worker that begins with the dispatch logs alone."""

    async def main() -> dict[tuple[int, int], list[bytes]]:
        fresh = Durable(driver.rig.now_ms)
        fresh.dispatch = driver.durable.dispatch
        worker = WorkerRig(fresh)
        await worker.start()
        await worker.run()
        found = {
            (user, shard): await fresh.entries(shard, user)
            for user in (ALICE, BOB, CAROL)
            for shard in [shard_of(0, user, SHARDS)]
        }
        for shard in range(SHARDS):
            assert fresh.progress(shard).keys() == driver.durable.progress(shard).keys()
            for key, row in fresh.progress(shard).items():
                assert row == driver.durable.progress(shard)[key]
        await worker.stop()
        return found

    return run(main())


@pytest.mark.contract(
    "TAKE-02", "TAKE-09", "WM-01", "WM-02", "EVT-12", "DISP-07", "COM-08", "FAN-02"
)
@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(WORKER_EVENTS), max_size=20))
def test_any_schedule_of_worker_crashes(events: list[Event]) -> None:
    with TopologyDriver() as driver:
        schedule = Schedule(driver)
        schedule.play(events)
        # A `stop` kills both processes, and what the gateway left is resent behind later messages.
        schedule.judge(
            ordered=not any(str(part).startswith("stop") for event in events for part in event)
        )
        for (user, _), entries in replayed(driver).items():
            assert entries == driver.pull_raw(user)


@pytest.mark.contract("COM-01", "COM-08", "REG-08", "REG-09", "TAKE-02")
@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of([*WORKER_EVENTS, *GATEWAY_EVENTS]), max_size=20))
def test_any_schedule_of_crashes_of_both(events: list[Event]) -> None:
    with TopologyDriver() as driver:
        schedule = Schedule(driver)
        schedule.play(events)
        schedule.judge(ordered=False)


@pytest.mark.contract("WM-01", "WM-04")
def test_rows_of_the_watermarks_changelog_never_go_back_within_a_term(
    driver: TopologyDriver,
) -> None:
    driver.fault("append", "ok", "fail", "lose_reply")
    for number in range(1, 20):
        driver.send(request(number))
        driver.run(0.005)
    driver.settle()
    seen = 0
    for (table, _), log in driver.durable.tables.changelogs.items():
        if table != "watermark":
            continue
        rows = [WATERMARK_ROW.decode(value) for _, value in log]
        marks = [(row["lease_term"], int.from_bytes(row["w"][1:7], "big")) for row in rows]
        assert marks == sorted(marks)
        seen += len(marks)
    assert seen > 4
