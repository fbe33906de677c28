"""A topic that was deleted and made anew, another system's keys, a short retention: refused, nothing written."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError

from ops.topics import create_topics
from schemas.config import Settings
from schemas.errors import ServerFault, StartRefused
from schemas.topics import dispatch_topic, topic_specs
from stores import log_gate
from stores.claims import begin_rebuild, end_rebuild, recorded_log
from stores.log_gate import RecordedLog, judge_log, read_log
from stores.redis_link import RedisLink
from stores.start_gates import pass_start_gates
from stores.topic_ids import ClusterTopics
from tests.support.refusals import attempt, gateway_argv, running, worker_argv
from tests.support.topic_tools import make_anew


class Instances:
    """The Redis instances of a test's system."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.mailbox = [RedisLink(url) for url in settings.mailbox_redis]
        self.commit = [RedisLink(url) for url in settings.commit_redis]

    async def start(self, settings: Settings | None = None) -> None:
        """What a gateway does first."""
        await pass_start_gates(settings or self.settings, self.mailbox, self.commit)

    async def dump(self) -> dict[tuple[str, bytes], bytes]:
        """Every key of this system on every instance."""
        found = {}
        for link in (*self.mailbox, *self.commit):
            for key in await link.command("KEYS", f"{self.settings.app_id}:*"):
                found[link.name, key] = await link.command("DUMP", key)
        return found


@pytest.fixture
async def instances(settings: Settings) -> AsyncIterator[Instances]:
    made = Instances(settings)
    yield made
    for link in (*made.mailbox, *made.commit):
        await link.close()


async def refused(instances: Instances, *words: str, settings: Settings | None = None) -> None:
    before = await instances.dump()
    with pytest.raises(StartRefused) as refusal:
        await instances.start(settings)
    for word in words:
        assert word in refusal.value.detail
    assert await instances.dump() == before


@pytest.mark.contract("LOG-02")
async def test_first_start_records_the_cluster_and_its_topics_and_the_next_one_passes(
    instances: Instances,
) -> None:
    await instances.start()
    recorded = await recorded_log(instances.mailbox[0], instances.settings.app_id)
    before = await instances.dump()
    await instances.start()

    specs = topic_specs(instances.settings)
    assert recorded.cluster_id
    assert {name: count for name, (_, count) in recorded.topics.items()} == {
        spec.name: spec.partitions for spec in specs
    }
    assert len({topic_id for topic_id, _ in recorded.topics.values()}) == len(specs)
    assert await instances.dump() == before


@pytest.mark.contract("LOG-02")
async def test_a_dispatch_topic_made_anew_is_refused_by_all(
    instances: Instances, settings: Settings, tmp_path: Path
) -> None:
    await instances.start()
    await make_anew(settings.broker, topic_specs(settings)[1])
    words = (dispatch_topic(settings.app_id), "deleted and made anew", "use a new app_id")
    await refused(instances, *words)

    # The commit instance remembers where the mailbox instance lost everything.
    await instances.mailbox[0].command("DEL", f"{settings.app_id}:topics")
    await refused(instances, *words)
    await instances.commit[0].command("COPY", f"{settings.app_id}:topics", "x", "REPLACE")
    record = await instances.commit[0].command("DUMP", f"{settings.app_id}:topics")
    await instances.mailbox[0].command("RESTORE", f"{settings.app_id}:topics", 0, record)
    await instances.commit[0].command("DEL", "x")

    before = await instances.dump()
    for name, argv in (("worker", worker_argv()), ("gateway", gateway_argv())):
        end = await attempt(argv, settings, tmp_path / name)
        assert end.exit_code > 0
        assert not end.was_ready
        assert "deleted and made anew" in end.log
    assert await instances.dump() == before


@pytest.mark.contract("ADAPT-10", "LOG-02")
async def test_a_changelog_made_anew_is_refused(instances: Instances, settings: Settings) -> None:
    await instances.start()
    await make_anew(settings.broker, topic_specs(settings)[3])
    await refused(instances, "watermarks-changelog", "qimctl rebuild table")


@pytest.mark.contract("LOG-12")
async def test_a_retention_below_the_mailbox_window_is_refused(
    instances: Instances, settings: Settings
) -> None:
    day_ms = 86_400_000
    await make_anew(settings.broker, replace(topic_specs(settings)[0], retention_ms=day_ms))
    await refused(instances, "keeps 86400000 ms", "raise retention.ms")
    assert await instances.dump() == {}


@pytest.mark.contract("LOG-11", "GATE-27")
async def test_gate_27_other_counts_than_the_topics_have_are_refused(
    instances: Instances, settings: Settings
) -> None:
    other = settings.model_copy(update={"mailbox_shard_count": 16})
    await refused(instances, "8 partitions instead of 16", settings=other)


@pytest.mark.contract("LOG-02")
async def test_keys_of_another_cluster_are_never_touched(
    instances: Instances, settings: Settings
) -> None:
    await instances.start()
    for link in (instances.mailbox[1], instances.commit[1]):
        await link.command("SET", f"{settings.app_id}:owner", "another-cluster")
        await refused(instances, link.name, "two systems may not share an app_id")
        await link.command("DEL", f"{settings.app_id}:owner")
    await instances.start()


async def test_an_unfinished_rebuild_keeps_everybody_out(
    instances: Instances, settings: Settings
) -> None:
    await instances.start()
    await begin_rebuild(instances.mailbox, settings.app_id, "mailbox")
    await refused(instances, "run `qimctl rebuild mailbox` again")
    await end_rebuild(instances.mailbox, settings.app_id)
    await instances.start()


@pytest.mark.contract("REG-29", "GATE-09", "REDIS-04")
async def test_reg_29_commits_on_a_server_that_fsyncs_each_second_are_refused(
    instances: Instances, settings: Settings
) -> None:
    with pytest.raises(StartRefused, match="as commit Redis: appendfsync is everysec"):
        await pass_start_gates(settings, instances.mailbox, instances.mailbox)
    assert await instances.dump() == {}


@pytest.mark.contract("GATE-10", "LOG-07")
async def test_gate_10_all_offsets_of_64_partitions_are_known_well_within_10_s(
    settings: Settings, app_id: str
) -> None:
    wide = settings.model_copy(update={"mailbox_shard_count": 64, "app_id": f"{app_id}-wide"})
    await create_topics(wide.broker, topic_specs(wide))
    started_s = time.monotonic()
    facts = await read_log(wide.broker, topic_specs(wide))
    assert time.monotonic() - started_s < 10
    assert set(facts.ranges[dispatch_topic(wide.app_id)]) == set(range(64))
    assert judge_log(wide, topic_specs(wide), facts, RecordedLog(None, {})) == []


async def test_a_broker_that_is_not_there_is_no_start(instances: Instances) -> None:
    limit = {"start_timeout_s": 0.5}
    nowhere = instances.settings.model_copy(update={"broker": "127.0.0.1:1", **limit})
    with pytest.raises(ServerFault):
        await instances.start(nowhere)
    assert await instances.dump() == {}


@pytest.mark.contract("LOG-09", "LOG-07")
async def test_servers_that_are_not_up_yet_are_waited_for(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[None] = []
    real = log_gate._topics

    async def late(admin: AIOKafkaAdminClient, names: Sequence[str]) -> ClusterTopics:
        cluster = await real(admin, names)
        answers.append(None)
        if len(answers) == 1:
            raise KafkaConnectionError
        if len(answers) == 2:
            headless = {n: t._replace(leaderless=1) for n, t in cluster.topics.items()}
            return cluster._replace(topics=headless)
        return cluster

    monkeypatch.setattr(log_gate, "_topics", late)
    await instances.start()
    assert len(answers) == 3
    answers.clear()
    impatient = instances.settings.model_copy(update={"start_timeout_s": 0.0})
    with pytest.raises(ServerFault):
        await instances.start(impatient)
    with pytest.raises(StartRefused, match="without a leader"):
        await instances.start(impatient)


@pytest.mark.contract("ADAPT-10", "LOG-02")
async def test_a_worker_refuses_a_changelog_made_anew_before_it_recovers_its_tables(
    settings: Settings, tmp_path: Path
) -> None:
    async with running(worker_argv(), settings, tmp_path / "first"):
        pass
    await make_anew(settings.broker, topic_specs(settings)[2])
    end = await attempt(worker_argv(), settings, tmp_path / "second")
    assert end.exit_code > 0
    assert not end.was_ready
    assert "run `qimctl rebuild table`" in end.log
    assert "Recovery" not in end.log


@pytest.mark.contract("LOG-02")
async def test_worker_and_gateway_come_up_again_on_the_log_they_recorded(
    settings: Settings, tmp_path: Path
) -> None:
    for name, argv in (("worker", worker_argv()), ("gateway", gateway_argv())):
        for turn in range(2):
            async with running(argv, settings, tmp_path / f"{name}-{turn}"):
                pass
