"""Draw a graph of topics, agents, tables and outside parts as mermaid, sorted, so that equal graphs draw equally. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.topics import TopicSpec

__all__ = ["Edge", "End", "Graph", "render"]

End = tuple[str, str]  # (kind, name)

_SHAPES: Final = {  # kind -> mermaid brackets
    "topic": ('[/"', '"/]'),
    "agent": ('["', '"]'),
    "table": ('[("', '")]'),
    "store": ('[("', '")]'),
    "outside": ('("', '")'),
}
_GROUPS: Final = {  # title -> kinds that are drawn inside of it
    "the graph (streams/)": ("agent", "table"),
    "log": ("topic",),
    "outside the graph": ("outside", "store"),
}
_UNITS_MS: Final = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000))
_HEAD: Final = """# Topology

Drawn from the live app by `qim topology --write topology.md`; `make topology-check` fails when it differs.

"""


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """Data flows from `source` to `target`, and back where `mutual`."""

    source: End
    target: End
    mutual: bool = False

    @classmethod
    def both(cls, one: End, other: End) -> Edge:
        """An edge of reads and writes."""
        return cls(one, other, mutual=True)

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends."""
        return self.source, self.target


@dataclass(frozen=True, slots=True)
class Graph:
    """Topics by name with what they must be, and all edges."""

    specs: Mapping[str, TopicSpec]
    edges: Sequence[Edge]


def _identifier(end: End) -> str:
    kind, name = end
    return f"{kind}_{re.sub('[^A-Za-z0-9]', '_', name)}"


def _duration(retention_ms: int) -> str:
    if retention_ms < 0:
        return "no time limit"
    for unit, length_ms in _UNITS_MS:
        if retention_ms % length_ms == 0:
            return f"{retention_ms // length_ms} {unit}"
    return f"{retention_ms} ms"


def _label(end: End, specs: Mapping[str, TopicSpec]) -> str:
    kind, name = end
    if kind != "topic":
        return name
    spec = specs[name]
    return (
        f"{name}<br/>{spec.partitions} partitions, {spec.cleanup_policy},"
        f" {_duration(spec.retention_ms)}"
    )


def _mermaid(graph: Graph) -> Iterator[str]:
    ends = sorted(
        {end for edge in graph.edges for end in edge.ends} | {("topic", t) for t in graph.specs}
    )
    yield "flowchart LR"
    for number, (title, kinds) in enumerate(_GROUPS.items()):
        yield f'  subgraph group{number}["{title}"]'
        for end in ends:
            if end[0] in kinds:
                left, right = _SHAPES[end[0]]
                yield f"    {_identifier(end)}{left}{_label(end, graph.specs)}{right}"
        yield "  end"
    for edge in sorted(graph.edges):
        arrow = "<-->" if edge.mutual else "-->"
        yield f"  {_identifier(edge.source)} {arrow} {_identifier(edge.target)}"


def _names(ends: Iterator[End]) -> str:
    return ", ".join(sorted(name for _kind, name in ends)) or "-"


def _topic_rows(graph: Graph) -> Iterator[str]:
    yield "| topic | partitions | cleanup | retention | written by | read by |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, spec in sorted(graph.specs.items()):
        writers = _names(e.source for e in graph.edges if e.target == ("topic", name))
        readers = _names(e.target for e in graph.edges if e.source == ("topic", name))
        yield (
            f"| `{name}` | {spec.partitions} | {spec.cleanup_policy} |"
            f" {_duration(spec.retention_ms)} | {writers} | {readers} |"
        )


def render(graph: Graph) -> str:
    """The page: the mermaid drawing, then a table of the topics."""
    drawing = "\n".join(_mermaid(graph))
    rows = "\n".join(_topic_rows(graph))
    return f"{_HEAD}```mermaid\n{drawing}\n```\n\n{rows}\n"
