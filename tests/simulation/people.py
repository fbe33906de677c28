"""Who takes part in a schedule: six users in three lanes of one shard, what is sent to them, and their devices."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from unittest.mock import patch

from gateway.events import Login, PullRequested
from gateway.mailbox import plan_pull
from gateway.tokens import Identity
from schemas.errors import RequestError
from schemas.identifiers import lane_of
from schemas.records import GROUP_DISPATCH
from stores.mailbox import ScanResult
from tests.simulation.network import carry_out
from tests.simulation.world import World
from tests.support.dispatch_fakes import dispatch, users_of
from tests.support.samples import id16

__all__ = ["PEOPLE", "SHARD", "WIDE", "Device", "dispatch_value", "small_limits"]

SHARD: Final = 3
_LANES = 3


def _people() -> tuple[int, ...]:
    """Two users in each of three lanes of one shard."""
    lanes: dict[int, list[int]] = {}
    for user in users_of(SHARD, 400):
        lanes.setdefault(lane_of(0, user), []).append(user)
    pairs = [users[:2] for _, users in sorted(lanes.items()) if len(users) > 1][:_LANES]
    return tuple(user for pair in pairs for user in pair)


PEOPLE: Final = _people()
WIDE: Final = 5  # recipients of a heavy dispatch under small_limits


@contextmanager
def small_limits() -> Iterator[None]:
    """A dispatch of four recipients is heavy, a chunk has two entries: the same code at a size that can be explored."""
    with (
        patch("streams.materialize_core.HEAVY_RECIPIENTS", 3),
        patch("streams.heavy.HEAVY_RECIPIENTS", 3),
        patch("streams.materialize_core.MAILBOX_WRITE_BATCH_MAX_ENTRIES", 2),
    ):
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


_VALUES: dict[tuple[int, tuple[int, ...]], bytes] = {}


def dispatch_value(number: int, users: tuple[int, ...]) -> bytes:
    """An encoded dispatch, made once."""
    found = _VALUES.get((number, users))
    if found is None:
        found = _VALUES[number, users] = GROUP_DISPATCH.encode(dispatch(number, users, SHARD))
    return found


class Device:
    """A device that pulls and trusts its cursor: whatever it skips is lost for it."""

    def __init__(self, user: int) -> None:
        self.user = user
        self.login = Login(
            Identity(0, user, id16(user), 1), SHARD, lane_of(0, user), 0, 0, 0, b"", 0, lambda: 0
        )
        self.cursor = 0
        self.shown: list[bytes] = []

    def pull(self, world: World) -> None:
        """One PULL_MAILBOX of at most two items."""
        view = world.view.shards[SHARD]
        asked = PullRequested(0, self.cursor, 0, 2, 1 << 20)
        with suppress(RequestError):
            scan = plan_pull(self.login, asked, view)
            (result,) = carry_out(lambda: world.mailboxes.range_scan([scan]))
            if isinstance(result, ScanResult):
                self.shown += result.entries
                self.cursor = result.covered_through
