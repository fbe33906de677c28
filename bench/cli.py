"""`qim bench`: measure a stack that it starts itself, or one that runs (`--attach host:port`).

    qim bench pair --pairs 50 --rate 1000 --seconds 20 --json FILE
    qim bench ladder --json FILE
    qim bench offline --messages 2000 --json FILE
    qim bench faults --minutes 10 --seed 1 --json FILE      (and what else bench/trials.py has; always a stack of its own)

The exit code is 0 when the measurement itself was sound: nothing acknowledged was lost, nothing arrived twice or out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench.ladder import LadderOptions, climb
from bench.load import LoadOptions
from bench.offline import OfflineOptions, run_offline
from bench.pair import PairOptions, run_pair
from bench.report import PairReport, check_report, write_report
from bench.target import Target, attached, target_of
from bench.trials import TRIALS, add_trials, run_trial
from ops.plan import StackOptions
from ops.servers.process import ProcessFailedError
from ops.servers.provision import ProvisionError
from ops.stack import Stack
from schemas.errors import Bug

__all__ = ["main", "parse"]


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ends the process on a wrong one, as argparse does."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", type=Path, required=True, help="where the report goes")
    shared.add_argument("--attach", metavar="HOST:PORT", help="measure this gateway's stack")
    shared.add_argument(
        "--data", type=Path, help="folder of the stack (attach: of the running one)"
    )
    shared.add_argument("--workers", type=int, default=1)
    shared.add_argument("--gateways", type=int, default=1)
    shared.add_argument("--shards", type=int, default=StackOptions().shards)
    shared.add_argument("--body-bytes", type=int, default=64)
    load = argparse.ArgumentParser(add_help=False)
    load.add_argument("--pairs", type=int, default=50)
    load.add_argument("--seconds", type=float, default=20.0)
    load.add_argument("--warmup-s", type=float, default=8.0)
    load.add_argument("--drain-s", type=float, default=10.0)
    load.add_argument("--pull-debounce-s", type=float, default=1.0)
    parser = argparse.ArgumentParser(prog="qim bench", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    pair = commands.add_parser("pair", parents=[shared, load], help="one rate")
    pair.add_argument("--rate", type=float, required=True, help="messages a second")
    ladder = commands.add_parser("ladder", parents=[shared, load], help="the highest rate")
    ladder.add_argument("--start", type=float, default=LadderOptions().start_per_s)
    ladder.add_argument("--step", type=float, default=LadderOptions().step_per_s)
    ladder.add_argument("--max", type=float, default=LadderOptions().max_per_s)
    offline = commands.add_parser("offline", parents=[shared], help="login after an absence")
    offline.add_argument("--messages", type=int, default=OfflineOptions().messages)
    offline.add_argument("--repeats", type=int, default=OfflineOptions().repeats)
    add_trials(commands)
    return parser.parse_args(argv)


@asynccontextmanager
async def _target(options: argparse.Namespace) -> AsyncIterator[Target]:
    if options.attach is not None:
        yield attached(options.attach, options.data or Path(".qim/up"))
        return
    counts = StackOptions(shards=options.shards, workers=options.workers, gateways=options.gateways)
    with tempfile.TemporaryDirectory(prefix="qim-bench-") as folder:
        async with Stack(options.data or Path(folder), counts, say=_say) as stack:
            yield target_of(stack)


def _load(options: argparse.Namespace) -> LoadOptions:
    return LoadOptions(options.pairs, options.body_bytes, options.drain_s, options.pull_debounce_s)


async def _measure(
    target: Target, options: argparse.Namespace, rate: float, warmup_s: float
) -> PairReport:
    pair = PairOptions(rate, options.seconds, warmup_s, _load(options))
    report = await run_pair(target, pair, _say)
    wrong = check_report(report)
    if wrong:
        raise Bug(f"the report is not what it promises: {'; '.join(wrong)}")
    return report


def _sound(report: PairReport) -> bool:
    return not (
        report["duplicates"]
        or report["order_breaks"]
        or report["strangers"]
        or report["acked_not_delivered"]
    )


async def _pair(target: Target, options: argparse.Namespace) -> int:
    report = await _measure(target, options, options.rate, options.warmup_s)
    write_report(options.json, report)
    _say(
        f"{report['offered_per_s']}/s offered, {report['delivered_share']:.2%} delivered, "
        f"ACK {report['ack_ms']}, e2e {report['e2e_ms']}, "
        f"{report['server_cpu_ms_per_message']} ms of server CPU a message"
    )
    return 0 if _sound(report) else 1


async def _ladder(target: Target, options: argparse.Namespace) -> int:
    ladder = LadderOptions(options.start, options.step, options.max, options.seconds)
    warmed = False

    async def measure(rate: float) -> PairReport:
        nonlocal warmed
        warmup_s = options.warmup_s if not warmed else min(2.0, options.warmup_s)
        warmed = True
        return await _measure(target, options, rate, warmup_s)

    report = await climb(ladder, measure, _say)
    write_report(options.json, report)
    _say(f"top_per_s {report['top_per_s']:g}")
    return 0 if report["top_per_s"] > 0 else 1


async def _offline(target: Target, options: argparse.Namespace) -> int:
    wanted = OfflineOptions(options.messages, options.body_bytes, options.repeats)
    report = await run_offline(target, wanted, _say)
    write_report(options.json, report)
    _say(f"messages_per_s {report['messages_per_s']:g}")
    return 1 if report["missing"] or report["duplicates"] or report["order_breaks"] else 0


_COMMANDS = {"pair": _pair, "ladder": _ladder, "offline": _offline}


async def _run(options: argparse.Namespace) -> int:
    async with _target(options) as target:
        return await _COMMANDS[options.command](target, options)


def main(argv: Sequence[str]) -> int:
    """Run `qim bench`; returns 0 for a sound measurement, 1 otherwise."""
    options = parse(argv)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            trial = options.command in TRIALS
            return runner.run(run_trial(options, _say) if trial else _run(options))
    except (ProcessFailedError, ProvisionError, OSError) as problem:
        _say(str(problem))
        return 1
