"""Create the topics of `schemas.topics`, wait for their leaders, read them back (`qim topics create`).

The partition of the dispatch topic is part of every mailbox_seq, so a topic that differs from its
spec is never mended here: the start is refused and a person decides (GATE-27, LOG-11). Creating is
idempotent; workers and gateways start after it, so that they never wait for leaders themselves.
"""

import argparse
import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from schemas.config import Settings
from schemas.errors import StartRefused
from schemas.topics import TopicSpec, topic_specs

__all__ = ["FoundTopic", "create_topics", "differences", "main"]

_LEADERS_S = 30.0
_POLL_S = 0.05
_REPLICAS_MAX = 3


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """What the broker says about a topic: its partition count and the settings that we set."""

    partitions: int
    config: Mapping[str, str]


def differences(specs: Iterable[TopicSpec], found: Mapping[str, FoundTopic]) -> list[str]:
    """Name every way in which the topics found differ from their specs; empty when they agree."""
    problems: list[str] = []
    for spec in specs:
        topic = found.get(spec.name)
        if topic is None:
            problems.append(f"{spec.name} does not exist")
            continue
        if topic.partitions != spec.partitions:
            problems.append(
                f"{spec.name} has {topic.partitions} partitions instead of {spec.partitions}"
            )
        problems += [
            f"{spec.name} has {name}={topic.config.get(name)} instead of {wanted}"
            for name, wanted in spec.config.items()
            if topic.config.get(name) != wanted
        ]
    return problems


async def _create(admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]) -> None:
    brokers = (await admin.describe_cluster())["brokers"]
    replicas = min(_REPLICAS_MAX, len(brokers))
    response = await admin.create_topics(
        [
            NewTopic(spec.name, spec.partitions, replicas, topic_configs=spec.config)
            for spec in specs
        ]
    )
    for name, code, message in response.topic_errors:
        if code not in (0, TopicAlreadyExistsError.errno):
            raise StartRefused(f"topic {name}: {for_code(code).__name__}: {message}")


async def _partitions(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, int]:
    """Return the partition count of each topic, once every partition of all of them has a leader."""
    deadline_s = time.monotonic() + _LEADERS_S
    while True:
        topics = await admin.describe_topics(names)
        ready = all(
            topic["error_code"] == 0
            and topic["partitions"]
            and all(p["error_code"] == 0 and p["leader"] >= 0 for p in topic["partitions"])
            for topic in topics
        )
        if ready and len(topics) == len(names):
            return {topic["topic"]: len(topic["partitions"]) for topic in topics}
        if time.monotonic() > deadline_s:
            raise StartRefused(f"topics without a leader after {_LEADERS_S:g} s: {topics}")
        await asyncio.sleep(_POLL_S)


async def _configs(
    admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]
) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, s.name, s.config) for s in specs]
    return {
        resource[3]: {entry[0]: entry[1] for entry in resource[4]}
        for response in await admin.describe_configs(resources)
        for resource in response.resources
    }


async def create_topics(broker: str, specs: Sequence[TopicSpec]) -> None:
    """Make the topics exist as their specs say, each partition with a leader.

    `broker` is the bootstrap address. Raises StartRefused when a topic cannot be made, gets no
    leader, or exists with other partitions or settings.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        await _create(admin, specs)
        partitions = await _partitions(admin, [spec.name for spec in specs])
        configs = await _configs(admin, specs)
    finally:
        await admin.close()
    found = {name: FoundTopic(count, configs.get(name, {})) for name, count in partitions.items()}
    if problems := differences(specs, found):
        raise StartRefused("topics differ from this configuration: " + "; ".join(problems))


def main(argv: Sequence[str]) -> int:
    """Run `qim topics create|show`."""
    parser = argparse.ArgumentParser(prog="qim topics", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=("create", "show"))
    arguments = parser.parse_args(argv)
    settings = Settings()
    specs = topic_specs(settings)
    if arguments.action == "create":
        asyncio.run(create_topics(settings.broker, specs))
    for spec in specs:
        settings_text = " ".join(f"{name}={value}" for name, value in spec.config.items())
        print(f"{spec.name} partitions={spec.partitions} {settings_text}")
    return 0
