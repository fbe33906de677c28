"""The gateway with the start gates in front of its own start: `python -m tests.support.gated_gateway`."""

from __future__ import annotations

import asyncio
import sys

import gateway.main
from schemas.config import Settings
from schemas.errors import QimError
from stores.redis_link import RedisLink
from stores.start_gates import pass_start_gates

__all__ = ["main"]


async def _pass(settings: Settings) -> None:
    mailbox = [RedisLink(url) for url in settings.mailbox_redis]
    commit = [RedisLink(url) for url in settings.commit_redis]
    try:
        await pass_start_gates(settings, mailbox, commit)
    finally:
        for link in [*mailbox, *commit]:
            await link.close()


def main() -> int:
    """Gates, then `qim gateway`."""
    try:
        asyncio.run(_pass(Settings()))
        return gateway.main.main([])
    except QimError as problem:
        print(f"refused: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
