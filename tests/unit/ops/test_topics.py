import pytest

from ops.topics import FoundTopic, differences
from schemas.topics import TopicSpec

SPEC = TopicSpec("t.dispatch.v1", 8, "delete", 1000)
SAME = FoundTopic(8, {"cleanup.policy": "delete", "retention.ms": "1000", "other": "x"})


def test_equal_topic_has_no_difference() -> None:
    assert differences([SPEC], {SPEC.name: SAME}) == []


@pytest.mark.contract("LOG-11")
@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "t.dispatch.v1 does not exist"),
        ({SPEC.name: FoundTopic(16, SAME.config)}, "has 16 partitions instead of 8"),
        (
            {SPEC.name: FoundTopic(8, {**SAME.config, "cleanup.policy": "compact"})},
            "has cleanup.policy=compact instead of delete",
        ),
        (
            {SPEC.name: FoundTopic(8, {"cleanup.policy": "delete"})},
            "has retention.ms=None instead of 1000",
        ),
    ],
)
def test_difference_is_named(found: dict[str, FoundTopic], problem: str) -> None:
    (only,) = differences([SPEC], found)
    assert problem in only
