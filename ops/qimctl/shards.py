"""`qimctl shards` and `qimctl shard restart N`: who owns what, how far it is, and take a failed shard again.

Leases and epochs come from the mailbox Redis, the rest from the workers' HTTP ports (streams/control.py): those named by
--worker, those that registered an address with their lease, else the configured one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import aiohttp

from ops.qimctl.system import System, open_system
from schemas.config import Settings
from schemas.errors import ServerFault

__all__ = [
    "ShardLine",
    "main_restart",
    "main_shards",
    "restart_shard",
    "shard_lines",
    "shard_table",
]

_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
_POLL_S: Final = 0.1
_OK, _ACCEPTED = 200, 202
_ADDRESS_FIELDS: Final = ("web", "address", "web_address")


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One shard. Times in ms, W and queue as the owner tells them; None where nobody told."""

    shard: int
    owner: str | None
    term: int | None
    lease_ttl_ms: int | None
    epoch: int | None
    boundaries: Sequence[tuple[int, int]]
    store_w: Sequence[int] | None
    table_w: Sequence[int] | None
    state: str | None
    failure: str | None
    queued_pages: int | None
    restarts: int | None


async def _ask(session: aiohttp.ClientSession, address: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        async with session.get(f"http://{address}/control/shards") as reply:
            if reply.status != _OK:
                return {}
            shards: Mapping[str, Mapping[str, Any]] = (await reply.json())["shards"]
            return shards
    except (aiohttp.ClientError, OSError, TimeoutError):
        return {}


async def _lease(system: System, shard: int) -> tuple[dict[str, str], int]:
    link = system.mailbox[shard % len(system.mailbox)]
    key = f"{system.settings.app_id}:shardlease:{shard}"
    flat: list[bytes] = await link.command("HGETALL", key)
    ttl_ms: int = await link.command("PTTL", key)
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}, ttl_ms


async def _owners(
    system: System, addresses: Sequence[str]
) -> tuple[dict[int, tuple[dict[str, str], int]], dict[int, tuple[str, Mapping[str, Any]]]]:
    """Leases by shard, and (address, report) by shard from every worker that answers."""
    leases = {shard: await _lease(system, shard) for shard in range(system.shards)}
    registered = [
        fields[name]
        for fields, _ in leases.values()
        for name in _ADDRESS_FIELDS
        if fields.get(name)
    ]
    settings = system.settings
    asked = [*addresses, *registered] or [f"{settings.web_host}:{settings.web_port}"]
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        distinct = list(dict.fromkeys(asked))
        answers = await asyncio.gather(*(_ask(session, address) for address in distinct))
    reports: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for address, shards in zip(distinct, answers, strict=True):
        for shard, report in shards.items():
            known = reports.get(int(shard))
            # A worker that lost its lease may still show the shard: the larger term is the owner's.
            if known is None or report["lease_term"] >= known[1]["lease_term"]:
                reports[int(shard)] = (address, report)
    return leases, reports


async def shard_lines(system: System, addresses: Sequence[str]) -> list[ShardLine]:
    """Every shard as leases, stores and workers tell of it."""
    leases, reports = await _owners(system, addresses)
    lines = []
    for shard, (fields, ttl_ms) in leases.items():
        boundaries = await system.leases.boundaries(shard)
        _, report = reports.get(shard, ("", {}))
        try:
            marks = await system.store_marks(shard)
            store_w: Sequence[int] | None = [min(marks), max(marks)] if marks else None
        except ServerFault as damage:  # shown, not raised: the other shards are asked about too
            store_w, report = None, {**report, "failure": report.get("failure") or damage.detail}
        lines.append(
            ShardLine(
                shard=shard,
                owner=fields.get("owner"),
                term=int(fields["term"]) if "term" in fields else None,
                lease_ttl_ms=ttl_ms if ttl_ms > 0 else None,
                epoch=boundaries[-1][0] if boundaries else None,
                boundaries=boundaries,
                store_w=store_w,
                table_w=report.get("table_w"),
                state=report.get("state"),
                failure=report.get("failure"),
                queued_pages=report.get("queued_pages"),
                restarts=report.get("restarts"),
            )
        )
    return lines


def shard_table(lines: Sequence[ShardLine]) -> str:
    """A table for people; W is one number where all lanes agree, else lowest..highest."""
    head = [
        "shard",
        "owner",
        "term",
        "ttl",
        "epoch",
        "boundaries",
        "store-W",
        "table-W",
        "state",
        "queue",
        "restarts",
        "failure",
    ]
    rows = [head]
    for line in lines:
        ttl = None if line.lease_ttl_ms is None else f"{line.lease_ttl_ms / 1000:.1f}s"
        bounds = ",".join(f"{epoch}@{offset}" for epoch, offset in line.boundaries)
        cells = [line.shard, line.owner, line.term, ttl, line.epoch, bounds or None]
        cells += [_span(line.store_w), _span(line.table_w), line.state, line.queued_pages]
        cells += [line.restarts, line.failure]
        rows.append(["-" if cell is None else str(cell) for cell in cells])
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _span(marks: Sequence[int] | None) -> str | None:
    if marks is None:
        return None
    low, high = marks
    return str(low) if low == high else f"{low}..{high}"


async def restart_shard(
    system: System, shard: int, addresses: Sequence[str], timeout_s: float
) -> str:
    """Order the owner to take the shard again and wait until it runs; returns what it then says.

    Raises ServerFault when no worker holds the shard, the order is refused, or it does not run in time.
    """
    _, reports = await _owners(system, addresses)
    if shard not in reports:
        raise ServerFault(f"no worker that answers holds shard {shard}: name it with --worker")
    address, before = reports[shard]
    token = system.settings.control_token.get_secret_value()
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        url = f"http://{address}/control/shards/{shard}/restart"
        async with session.post(url, headers={"Authorization": f"Bearer {token}"}) as reply:
            if reply.status != _ACCEPTED:
                raise ServerFault(f"{address}: {(await reply.json())['error']}")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    now = (await _ask(session, address)).get(str(shard), {})
                    if now.get("state") == "failed":
                        raise ServerFault(f"shard {shard} failed again: {now['failure']}")
                    if now.get("state") == "running" and now["lease_term"] > before["lease_term"]:
                        return f"shard {shard} runs under term {now['lease_term']}"
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ServerFault(f"shard {shard} does not run after {timeout_s:g} s") from None


def _worker_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="HTTP address of a worker, repeatable (default: as registered or configured)",
    )


def main_shards(argv: Sequence[str]) -> int:
    """`qimctl shards`: 0 when all shards run, 1 when one has failed or nobody owns it."""
    parser = argparse.ArgumentParser(prog="qimctl shards", description="show every mailbox shard")
    _worker_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args(argv)

    async def run() -> list[ShardLine]:
        async with open_system(Settings()) as system:
            return await shard_lines(system, arguments.worker)

    lines = asyncio.run(run())
    if arguments.json:
        for line in lines:
            print(json.dumps(asdict(line)))
    else:
        print(shard_table(lines))
    return int(any(line.owner is None or line.state == "failed" for line in lines))


def main_restart(argv: Sequence[str]) -> int:
    """`qimctl shard restart N`."""
    parser = argparse.ArgumentParser(prog="qimctl shard", description="order the owner of a shard")
    parser.add_argument("action", choices=("restart",))
    parser.add_argument("shard", type=int)
    _worker_option(parser)
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds to wait")
    arguments = parser.parse_args(argv)

    async def run() -> str:
        async with open_system(Settings()) as system:
            return await restart_shard(system, arguments.shard, arguments.worker, arguments.timeout)

    print(asyncio.run(run()))
    return 0
