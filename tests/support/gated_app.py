"""The worker with the start gates in front of its own start hook: `faust -A tests.support.gated_app worker`."""

from __future__ import annotations

from faust.types import TP

import qim
from stores.start_gates import pass_start_gates

__all__ = ["app"]

app = qim.app
_start = qim.start_offsets


async def _gated(partitions: set[TP]) -> dict[TP, int]:
    await pass_start_gates(qim.settings, qim.links)
    return await _start(partitions)


app.start_offsets = _gated
