"""`qimctl topics`: the log as the start gate sees it, and the one thing it may be told to accept."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from ops.qimctl.system import System, open_system
from schemas.config import Settings
from schemas.errors import StartRefused
from schemas.topics import push_topic, topic_specs
from stores.claims import recorded_log
from stores.log_gate import judge_log, read_log

__all__ = ["accept_push_topic", "main", "topic_report"]


async def topic_report(system: System) -> tuple[list[str], list[str]]:
    """(a line a topic, every reason against a start on this log)."""
    settings = system.settings
    specs = topic_specs(settings)
    facts = await read_log(settings.broker, specs)
    recorded = await recorded_log(system.mailbox[0], settings.app_id)
    lines = [f"cluster {facts.cluster.cluster_id} recorded {recorded.cluster_id or '-'}"]
    for spec in specs:
        found = facts.cluster.topics.get(spec.name)
        known = recorded.topics.get(spec.name)
        if found is None:
            lines.append(f"{spec.name} is not there")
            continue
        ranges = facts.ranges[spec.name].values()
        config = facts.configs.get(spec.name, {})
        lines.append(
            f"{spec.name} id={found.topic_id} recorded={known[0] if known else '-'}"
            f" partitions={found.partitions} records={sum(end - first for first, end in ranges)}"
            f" cleanup={config.get('cleanup.policy')} retention_ms={config.get('retention.ms')}"
        )
    return lines, judge_log(settings, specs, facts, recorded)


async def accept_push_topic(system: System, name: str) -> None:
    """Record a push topic that was made anew; raises StartRefused for any other, whose positions are stored."""
    if name != push_topic(system.settings.app_id):
        raise StartRefused(f"{name}: only the push topic holds nothing that positions point into")
    facts = await read_log(system.settings.broker, topic_specs(system.settings))
    if name not in facts.cluster.topics:
        raise StartRefused(f"{name} does not exist: run `qim topics create`")
    await system.accept(facts, [name])


def main(argv: Sequence[str]) -> int:
    """`qimctl topics [--accept NAME]`: 0 when a start would pass, 1 when not."""
    parser = argparse.ArgumentParser(prog="qimctl topics", description="show and judge the topics")
    parser.add_argument("--accept", metavar="NAME", help="record a push topic that was made anew")
    arguments = parser.parse_args(argv)

    async def run() -> tuple[list[str], list[str]]:
        async with open_system(Settings()) as system:
            if arguments.accept:
                await accept_push_topic(system, arguments.accept)
            return await topic_report(system)

    lines, faults = asyncio.run(run())
    print("\n".join(lines))
    for fault in faults:
        print(f"! {fault}")
    return int(bool(faults))
