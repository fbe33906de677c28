"""Scripts against one running shard, and what a device then pulls."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from schemas.entry import decode_entry
from tests.support.dispatch_fakes import dispatch, log, users_of
from tests.support.records import FakeRecord
from tests.support.virtual_time import VirtualClock, run
from tests.support.worker_rig import Durable, WorkerRig

__all__ = ["SHARD", "A", "B", "C", "bodies", "logged", "made", "numbers", "passes", "play"]

SHARD: Final = 3
A, B, C = users_of(SHARD, 3)
Script = Callable[[WorkerRig], Coroutine[Any, Any, None]]


def made(number: int, users: Sequence[int] = (A, B), **change: object) -> Any:
    return dispatch(number, users, SHARD, **change)


def logged(count: int) -> list[FakeRecord]:
    return log([made(number) for number in range(1, count + 1)])


def play(
    script: Script, records: Sequence[FakeRecord], shards: Sequence[int] = (SHARD,)
) -> Durable:
    """Run a script on a started worker that has `records` to read, then stop it."""

    async def main() -> Durable:
        durable = Durable(VirtualClock())
        durable.dispatch[SHARD] = list(records)
        worker = WorkerRig(durable)
        await worker.start(shards)
        await script(worker)
        await worker.stop()
        return durable

    return run(main())


async def numbers(durable: Durable, user: int = A) -> list[int]:
    """conversation_seq of what a user's device pulls."""
    entries = [decode_entry(entry) for entry in await durable.entries(SHARD, user)]
    return [int.from_bytes(entry["event"]["body"] or b"", "big") for entry in entries]


def bodies(count: int, first: int = 1) -> list[int]:
    return [int.from_bytes(b"message %d" % n, "big") for n in range(first, first + count)]


async def passes(count: int = 1) -> None:
    """Passes of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)
