"""Start gate of the log: our topics, whole, and kept long enough (LOG-02, LOG-07, LOG-11, LOG-12, ADAPT-10).

Positions in dispatch are part of every mailbox_seq, so a topic that was deleted and made anew under its old name must never
be read as if it were the old one. Cluster id and topic ids are recorded beside the mailboxes at the first start
(`stores/claims.py`) and compared here at every other.

`judge_log` is pure and names every reason at once; `read_log` is the thin shell around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from schemas.config import Settings
from schemas.constants import (
    CHANGELOG_COMPACTION_LAG_MS,
    CLIENT_DEDUP_TTL_S,
    HISTORY_HOT_WINDOW_S,
    MAILBOX_RETENTION_DAYS,
    SECONDS_PER_DAY,
)
from schemas.errors import ServerFault, StartRefused
from schemas.topics import TopicSpec, dispatch_topic, outbox_topic, push_topic
from stores.topic_ids import ClusterTopics, TopicIdsRequest, topics_of

__all__ = ["LogFacts", "RecordedLog", "judge_log", "needed_retention_ms", "read_log"]

_RANGES_S: Final = 10.0  # GATE-10
_COMPACTED: Final = "compact"
_FOR_EVER: Final = -1
# A mailbox day ends with the retention days after it, so its first entry lives one day longer (MBX-21).
_MAILBOX_MS: Final = (MAILBOX_RETENTION_DAYS + 1) * SECONDS_PER_DAY * 1000
_CONFIG_NAMES: Final = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.compaction.lag.ms",
)


class LogFacts(NamedTuple):
    """What the broker says: ids and partitions, topic settings by topic, (first, end) offsets by topic and partition."""

    cluster: ClusterTopics
    configs: Mapping[str, Mapping[str, str]]
    ranges: Mapping[str, Mapping[int, tuple[int, int]]]


class RecordedLog(NamedTuple):
    """What was recorded at the first start: cluster id (None: nothing yet) and topic -> (topic id, partitions)."""

    cluster_id: str | None
    topics: Mapping[str, tuple[str, int]]


def needed_retention_ms(settings: Settings) -> dict[str, int]:
    """How long each source topic must be kept so that what is derived from it can be made again (LOG-12).

    dispatch must reach back over the mailbox window, outbox also over the hot history and the dedup window.
    """
    outbox_ms = max(_MAILBOX_MS, HISTORY_HOT_WINDOW_S * 1000, CLIENT_DEDUP_TTL_S * 1000)
    return {outbox_topic(settings.app_id): outbox_ms, dispatch_topic(settings.app_id): _MAILBOX_MS}


def judge_log(
    settings: Settings, specs: Sequence[TopicSpec], facts: LogFacts, recorded: RecordedLog
) -> list[str]:
    """Every reason not to start on this log, each with what to do; empty when there is none (fail closed)."""
    cluster = facts.cluster
    if cluster.cluster_id is None:
        return ["the broker tells no cluster id"]
    if recorded.cluster_id not in {None, cluster.cluster_id}:
        return [
            (
                f"the keys of app_id {settings.app_id} belong to the cluster {recorded.cluster_id}, this"
                f" broker is {cluster.cluster_id}: point QIM_BROKER at the former cluster, or use a new app_id"
            )
        ]
    needed = needed_retention_ms(settings)
    faults: list[str] = []
    for spec in specs:
        found = cluster.topics.get(spec.name)
        if found is None:
            lost = spec.name in recorded.topics
            remedy = "restore it from a copy" if lost else "run `qim topics create`"
            faults.append(f"{spec.name} does not exist: {remedy}")
            continue
        faults += _identity_faults(settings, spec, found.topic_id, recorded)
        if found.partitions != spec.partitions:
            faults.append(
                f"{spec.name} has {found.partitions} partitions instead of {spec.partitions}: set the"
                " counts that the topic was made with"
            )
        if found.leaderless:
            faults.append(f"{spec.name} has {found.leaderless} partitions without a leader")
        else:
            faults += _range_faults(spec, facts.ranges.get(spec.name, {}))
        config = facts.configs.get(spec.name, {})
        faults += _retention_faults(spec, config, needed.get(spec.name, 0))
    return faults


def _identity_faults(
    settings: Settings, spec: TopicSpec, topic_id: str | None, recorded: RecordedLog
) -> list[str]:
    if topic_id is None:
        return [f"{spec.name} has no topic id: use Kafka 2.8 or Redpanda 26.2.2 or later (LOG-02)"]
    known = recorded.topics.get(spec.name)
    if known is None or known[0] == topic_id:
        return []
    if spec.name == push_topic(settings.app_id):
        remedy = f"pushes are no state: run `qimctl topics --accept {spec.name}`"
    elif spec.cleanup_policy == _COMPACTED:
        remedy = "stop the workers and run `qimctl rebuild table`, which records the new one"
    else:
        remedy = "restore the former topic, or use a new app_id: stored positions mean the former"
    return [f"{spec.name} was deleted and made anew ({known[0]} became {topic_id}): {remedy}"]


def _retention_faults(spec: TopicSpec, config: Mapping[str, str], needed_ms: int) -> list[str]:
    policy, time, size, lag = (config.get(name) for name in _CONFIG_NAMES)
    if policy != spec.cleanup_policy:
        return [f"{spec.name} has cleanup.policy={policy}, must be {spec.cleanup_policy}"]
    if policy == _COMPACTED:
        if lag is not None and lag.isdecimal() and int(lag) >= CHANGELOG_COMPACTION_LAG_MS:
            return []
        return [
            f"{spec.name} has min.compaction.lag.ms={lag}, which must be at least {CHANGELOG_COMPACTION_LAG_MS}"
        ]
    faults = []
    try:
        kept_ms = int(time or "")
    except ValueError:
        return [f"{spec.name} has retention.ms={time}, which is unreadable"]
    if kept_ms != _FOR_EVER and kept_ms < needed_ms:
        faults.append(
            f"{spec.name} keeps {kept_ms} ms, but mailboxes need {needed_ms} ms to be made again:"
            " raise retention.ms"
        )
    if needed_ms and size != str(_FOR_EVER):
        faults.append(
            f"{spec.name} has retention.bytes={size}, which may cut the window: set it to -1"
        )
    return faults


def _range_faults(spec: TopicSpec, ranges: Mapping[int, tuple[int, int]]) -> list[str]:
    bad = [
        p
        for p in range(spec.partitions)
        if p not in ranges or not 0 <= ranges[p][0] <= ranges[p][1]
    ]
    return [f"{spec.name}: no first and end offset of partitions {bad}"] if bad else []


async def read_log(broker: str, specs: Sequence[TopicSpec]) -> LogFacts:
    """Ask the broker, all partitions at once.

    Raises StartRefused when it is too old or does not give all offsets within 10 s (GATE-10), ServerFault when it does
    not answer.
    """
    names = [spec.name for spec in specs]
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    try:
        await admin.start()
        cluster = await _topics(admin, names)
        there = [name for name in names if name in cluster.topics]
        # Without a leader there are no offsets to ask for; the judge says so.
        led = {n: t.partitions for n, t in cluster.topics.items() if not t.leaderless}
        configs, ranges = await asyncio.gather(_configs(admin, there), _ranges(broker, led))
    except KafkaError as error:
        raise ServerFault(f"broker {broker}: {error!r}") from error
    finally:
        await admin.close()
    return LogFacts(cluster, configs, ranges)


async def _topics(admin: AIOKafkaAdminClient, names: Sequence[str]) -> ClusterTopics:
    request = TopicIdsRequest(names)
    try:
        # aiokafka's admin client sends its own requests in this way and offers no other.
        return topics_of(await admin._send_request(request))  # noqa: SLF001
    except RuntimeError as error:  # no version in common
        raise StartRefused(
            "the broker does not know Metadata version 10: use Kafka 2.8 or Redpanda 26.2.2 or later"
        ) from error


async def _configs(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    wanted = dict.fromkeys(_CONFIG_NAMES, "")
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, wanted) for name in names]
    if not resources:
        return {}
    return {
        resource[3]: {entry[0]: entry[1] for entry in resource[4]}
        for response in await admin.describe_configs(resources)
        for resource in response.resources
    }


async def _ranges(broker: str, counts: Mapping[str, int]) -> dict[str, dict[int, tuple[int, int]]]:
    partitions = [TopicPartition(name, p) for name, count in counts.items() for p in range(count)]
    ranges: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in counts}
    if not partitions:
        return ranges
    consumer = AIOKafkaConsumer(bootstrap_servers=broker, enable_auto_commit=False)
    try:
        async with asyncio.timeout(_RANGES_S):
            await consumer.start()
            first, end = await asyncio.gather(
                consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            )
    except TimeoutError:
        raise StartRefused(f"the broker gave no offsets within {_RANGES_S:g} s") from None
    finally:
        await consumer.stop()
    for tp in partitions:
        ranges[tp.topic][tp.partition] = (first[tp], end[tp])
    return ranges
