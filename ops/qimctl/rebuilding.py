"""`qimctl rebuild [table|mailbox|all] [--verify]`: the command line of rebuilding and comparing."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ops.qimctl.logs import LogWriter
from ops.qimctl.rebuild import Rebuilder, RebuildOptions
from ops.qimctl.scratch import verify_live
from ops.qimctl.system import open_system
from schemas.config import Settings
from stores.redis_link import RedisLink
from tables.log_reader import LogReader

__all__ = ["main", "summary"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="qimctl rebuild",
        description="throw derived state away and replay the log; workers must be stopped",
    )
    parser.add_argument("what", nargs="?", choices=("table", "mailbox", "all"))
    parser.add_argument(
        "--verify",
        action="store_true",
        help="fail unless the same came back; without a target: compare a living system, change nothing",
    )
    parser.add_argument(
        "--data",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a worker's data folder whose tables are removed too, repeatable",
    )
    parser.add_argument("--state", type=Path, metavar="FILE", help="where to keep what was there")
    parser.add_argument(
        "--accept-loss", action="store_true", help="go on where the log no longer reaches back"
    )
    parser.add_argument(
        "--scratch-redis",
        metavar="URL",
        action="append",
        default=[],
        help="instances for the scratch keys of --verify (default: the mailbox instances)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    arguments = parser.parse_args(argv)
    if arguments.what is None and not arguments.verify:
        parser.error("name what to rebuild, or --verify to compare a living system")
    return arguments


async def _rebuild(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    options = RebuildOptions(
        tables=arguments.what in ("table", "all"),
        mailboxes=arguments.what in ("mailbox", "all"),
        state=arguments.state or settings.data_dir / f"rebuild-{settings.app_id}.json",
        data_dirs=arguments.data,
        accept_loss=arguments.accept_loss,
    )
    async with (
        open_system(settings) as system,
        LogReader(settings.broker) as reader,
        LogWriter(settings.broker) as writer,
    ):
        return await Rebuilder(system, reader, writer, _say).run(options)


async def _verify(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    links = [RedisLink(url) for url in arguments.scratch_redis or settings.mailbox_redis]
    try:
        async with open_system(settings) as system, LogReader(settings.broker) as reader:
            return await verify_live(system, reader, links, _say)
    finally:
        for link in links:
            await link.close()


def summary(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{report['what']}: {report['records']} records replayed in {report['seconds']} s"]
    for name in ("mailbox", "progress"):
        part = report[name]
        verdict = "equal" if not part["different"] else f"{part['different']} DIFFER"
        lines.append(
            f"{name}: {part['compared']} compared, {part['before']} {part['after']} {verdict}"
        )
        lines += [f"  {example}" for example in part["examples"]]
    if behind := report.get("watermarks", {}).get("shards_behind"):
        lines.append(f"watermarks: shards {behind} are BEHIND where they were")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """0 when done and, with --verify, equal; 1 when something differs."""
    arguments = _parse(argv)
    settings = Settings()
    work = _verify if arguments.what is None else _rebuild
    report = asyncio.run(work(settings, arguments))
    print(summary(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(arguments.verify and not report["equal"])
