"""Any schedule of faults, crashes, retries and recoverers: acknowledged once means visible once, in order."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ports import CommittedMessage
from schemas.records import MESSAGE_RECORD
from tests.support.commit_fakes import CommitRig, request
from tests.support.virtual_time import run

FAULTS = st.sampled_from(["ok", "fail", "lose_reply", "refuse", "stop", "stop_written"])
OPERATIONS = st.sampled_from(["reserve", "publish", "mark"])

# What happens next: a message (its number decides sender and recipient), a fault in waiting, a pause, a recoverer.
Event = tuple[str, int] | tuple[str, str, str]
EVENTS: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 9)),
        st.tuples(st.just("fault"), OPERATIONS, FAULTS),
        st.tuples(st.just("pause"), st.integers(0, 50)),
        st.tuples(st.just("recover"), st.just(0)),
    ),
    max_size=25,
)


class Schedule:
    """Plays events; after a crash every second lost message is sent again, the recoverer finishes the others."""

    def __init__(self) -> None:
        self.rig = CommitRig()

    async def play(self, events: list[Event]) -> CommitRig:
        rig = self.rig
        await rig.start()
        for event in events:
            await self._step(event)
            await self._restart_if_stopped()
        rig.hooks._next.clear()
        await self._until_answered()
        await self._recover()
        await self._until_answered()
        await rig.commit.stop()
        return rig

    async def _step(self, event: Event) -> None:
        kind, value, *rest = event
        if kind == "fault":
            self.rig.hooks.add(str(value), *rest)
            return
        number = int(value)
        if kind == "send":
            asked = request(number, user=1000 + number % 2, recipient=2000 + number % 3)
            self.rig.submit(asked)
        elif kind == "pause":
            await asyncio.sleep(number / 1000)
        else:
            await self._recover()

    async def _recover(self) -> None:
        recovering = asyncio.ensure_future(self.rig.recover())
        stopped = asyncio.ensure_future(self.rig.hooks.stopped.wait())
        await asyncio.wait({recovering, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (recovering, stopped):
            task.cancel()
        await asyncio.gather(recovering, stopped, return_exceptions=True)

    async def _until_answered(self) -> None:
        await self._restart_if_stopped()
        while any(waiter.result is None for waiter in self.rig.waiters):
            await asyncio.sleep(0.05)  # virtual time: passes at once
            await self._restart_if_stopped()

    async def _restart_if_stopped(self) -> None:
        rig = self.rig
        if not rig.hooks.stopped.is_set():
            return
        await rig.crash()
        lost = [waiter.asked for waiter in rig.waiters if waiter.result is None]
        rig.forget()
        await rig.start()
        for asked in lost[::2]:
            rig.submit(asked)


@pytest.mark.contract("COM-01", "COM-08", "SEQ-05", "REG-08", "REG-09")
@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_every_acknowledged_message_is_in_the_outbox_once_and_in_order(events: list[Event]) -> None:
    rig = run(Schedule().play(events))
    seen: dict[bytes, tuple[int, bytes]] = {}
    for messages in rig.outbox.messages().values():
        order = []
        for message in messages:
            key, encoded = message["client_message_id"], MESSAGE_RECORD.encode(message)
            seq = int.from_bytes(message["event"]["conversation_seq"], "big")
            if key not in seen:
                order.append(seq)
            assert seen.setdefault(key, (seq, encoded)) == (seq, encoded)
        assert sorted(order) == list(range(1, len(order) + 1))
    for waiter in rig.waiters:
        result = waiter.result
        assert isinstance(result, CommittedMessage), result
        assert waiter.calls == 1
        assert waiter.state == "C"
        assert seen[waiter.asked.client_message_id][0] == result.conversation_seq
    assert all(commit.state == "C" for commit in rig.store._commits.values())
    assert len(seen) == len(rig.store._commits)
