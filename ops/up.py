"""`qim up`: keep a stack running until Ctrl-C or SIGTERM.

Progress goes to standard error; standard output gets one line of JSON with every address once all
of it serves. A process that ends by itself ends the stack with exit code 1 (`--restart`: it is
reported and started again).
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ops.plan import StackOptions
from ops.servers.process import ProcessFailedError
from ops.servers.provision import ProvisionError
from ops.stack import Stack

__all__ = ["main", "ready_line"]

_WATCH_S = 0.25


def ready_line(stack: Stack) -> str:
    """Return the line that tells that the stack serves: JSON with addresses and process ids."""
    return json.dumps(
        {
            "ready": True,
            "data": str(stack.folder),
            "addresses": stack.addresses,
            "processes": stack.processes,
        }
    )


def _say(text: str) -> None:
    print(f"qim up: {text}", file=sys.stderr, flush=True)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="qim up", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".qim/up"), help="folder of all state")
    defaults = StackOptions()
    for name, about in (
        ("shards", "mailbox shards, a power of two, fixed with the data folder"),
        ("workers", "Faust workers"),
        ("gateways", "gateways"),
        ("mailbox-redis", "mailbox Redis instances, fixed with the data folder"),
        ("commit-redis", "commit Redis instances, fixed with the data folder"),
    ):
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=int, default=default, help=about)
    parser.add_argument("--restart", action="store_true", help="start crashed processes again")
    return parser.parse_args(argv)


async def _keep_running(stack: Stack, stopped: asyncio.Event, *, restart: bool) -> int:
    while not stopped.is_set():
        for name, failure in stack.crashed().items():
            _say(str(failure))
            if not restart:
                return 1
            await stack.restart(name)
        try:
            await asyncio.wait_for(stopped.wait(), _WATCH_S)
        except TimeoutError:
            continue
    return 0


async def _run(arguments: argparse.Namespace) -> int:
    options = StackOptions(
        shards=arguments.shards,
        workers=arguments.workers,
        gateways=arguments.gateways,
        mailbox_redis=arguments.mailbox_redis,
        commit_redis=arguments.commit_redis,
    )
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stopped.set)
    stack = Stack(arguments.data, options, say=_say)
    starting = asyncio.ensure_future(stack.start())
    signalled = asyncio.ensure_future(stopped.wait())
    await asyncio.wait((starting, signalled), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not starting.done():
        starting.cancel()  # it stops what it has started
        await asyncio.wait((starting,))
        return 0
    await starting
    try:
        print(ready_line(stack), flush=True)
        return await _keep_running(stack, stopped, restart=arguments.restart)
    finally:
        await stack.stop()


def main(argv: Sequence[str]) -> int:
    """Run `qim up`; returns 0 after an orderly stop, 1 after a failure."""
    try:
        return asyncio.run(_run(_parse(argv)))
    except (ProcessFailedError, ProvisionError) as problem:
        _say(str(problem))
        return 1
