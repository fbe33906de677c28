"""The graph as it is: what each agent reads and writes, drawn from the live app into topology.md.

Faust knows which topics an agent reads. What it writes, and which tables it keeps, it declares with `@node`; a test
compares the declarations with the writes that were really seen (`record_writes`). The parts outside the graph are named
here, once.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from schemas.config import Settings
from schemas.errors import Bug
from schemas.topics import (
    WATERMARKS_TABLE,
    changelog_topic,
    outbox_topic,
    push_topic,
    topic_specs,
)
from streams.app import QimApp
from streams.diagram import Edge, Graph, render

__all__ = ["NodeUse", "SeenWrites", "declared", "graph_of", "main", "node", "record_writes"]

_Agent = TypeVar("_Agent")
_DECLARED: Final = "qim_node"
_MAILBOX, _COMMIT = "mailbox Redis", "commit Redis"
_GATEWAY, _CLIENTS = "gateway", "clients"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What an agent says about itself: topics it writes, tables it keeps, outside parts it uses, all by name."""

    writes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()


@dataclass(slots=True)
class SeenWrites:
    """Names of the topics and tables that were written while recording."""

    topics: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)


def node(
    *, writes: Sequence[str] = (), tables: Sequence[str] = (), uses: Sequence[str] = ()
) -> Callable[[_Agent], _Agent]:
    """Declare what an agent writes besides reading its topic; goes above `@app.agent`."""

    def declare(agent: _Agent) -> _Agent:
        setattr(agent, _DECLARED, NodeUse(tuple(writes), tuple(tables), tuple(uses)))
        return agent

    return declare


def declared(app: QimApp) -> dict[str, NodeUse]:
    """The declaration of each agent by its name; raises Bug when one has none or names what does not exist."""
    known = {}
    for name, agent in app.agents.items():
        use = getattr(agent, _DECLARED, None)
        if not isinstance(use, NodeUse):
            raise Bug(f"agent {name} has no @node declaration")
        if unknown := set(use.tables) - set(app.tables):
            raise Bug(f"agent {name} declares unknown tables {sorted(unknown)}")
        known[name] = use
    return known


@contextmanager
def record_writes(app: QimApp) -> Iterator[SeenWrites]:
    """Observe every page that is written to a topic or a table of the app."""
    seen = SeenWrites()
    kinds = {"topic": seen.topics, "table": seen.tables}
    app.page_producer.observer = lambda kind, name: kinds[kind].add(name)
    try:
        yield seen
    finally:
        app.page_producer.observer = None


def _outside(settings: Settings) -> list[Edge]:
    """The edges of the parts outside the graph (ADAPT-11): only the outbox and what gateways read touch it."""
    app = settings.app_id
    return [
        Edge.both(("outside", _CLIENTS), ("outside", _GATEWAY)),
        Edge.both(("outside", _GATEWAY), ("store", _COMMIT)),
        Edge(("outside", _GATEWAY), ("topic", outbox_topic(app))),
        Edge(("topic", push_topic(app)), ("outside", _GATEWAY)),
        Edge(("topic", changelog_topic(app, WATERMARKS_TABLE)), ("outside", _GATEWAY)),
        Edge(("store", _MAILBOX), ("outside", _GATEWAY)),
    ]


def _agent_edges(app: QimApp) -> Iterator[Edge]:
    for name, use in declared(app).items():
        agent: Any = app.agents[name]
        for topic in agent.get_topic_names():
            yield Edge(("topic", topic), ("agent", name))
        for topic in (*use.writes, *(str(sink) for sink in agent._sinks)):  # noqa: SLF001
            yield Edge(("agent", name), ("topic", topic))
        for table in use.tables:
            yield Edge.both(("agent", name), ("table", table))
        for store in use.uses:
            yield Edge.both(("agent", name), ("store", store))
    for table_name, table in app.tables.items():
        changelog: Any = table
        yield Edge(("table", table_name), ("topic", changelog.changelog_topic_name))


def graph_of(app: QimApp, settings: Settings) -> Graph:
    """The whole graph; raises Bug when an edge touches a topic that schemas/topics.py does not have."""
    specs = {spec.name: spec for spec in topic_specs(settings)}
    edges = sorted({*_agent_edges(app), *_outside(settings)})
    touched = {name for edge in edges for kind, name in edge.ends if kind == "topic"}
    if unknown := touched - specs.keys():
        raise Bug(f"topics that schemas/topics.py does not know: {sorted(unknown)}")
    return Graph(specs=specs, edges=edges)


def main(argv: Sequence[str] | None = None) -> int:
    """`qim topology [--write FILE | --check FILE]`: print, write, or compare; 1 when the file differs."""
    parser = argparse.ArgumentParser(prog="qim topology", description="draw the graph of the app")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--write", type=Path, metavar="FILE", help="write the drawing")
    target.add_argument("--check", type=Path, metavar="FILE", help="fail when FILE differs")
    chosen = parser.parse_args(argv)
    app: QimApp = importlib.import_module("qim").app
    app.finalize()
    drawn = render(graph_of(app, Settings()))
    if chosen.write is not None:
        chosen.write.write_text(drawn)
    elif chosen.check is not None:
        found = chosen.check.read_text() if chosen.check.exists() else ""
        lines = difflib.unified_diff(
            found.splitlines(), drawn.splitlines(), str(chosen.check), "the live app", lineterm=""
        )
        difference = "\n".join(lines)
        if difference:
            print(difference, file=sys.stderr)
            return 1
    else:
        print(drawn, end="")
    return 0
