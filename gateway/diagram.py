"""Draws the generated parts of docs/gateway.md from the code: the state diagram and the table of codes and fates.

python -m gateway.diagram            writes docs/gateway.md anew where it differs
python -m gateway.diagram --check    only compares; exit code 1 when the page is out of date
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.states import TRANSITIONS, Action, Input, State
from schemas.errors import ErrorCode

__all__ = ["codes", "diagram", "main", "rendered"]

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "gateway.md"
_ENDINGS: Final = frozenset({Input.BROKEN, Input.EOF, Input.TIMEOUT, Input.SLOW})


def diagram() -> str:
    """Mermaid state diagram of `states.TRANSITIONS`; moves that keep the state are left out, endings are one arrow."""
    edges: dict[tuple[State, State], list[str]] = {}
    for (state, given), step in TRANSITIONS.items():
        if state is not State.CLOSED and step.state is not state and given not in _ENDINGS:
            edges.setdefault((state, step.state), []).append(given.name)
    lines = ["stateDiagram-v2", f"    [*] --> {State.CONNECTED.name}"]
    for (old, new), inputs in sorted(edges.items()):
        lines.append(f"    {old.name} --> {new.name}: {', '.join(sorted(inputs))}")
    living = ", ".join(given.name for given in sorted(_ENDINGS))
    lines += [f"    {State.CLOSED.name} --> [*]", f"    note left of {State.CLOSED.name}"]
    lines += [f"        from every state: {living}", "    end note"]
    return "\n".join(lines)


def codes() -> str:
    """Markdown table of every error code with its number, whether it may be retried, and the connection's fate."""
    lines = ["| code | number | retry | connection |", "| --- | --- | --- | --- |"]
    for code in ErrorCode:
        retry = "yes" if code.retryable else "no"
        lines.append(
            f"| {code.name} | {code.value} | {retry} | {'ends' if code.closes else 'stays'} |"
        )
    return "\n".join(lines)


def table() -> str:
    """Markdown table: what each client frame means in each state; an empty cell is a protocol error."""
    frames = [Input.AUTH, Input.SEND, Input.PULL, Input.SYNC_FULL, Input.SYNC_GAP, Input.PING]
    frames += [Input.UNKNOWN_FRAME, Input.SERVER_FRAME]
    states = [state for state in State if state is not State.CLOSED]
    lines = ["| frame | " + " | ".join(state.name for state in states) + " |"]
    lines.append("| --- " * (len(states) + 1) + "|")
    for given in frames:
        cells = []
        for state in states:
            step = TRANSITIONS.get((state, given))
            ignored = step is not None and step.action is Action.IGNORE
            cells.append("" if step is None else "ignored" if ignored else step.action.name.lower())
        lines.append(f"| {given.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rendered(page: str) -> str:
    """`page` with its generated parts, between `<!-- name -->` and `<!-- end -->`, replaced by what the code says now."""
    parts = {"states": f"```mermaid\n{diagram()}\n```", "frames": table(), "codes": codes()}
    for name, text in parts.items():
        opening, closing = f"<!-- {name} -->", "<!-- end -->"
        start = page.index(opening) + len(opening)
        page = f"{page[:start]}\n\n{text}\n\n{page[page.index(closing, start):]}"
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gateway.diagram")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(argv)
    page = PAGE.read_text()
    fresh = rendered(page)
    if fresh == page:
        return 0
    if options.check:
        print(f"{PAGE.name} is out of date: run python -m gateway.diagram")
        return 1
    PAGE.write_text(fresh)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
