"""One question to a store for a page of clients: whatever happens, every client gets an answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from schemas.errors import ErrorCode, QimError, ServerFault

__all__ = ["ask"]

_log = logging.getLogger(__name__)
Result = TypeVar("Result")


async def ask(
    what: str, count: int, answers: Awaitable[Sequence[Result | QimError]]
) -> list[Result | QimError]:
    """The `count` results of `answers`, or for each of them the error that the whole call ended with.

    Causes are logged here (REG-48); the clients are told the code only.
    """
    try:
        results = list(await answers)
    except QimError as error:
        _log.error("%s for %d clients failed: %s", what, count, error.detail)
        return [error] * count
    except Exception:  # noqa: BLE001 - an answer is owed to every client, whatever broke
        _log.exception("%s for %d clients failed", what, count)
        return [ServerFault(f"{what} failed", ErrorCode.INTERNAL)] * count
    if len(results) != count:
        _log.error("%s gave %d answers for %d clients", what, len(results), count)
        return [ServerFault(f"{what} failed", ErrorCode.INTERNAL)] * count
    return results
