"""The worker with the start gates and the operator's door, whether or not its own assembly has them.

faust -A tests.support.gated_app worker
"""

from __future__ import annotations

from typing import Any, cast

import qim
from stores.start_gates import pass_start_gates
from streams.control import mount_control

__all__ = ["app"]

app = qim.app
_on_start = app.on_start


async def _gated() -> None:
    await pass_start_gates(qim.settings, qim.links)
    await _on_start()


cast("Any", app).on_start = _gated
_routes = cast("Any", app.web).web_app.router.routes()
if not any("/control/shards" in str(route.resource) for route in _routes):
    mount_control(app, qim.materializer, qim.settings.control_token.get_secret_value())
