"""`qimctl`: one command, a subcommand a job. Each is imported only when it is asked for."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence

from schemas.errors import QimError

__all__ = ["COMMANDS", "main", "usage"]

# name: (module, its function of argv that returns an exit code, what it does)
COMMANDS = {
    "shards": (
        "ops.qimctl.shards",
        "main_shards",
        "show owner, lease, epoch, W and state of every shard",
    ),
    "shard": ("ops.qimctl.shards", "main_restart", "restart N: have the owner take a shard again"),
    "slots": ("ops.qimctl.slots", "main", "list slots, or move one to another worker in order"),
    "topics": ("ops.qimctl.topics", "main", "show the topics and judge them as a start would"),
    "rebuild": (
        "ops.qimctl.rebuilding",
        "main",
        "throw derived state away, replay the log, prove equality",
    ),
}


def usage() -> str:
    """Return the help text."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, (_, _, about) in COMMANDS.items()]
    return "\n".join(
        ["usage: qimctl COMMAND ...", "", *lines, "", "settings come from QIM_ variables"]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code, 2 for an unknown one, 1 for a refusal or a fault."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(f"qimctl: no command {arguments[0]!r}\n{usage()}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    module, function, _ = command
    try:
        return int(getattr(importlib.import_module(module), function)(arguments[1:]) or 0)
    except QimError as problem:
        print(f"qimctl {arguments[0]}: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
