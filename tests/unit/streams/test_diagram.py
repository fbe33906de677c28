from itertools import permutations

from schemas.topics import TopicSpec
from streams.diagram import Edge, Graph, render

SPECS = {
    "a.in": TopicSpec("a.in", 4, "delete", 600_000),
    "a-t-changelog": TopicSpec("a-t-changelog", 8, "compact", -1),
    "a.odd": TopicSpec("a.odd", 1, "delete", 1234),
}
EDGES = [
    Edge(("topic", "a.in"), ("agent", "reader")),
    Edge.both(("agent", "reader"), ("table", "t")),
    Edge(("table", "t"), ("topic", "a-t-changelog")),
    Edge(("topic", "a-t-changelog"), ("outside", "gateway")),
    Edge.both(("agent", "reader"), ("store", "mailbox Redis")),
]


def test_drawing_shows_every_part_once_and_every_edge() -> None:
    drawn = render(Graph(SPECS, EDGES))

    for line in (
        'topic_a_in[/"a.in<br/>4 partitions, delete, 10 minutes"/]',
        'topic_a_t_changelog[/"a-t-changelog<br/>8 partitions, compact, no time limit"/]',
        'agent_reader["reader"]',
        'table_t[("t")]',
        'store_mailbox_Redis[("mailbox Redis")]',
        'outside_gateway("gateway")',
    ):
        assert drawn.count(f"    {line}\n") == 1
    for line in (
        "topic_a_in --> agent_reader",
        "agent_reader <--> table_t",
        "table_t --> topic_a_t_changelog",
        "agent_reader <--> store_mailbox_Redis",
    ):
        assert drawn.count(f"  {line}\n") == 1


def test_table_of_topics_names_writers_and_readers() -> None:
    drawn = render(Graph(SPECS, EDGES))

    assert "| `a-t-changelog` | 8 | compact | no time limit | t | gateway |" in drawn
    assert "| `a.odd` | 1 | delete | 1234 ms | - | - |" in drawn, "also without any edge"


def test_order_of_the_edges_does_not_change_the_drawing() -> None:
    drawings = {
        render(Graph(dict(reversed(SPECS.items())), order)) for order in permutations(EDGES)
    }

    assert len(drawings) == 1
