"""`qim metrics`: the table of all metrics in docs/observability.md, drawn from schemas/metrics.toml.

`--write PATH` renews the part between the two marks of a page, `--check PATH` fails when it differs, neither prints the table.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from schemas.catalogue import CATALOGUE, LABELS, Metric
from schemas.errors import Bug

__all__ = ["main", "renewed", "table"]

_BEGIN: Final = "<!-- drawn by `make docs` from schemas/metrics.toml, do not edit -->\n"
_END: Final = "<!-- end -->\n"
_GROUPS: Final[Mapping[str, Callable[[Metric], bool]]] = {
    "Always zero": lambda m: m.always_zero,
    "Both processes": lambda m: m.process == "both",
    "Gateway": lambda m: m.process == "gateway",
    "Worker": lambda m: m.process == "worker",
}
_HEAD: Final = (
    "| metric | kind | unit | labels | meaning | alarm |\n| --- | --- | --- | --- | --- | --- |\n"
)


def _row(metric: Metric) -> str:
    alarm = "> 0: stop the release" if metric.always_zero else metric.alarm
    labels = ", ".join(metric.labels)
    cells = (f"`{metric.name}`", metric.kind.value, metric.unit, labels, metric.meaning, alarm)
    return f"| {' | '.join(cells)} |\n"


def table() -> str:
    """All metrics, each in the first group that it belongs to, and all labels."""
    parts, left = [], dict(CATALOGUE)
    for title, belongs in _GROUPS.items():
        rows = [metric for metric in left.values() if belongs(metric)]
        parts += [f"### {title}\n\n", _HEAD, *map(_row, rows), "\n"]
        for metric in rows:
            del left[metric.name]
    labels = "".join(f"| `{name}` | {bound} |\n" for name, bound in LABELS.items())
    return "".join([*parts, "### Labels\n\n| label | values |\n| --- | --- |\n", labels])


def renewed(page: str) -> str:
    """The page with its table drawn anew; raises Bug when the marks are missing."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise Bug(f"the page lacks {_BEGIN.strip()} or {_END.strip()}")
    return f"{before}{begin}\n{table()}\n{end}{after}"


def main(argv: Sequence[str]) -> int:
    """Run `qim metrics`; with --check returns 1 and prints the difference when there is one."""
    parser = argparse.ArgumentParser(prog="qim metrics")
    parser.add_argument("--write", type=Path, help="renew the table in this page")
    parser.add_argument("--check", type=Path, help="fail when the table in this page differs")
    arguments = parser.parse_args(argv)
    path: Path | None = arguments.write or arguments.check
    if path is None:
        sys.stdout.write(table())
        return 0
    have = path.read_text()
    want = renewed(have)
    if arguments.write:
        path.write_text(want)
        return 0
    old, new = have.splitlines(keepends=True), want.splitlines(keepends=True)
    sys.stdout.writelines(difflib.unified_diff(old, new, "committed", "drawn"))
    return int(have != want)
