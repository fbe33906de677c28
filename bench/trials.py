"""The subcommands of `qim bench` that need a stack of their own, because they hurt it: bench/cli.py calls them."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from bench.faults import FaultOptions, run_faults
from bench.lanes import LaneOptions, run_lanes
from bench.overload import OverloadOptions, run_overload
from bench.report import write_report
from bench.takeover import TakeoverOptions, run_takeover
from bench.target import target_of
from ops.plan import StackOptions
from ops.stack import Stack

__all__ = ["TRIALS", "add_trials", "run_trial"]

Say = Callable[[str], None]
_FAULT_STACK: Final = StackOptions(workers=2, gateways=2, mailbox_redis=2, commit_redis=2)


def add_trials(commands: Any) -> None:
    """Add the subcommands to the parser of `qim bench`."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", type=Path, required=True, help="where the report goes")
    shared.add_argument("--data", type=Path, help="folder of the stack; a temporary one without it")
    faults = commands.add_parser("faults", parents=[shared], help="kill and pause at random")
    faults.add_argument("--minutes", type=float, default=10.0)
    faults.add_argument("--seed", type=int, default=1)
    faults.add_argument("--rate", type=float, default=FaultOptions().rate_per_s)
    faults.add_argument("--pairs", type=int, default=FaultOptions().pairs)
    lanes = commands.add_parser("lanes", parents=[shared], help="direct messages beside wide ones")
    lanes.add_argument("--recipients", type=int, default=LaneOptions().recipients)
    lanes.add_argument("--repeats", type=int, default=LaneOptions().repeats)
    lanes.add_argument("--rate", type=float, default=LaneOptions().rate_per_s)
    overload = commands.add_parser("overload", parents=[shared], help="far above what it can take")
    overload.add_argument("--seconds", type=float, default=OverloadOptions().seconds)
    overload.add_argument("--base", type=float, default=OverloadOptions().base_per_s)
    overload.add_argument("--factor", type=float, default=OverloadOptions().factor)
    takeover = commands.add_parser("takeover", parents=[shared], help="kill a worker for good")
    takeover.add_argument("--shards", type=int, default=64)
    takeover.add_argument("--rate", type=float, default=TakeoverOptions().rate_per_s)


async def _overload(options: argparse.Namespace, folder: Path, say: Say) -> dict[str, Any]:
    wanted = OverloadOptions(options.base, options.factor, options.seconds)
    async with Stack(folder, StackOptions(), say=say) as stack:
        return await run_overload(target_of(stack), wanted, say)


async def _takeover(options: argparse.Namespace, folder: Path, say: Say) -> dict[str, Any]:
    counts = StackOptions(shards=options.shards, workers=2)
    histories = options.json.with_suffix(".histories")
    async with Stack(folder, counts, say=say) as stack:
        return await run_takeover(stack, TakeoverOptions(options.rate), histories, say)


async def _lanes(options: argparse.Namespace, folder: Path, say: Say) -> dict[str, Any]:
    wanted = LaneOptions(options.recipients, options.repeats, options.rate)
    async with Stack(folder, StackOptions(), say=say) as stack:
        return await run_lanes(target_of(stack), wanted, say)


async def _faults(options: argparse.Namespace, folder: Path, say: Say) -> dict[str, Any]:
    wanted = FaultOptions(options.minutes * 60, options.seed, options.rate, options.pairs)
    histories = options.json.with_suffix(".histories")
    async with Stack(folder, _FAULT_STACK, say=say) as stack:
        return await run_faults(stack, wanted, histories, say)


TRIALS: Final[dict[str, Callable[[argparse.Namespace, Path, Say], Awaitable[dict[str, Any]]]]] = {
    "faults": _faults,
    "lanes": _lanes,
    "overload": _overload,
    "takeover": _takeover,
}


async def run_trial(options: argparse.Namespace, say: Say) -> int:
    """Run one trial, write its report; returns 0 when it was sound."""
    with tempfile.TemporaryDirectory(prefix="qim-bench-") as temporary:
        report = await TRIALS[options.command](options, options.data or Path(temporary), say)
    write_report(options.json, report)
    say(f"{options.command}: {report}")
    return 0 if report["sound"] else 1
