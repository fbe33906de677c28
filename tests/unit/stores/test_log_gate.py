"""The log gate judges what a broker said; here everything it may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from schemas.config import Settings
from schemas.constants import DISPATCH_RETENTION_MS, OUTBOX_RETENTION_MS
from schemas.topics import TopicSpec, dispatch_topic, outbox_topic, push_topic, topic_specs
from stores.log_gate import LogFacts, RecordedLog, judge_log, needed_retention_ms
from stores.topic_ids import ClusterTopics, TopicFacts

MakeSettings = Callable[..., Settings]
FRESH = RecordedLog(None, {})
DAY_MS = 86_400_000


@pytest.fixture
def settings(make_settings: MakeSettings) -> Settings:
    return make_settings()


def topic_id(name: str) -> str:
    return name.encode().hex().ljust(32, "0")[:32]


def facts_of(settings: Settings) -> LogFacts:
    """A broker that is just as it should be."""
    specs = topic_specs(settings)
    return LogFacts(
        ClusterTopics("c1", {s.name: TopicFacts(topic_id(s.name), s.partitions, 0) for s in specs}),
        {s.name: {**s.config, "retention.bytes": "-1"} for s in specs},
        {s.name: dict.fromkeys(range(s.partitions), (0, 5)) for s in specs},
    )


def recorded_of(settings: Settings) -> RecordedLog:
    topics = facts_of(settings).cluster.topics
    return RecordedLog("c1", {n: (t.topic_id or "", t.partitions) for n, t in topics.items()})


def judged(settings: Settings, facts: LogFacts, recorded: RecordedLog = FRESH) -> list[str]:
    return judge_log(settings, topic_specs(settings), facts, recorded)


def with_topic(facts: LogFacts, name: str, topic: TopicFacts | None) -> LogFacts:
    topics = {n: t for n, t in facts.cluster.topics.items() if n != name}
    if topic is not None:
        topics[name] = topic
    return facts._replace(cluster=facts.cluster._replace(topics=topics))


def with_config(facts: LogFacts, name: str, config: Mapping[str, str]) -> LogFacts:
    return facts._replace(configs={**facts.configs, name: {**facts.configs[name], **config}})


@pytest.mark.contract("LOG-02", "LOG-11", "GATE-27")
def test_a_log_as_specified_passes_at_the_first_start_and_at_every_other(
    settings: Settings,
) -> None:
    assert judged(settings, facts_of(settings)) == []
    assert judged(settings, facts_of(settings), recorded_of(settings)) == []


@pytest.mark.contract("LOG-02")
def test_another_cluster_is_refused_and_so_is_one_without_an_id(settings: Settings) -> None:
    facts, recorded = facts_of(settings), recorded_of(settings)
    other = facts._replace(cluster=facts.cluster._replace(cluster_id="c2"))
    assert "use a new app_id" in judged(settings, other, recorded)[0]
    nameless = facts._replace(cluster=facts.cluster._replace(cluster_id=None))
    assert judged(settings, nameless) == ["the broker tells no cluster id"]


@pytest.mark.contract("LOG-02", "ADAPT-10")
@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (0, "restore the former topic"),
        (1, "restore the former topic"),
        (2, "qimctl rebuild table"),
        (3, "qimctl rebuild table"),
        (4, "qimctl topics --accept"),
    ],
)
def test_a_topic_made_anew_is_refused_with_what_to_do(
    settings: Settings, number: int, remedy: str
) -> None:
    spec = topic_specs(settings)[number]
    anew = with_topic(facts_of(settings), spec.name, TopicFacts("f" * 32, spec.partitions, 0))
    (fault,) = judged(settings, anew, recorded_of(settings))
    assert fault.startswith(f"{spec.name} was deleted and made anew")
    assert remedy in fault
    assert judged(settings, anew) == []  # nothing was recorded: a first start


@pytest.mark.contract("LOG-02")
def test_a_broker_without_topic_ids_is_refused(settings: Settings) -> None:
    spec = topic_specs(settings)[1]
    old = with_topic(facts_of(settings), spec.name, TopicFacts(None, spec.partitions, 0))
    (fault,) = judged(settings, old)
    assert "has no topic id" in fault


@pytest.mark.contract("LOG-11", "GATE-27")
@pytest.mark.parametrize("count", [4, 7, 16])
def test_gate_27_other_partition_counts_are_refused(settings: Settings, count: int) -> None:
    name = dispatch_topic(settings.app_id)
    other = with_topic(facts_of(settings), name, TopicFacts(topic_id(name), count, 0))
    assert f"has {count} partitions instead of 8" in judged(settings, other)[0]


@pytest.mark.contract("LOG-07", "GATE-10")
def test_gate_10_partitions_without_leader_or_offsets_are_refused(settings: Settings) -> None:
    name = dispatch_topic(settings.app_id)
    facts = facts_of(settings)
    headless = with_topic(facts, name, TopicFacts(topic_id(name), 8, 1))
    assert "without a leader" in judged(settings, headless)[0]
    for ranges in (dict.fromkeys(range(7), (0, 5)), dict.fromkeys(range(8), (6, 5))):
        odd = facts._replace(ranges={**facts.ranges, name: ranges})
        assert "no first and end offset" in judged(settings, odd)[0]


def test_a_missing_topic_is_to_be_created_or_if_it_was_there_to_be_restored(
    settings: Settings,
) -> None:
    without = with_topic(facts_of(settings), outbox_topic(settings.app_id), None)
    assert "qim topics create" in judged(settings, without)[0]
    assert "restore it" in judged(settings, without, recorded_of(settings))[0]


@pytest.mark.contract("LOG-12")
@pytest.mark.parametrize("topic", [outbox_topic, dispatch_topic])
@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"retention.ms": "-1"}, False),
        ({"retention.ms": str(8 * DAY_MS)}, False),
        ({"retention.ms": str(8 * DAY_MS - 1)}, True),
        ({"retention.ms": "0"}, True),
        ({"retention.ms": "a week"}, True),
        ({"retention.bytes": "1000000"}, True),
        ({"cleanup.policy": "compact"}, True),
        ({"cleanup.policy": "compact,delete"}, True),
    ],
)
def test_sources_are_kept_as_long_as_what_is_made_of_them(
    settings: Settings, topic: Callable[[str], str], config: Mapping[str, str], *, refused: bool
) -> None:
    facts = with_config(facts_of(settings), topic(settings.app_id), config)
    assert len(judged(settings, facts)) == refused


@pytest.mark.contract("LOG-12")
def test_the_retention_that_we_create_covers_the_windows(settings: Settings) -> None:
    needed = needed_retention_ms(settings)
    assert needed[outbox_topic(settings.app_id)] <= OUTBOX_RETENTION_MS
    assert needed[dispatch_topic(settings.app_id)] <= DISPATCH_RETENTION_MS
    # An entry of the first second of a day lives through that day and seven more (MBX-21).
    assert min(needed.values()) == 8 * DAY_MS


@pytest.mark.contract("ADAPT-10")
def test_changelogs_are_compacted_and_nothing_else(settings: Settings) -> None:
    for spec in topic_specs(settings)[2:4]:
        assert spec.cleanup_policy == "compact"
        facts = with_config(facts_of(settings), spec.name, {"cleanup.policy": "compact,delete"})
        assert "must be compact" in judged(settings, facts)[0]


@pytest.mark.contract("ADAPT-10")
@pytest.mark.parametrize("lag", ["0", "3599999", "an hour", ""])
def test_a_changelog_that_loses_rows_before_anybody_looked_is_refused(
    settings: Settings, lag: str
) -> None:
    name = topic_specs(settings)[2].name
    facts = with_config(facts_of(settings), name, {"min.compaction.lag.ms": lag})
    assert "min.compaction.lag.ms" in judged(settings, facts)[0]


def test_pushes_may_be_kept_as_short_as_one_likes(settings: Settings) -> None:
    facts = with_config(facts_of(settings), push_topic(settings.app_id), {"retention.ms": "1000"})
    assert judged(settings, facts) == []


def test_all_reasons_are_named_at_once(settings: Settings) -> None:
    empty = LogFacts(ClusterTopics("c1", {}), {}, {})
    specs: list[TopicSpec] = topic_specs(settings)
    assert len(judged(settings, empty)) == len(specs)
