"""Named places at which a process of a test build kills itself, as a power cut would (docs/testing.md).

`QIM_TEST_KILL_POINT=after_w:3` kills the process when it reaches `after_w` for the third time. The settings refuse it unless
`QIM_TEST_BUILD=1` says that this is no production process; unarmed, a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from enum import Enum
from typing import Final

__all__ = ["KillPoint", "arm", "parse_kill_point", "reached"]


class KillPoint(Enum):
    """Where something is durable and the next thing is not yet."""

    AFTER_ENTRIES = "after_entries"
    AFTER_PROGRESS = "after_progress"
    AFTER_W = "after_w"
    AFTER_OUTBOX = "after_outbox"
    BEFORE_MARK = "before_mark"


class _Armed:
    point: KillPoint | None = None
    left = 0


_armed: Final = _Armed()


def parse_kill_point(text: str) -> tuple[KillPoint, int]:
    """`name` or `name:count`; raises ValueError for anything else."""
    name, _, count = text.partition(":")
    return KillPoint(name), int(count or 1)


def arm(text: str) -> None:
    """Kill this process at a point; an empty text disarms."""
    _armed.point, _armed.left = parse_kill_point(text) if text else (None, 0)


def reached(point: KillPoint) -> None:
    """The process stands at this point."""
    if _armed.point is not point:
        return
    _armed.left -= 1
    if _armed.left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
