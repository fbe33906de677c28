"""The operator's door of a worker: how its shards stand, and the order to take one again (`qimctl shards`, `shard restart`).

On the worker's HTTP port, for callers on this machine only; an order also needs the control token (QIM_CONTROL_TOKEN), and
without a configured token no order is taken at all.

    GET  /control/shards                  every shard of this worker
    POST /control/shards/{shard}/restart  lease, boundaries and W are read anew, the log is read again from W + 1
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from faust.types.web import Request, Response
from faust.web import View

from schemas.watermarks import NOTHING, unpack_w
from streams.app import QimApp
from streams.shard import ShardServices, ShardState, ShardTask

__all__ = ["ShardOwner", "mount_control", "retake", "shard_report"]

_LOG: Final = logging.getLogger(__name__)
_BEARER: Final = "Bearer "
_STOP_LIMIT_S: Final = 4.0


class ShardOwner(ShardServices, Protocol):
    """Who holds the shard tasks of a worker and serves them: the materializer."""

    @property
    def shards(self) -> dict[int, ShardTask]:
        """The present task of each shard; one that is taken again gets another."""


def shard_report(task: ShardTask) -> dict[str, Any]:
    """Where a shard stands; W as log offsets, the lowest and the highest lane, -1 for nothing."""
    marks = task.pipeline.ledger.marks()
    blob = task.position.store_w
    stored = [NOTHING] if blob is None else [mark.w for mark in unpack_w(blob)]
    return {
        "state": task.state.value,
        "failure": task.failure,
        "queued_pages": task.depth,
        "waiting_entries": task.pipeline.backlog_entries,
        "restarts": task.restarts,
        "lease_term": task.position.lease_term,
        "epoch": task.position.context.boundaries[-1][0],
        "table_w": [min(marks), max(marks)],
        "store_w": [min(stored), max(stored)],
    }


async def retake(owner: ShardOwner, shard: int) -> None:
    """Put a fresh task in the place of a shard's present one, failed or not; raises KeyError for a shard not held here.

    The fresh one begins as after a fault: it takes the lease again, which fences the former, reads where the shard stands,
    and drops every page of before.
    """
    former = owner.shards[shard]
    owner.hold(former.tp)
    await former.stop(_STOP_LIMIT_S)
    if owner.shards.get(shard) is not former:
        raise KeyError(shard)  # taken again, or given away, while the page in hand was finished
    fresh = ShardTask(former.tp, owner, former.position)
    fresh.state = ShardState.RECOVERING
    fresh.restarts = former.restarts + 1
    owner.shards[shard] = fresh
    _LOG.warning("shard %d is taken again by order; it was %s", shard, former.failure or "well")


def is_loopback(address: str | None) -> bool:
    """Whether a peer's address is one of this machine alone."""
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


def refusal(token: str, peer: str | None, header: str | None) -> tuple[HTTPStatus, str] | None:
    """Why an order is not taken, or None. `header` is the Authorization header."""
    if not is_loopback(peer):
        return HTTPStatus.FORBIDDEN, "orders are taken from this machine only"
    if not token:
        return HTTPStatus.FORBIDDEN, "QIM_CONTROL_TOKEN is not set for this worker"
    given = (header or "").removeprefix(_BEARER)
    if not hmac.compare_digest(given.encode(), token.encode()):
        return HTTPStatus.UNAUTHORIZED, "wrong control token"
    return None


def mount_control(app: QimApp, owner: ShardOwner, token: str) -> None:
    """Add the pages to the app's web server; once, before the app starts."""

    class Shards(View):
        """How the shards of this worker stand."""

        async def get(self, request: Request) -> Response:
            if not is_loopback(cast("Any", request).remote):
                return self.json({"error": "this machine only"}, status=HTTPStatus.FORBIDDEN)
            shards = {str(task.shard): shard_report(task) for task in owner.shards.values()}
            return self.json({"shards": shards})

    class Restart(View):
        """Take a shard again."""

        async def post(self, request: Request, shard: str) -> Response:
            peer, headers = cast("Any", request).remote, cast("Any", request).headers
            refused = refusal(token, peer, headers.get("Authorization"))
            if refused is not None:
                return self.json({"error": refused[1]}, status=refused[0])
            try:
                await retake(owner, int(shard))
            except (KeyError, ValueError):
                reason = f"shard {shard} is not held by this worker"
                return self.json({"error": reason}, status=HTTPStatus.NOT_FOUND)
            return self.json({"shard": int(shard)}, status=HTTPStatus.ACCEPTED)

    app.page("/control/shards")(Shards)
    app.page("/control/shards/{shard}/restart")(Restart)
