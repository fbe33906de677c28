"""The HTTP side of a gateway: /healthz, /ready, /metrics, /stats (OBS-02). Never a way for messages (GW-02).

/ready really asks: every Redis instance, the broker's metadata of the outbox and the producer behind it, the state of the
watermark view (COM-19, REG-44, REG-46). A check that takes longer than its limit counts as failed. /healthz is about this
process alone: a part of it that ended, or an always-zero metric that is not zero. See docs/observability.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from schemas.errors import QimError
from schemas.metrics import CONTENT_TYPE, MetricsPage
from stores.paging import failed_stages, page_counters

__all__ = ["Check", "HealthPages"]

_log = logging.getLogger(__name__)
_CHECK_LIMIT_S: Final = 3.0

Check = Callable[[], Awaitable[None]]
"""Returns when the named part is usable now, raises otherwise."""


class HealthPages:
    """Serves the pages; `checks` decide on /ready, `alive` gives the reason against /healthz or None."""

    def __init__(
        self,
        *,
        metrics: MetricsPage,
        checks: Mapping[str, Check],
        alive: Callable[[], str | None],
    ) -> None:
        self._metrics = metrics
        self._checks = checks
        self._alive = alive
        self.serving = False
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/stats", self._stats)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the bound port. /ready answers 503 until `serving` is set."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def not_ready(self) -> dict[str, str]:
        """Part -> why it is not ready; empty when clients can be served."""
        if not self.serving:
            return {"gateway": "starting or draining"}
        failed = failed_stages()
        if failed is not None:
            return {"stages": failed}
        names = list(self._checks)
        results = await asyncio.gather(*(self._judge(name) for name in names))
        return {name: why for name, why in zip(names, results, strict=True) if why is not None}

    async def _judge(self, name: str) -> str | None:
        try:
            async with asyncio.timeout(_CHECK_LIMIT_S):
                await self._checks[name]()
        except QimError as error:
            return error.detail
        except Exception as error:  # noqa: BLE001 - whatever a part answers with, it is not ready
            _log.warning("readiness of %s: %s", name, type(error).__name__)
            return type(error).__name__
        return None

    async def _healthz(self, _request: web.Request) -> web.Response:
        reason = self._alive() or failed_stages()
        broken = self._metrics.broken_promises()
        if broken:
            reason = f"not zero: {', '.join(broken)}"
        status = 200 if reason is None else 503
        return web.json_response({"ok": reason is None, "reason": reason}, status=status)

    async def _ready(self, _request: web.Request) -> web.Response:
        reasons = await self.not_ready()
        return web.json_response(
            {"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200
        )

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _stats(self, _request: web.Request) -> web.Response:
        return web.json_response({"pages": page_counters()})
