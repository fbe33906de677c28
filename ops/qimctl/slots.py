"""`qimctl slots list` and `qimctl slots move SLOT --to WORKER`: who holds which slot, and hand one over in order (design §5).

A move is an order on the board: the owner finishes its pages in hand and releases, then the target claims. Nobody waits for a
lease to run out, and nothing is taken from a worker that does not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from ops.qimctl.system import System, open_system
from schemas.config import Settings
from schemas.errors import ServerFault, StartRefused
from stores.slots import SlotBoard

__all__ = ["SlotLine", "main", "move_slot", "slot_lines"]

_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class SlotLine:
    """One slot: who holds the leases of its shards (several only in the middle of a change), and what is ordered."""

    slot: int
    shards: Sequence[int]
    owners: Sequence[str]
    last_owner: str
    moving_to: str


def _board(system: System) -> SlotBoard:
    settings = system.settings
    return SlotBoard(system.mailbox[0], settings.app_id, settings.slot_count)


async def slot_lines(system: System) -> tuple[list[SlotLine], dict[str, list[int]]]:
    """Every slot, and the living workers with the slots that they say they hold."""
    living, orders = await _board(system).beat()
    records = await system.leases.owners(range(system.shards))
    count = system.settings.slot_count
    lines = []
    for slot in range(count):
        shards = list(range(slot, system.shards, count))
        owners = sorted({records[shard].owner for shard in shards} - {""})
        last = {records[shard].last_owner for shard in shards} - {""}
        lines.append(SlotLine(slot, shards, owners, ",".join(sorted(last)), orders.get(slot, "")))
    return lines, {name: list(words.slots) for name, words in sorted(living.items())}


async def move_slot(system: System, slot: int, target: str, timeout_s: float) -> float:
    """Have a slot handed to a living worker; returns the seconds it took.

    Raises StartRefused for a slot or worker that is not there, ServerFault when it did not happen in time.
    """
    lines, living = await slot_lines(system)
    if not 0 <= slot < len(lines):
        raise StartRefused(f"there is no slot {slot}: 0..{len(lines) - 1}")
    if target not in living:
        raise StartRefused(f"no worker {target} lives; there are: {', '.join(living) or 'none'}")
    begin_s = time.monotonic()
    await _board(system).order(slot, target)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                lines, living = await slot_lines(system)
                if lines[slot].owners == [target] and slot in living.get(target, ()):
                    return time.monotonic() - begin_s
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ServerFault(
            f"slot {slot} is not at {target} after {timeout_s:g} s; held by {lines[slot].owners}"
        ) from None


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="qimctl slots", description="show or move slots")
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="who holds which slot")
    listing.add_argument("--json", action="store_true", help="one JSON object")
    move = actions.add_parser("move", help="hand a slot to another worker, in order")
    move.add_argument("slot", type=int)
    move.add_argument("--to", required=True, metavar="WORKER")
    move.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds to wait")
    return parser.parse_args(argv)


def _print_lines(lines: Sequence[SlotLine], living: dict[str, list[int]]) -> None:
    for line in lines:
        owners = ",".join(line.owners) or f"nobody (last: {line.last_owner or 'nobody'})"
        moving = f" -> {line.moving_to}" if line.moving_to else ""
        print(f"slot {line.slot}: {owners}{moving}; shards {','.join(map(str, line.shards))}")
    for name, slots in living.items():
        print(f"worker {name}: {','.join(map(str, slots)) or 'spare'}")


def main(argv: Sequence[str]) -> int:
    """`qimctl slots`: 0, or 1 when a listed slot has no owner."""
    arguments = _parse(argv)

    async def run() -> int:
        async with open_system(Settings()) as system:
            if arguments.action == "move":
                took_s = await move_slot(system, arguments.slot, arguments.to, arguments.timeout)
                print(f"slot {arguments.slot} is at {arguments.to} after {took_s:.1f} s")
                return 0
            lines, living = await slot_lines(system)
            if arguments.json:
                print(json.dumps({"slots": [asdict(line) for line in lines], "workers": living}))
            else:
                _print_lines(lines, living)
            return int(not all(line.owners for line in lines))

    return asyncio.run(run())
