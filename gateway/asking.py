"""Questions of clients that go to a store in pages: whatever happens, every client gets an answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from schemas.errors import ErrorCode, QimError, ServerFault
from stores.paging import PagedStage

__all__ = ["PagedDesk", "ask"]

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


class PagedDesk:
    """Takes questions from `start` to `stop`; those that arrive while a page is asked make the next one."""

    _stage: PagedStage[Any]

    def start(self) -> None:
        """Begin to answer."""
        self._stage.start()

    async def stop(self) -> None:
        """End; what is queued is not answered any more."""
        await self._stage.stop()

    @property
    def depth(self) -> int:
        """Questions that wait (OBS-07): one login, or as many pulls as its window has, for each connection."""
        return len(self._stage)
