"""`qim`: one command, a subcommand a job. Each is imported only when it is asked for."""

import importlib
import sys
from collections.abc import Sequence

from schemas.errors import QimError

__all__ = ["COMMANDS", "main", "usage"]

# name: (module with `main(argv) -> int`, what it does)
COMMANDS = {
    "up": ("ops.up", "run the whole stack on this machine until Ctrl-C"),
    "demo": ("ops.demo", "play a scripted conversation on a stack of its own"),
    "gateway": ("gateway.main", "run a gateway against configured servers"),
    "topics": ("ops.topics", "create the topics and check them"),
    "topology": ("streams.topology", "draw topology.md from the live app, or check it"),
    "token": ("gateway.tokens", "sign an access token for development"),
    "metrics": ("ops.metrics_page", "draw the table of all metrics, or check it"),
    "settings": ("ops.settings_page", "draw the page of all settings, or check it"),
    "bench": ("bench.cli", "measure the stack"),
}


def usage() -> str:
    """Return the help text."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, (_module, about) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: qim COMMAND ...",
            "",
            *lines,
            "",
            "qim COMMAND --help tells more; workers: faust -A qim worker",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code, 2 for an unknown one, 1 for a refused start."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None:
        print(f"qim: no command {arguments[0]!r}\n{usage()}", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(command[0]).main(arguments[1:]) or 0)
    except QimError as problem:
        print(f"qim {arguments[0]}: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
