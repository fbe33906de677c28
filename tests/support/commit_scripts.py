"""Scripts against one commit step, and what every one of them must leave behind."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.commit import CommitStep
from gateway.ports import CommittedMessage
from schemas.records import MESSAGE_RECORD
from tests.support.commit_fakes import CommitRig, request
from tests.support.virtual_time import run

__all__ = ["leave_reserved", "play", "rig_pass", "rig_sleep", "visible"]

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


async def rig_pass() -> None:
    """One pass of the event loop."""
    await asyncio.sleep(0)


async def rig_sleep() -> None:
    """A moment of virtual time, which passes at once."""
    await asyncio.sleep(0.01)


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
