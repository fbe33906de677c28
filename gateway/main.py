"""`qim gateway`: one ConnectionNode with its commit step; only assembly.

Start, in this order: the gates of every Redis instance, the watermark view read to its end, the writer with its producer, and
only then the listening socket (TAKE-08). Stop: drain the clients, then the writer, then the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import time
from collections.abc import Sequence

import uvloop

from gateway.connections import ConnectionRegistry
from gateway.cursor import FIRST_BOUNDARIES, CursorSigner, EpochBoundaries
from gateway.follower import Follower
from gateway.health import HealthPages
from gateway.hub import Hub
from gateway.limits import GatewayLimits
from gateway.login import LoginDesk
from gateway.mailbox import MailboxReader
from gateway.metrics import GatewayMetrics
from gateway.pushes import PushRouter
from gateway.readings import GatewayReadings
from gateway.server import GatewayServer
from gateway.tokens import AccessTokens
from gateway.visibility import WatermarkView
from gateway.writer import ConversationWriter
from schemas.collector import spare_collector
from schemas.config import Settings
from schemas.errors import Bug, ServerFault, StartRefused
from schemas.kill_points import arm
from schemas.logs import configure_logging
from schemas.metrics import MetricsPage
from schemas.topics import WATERMARKS_TABLE, changelog_topic, push_topic
from stores.leases import RedisShardLeases
from stores.paging import Pace, stage_readings
from stores.redis_gate import is_local
from stores.redis_link import RedisLink, link_readings
from stores.redis_mailbox import RedisMailboxStore
from stores.redis_messages import RedisMessageStore
from stores.start_gates import pass_start_gates

__all__ = ["Gateway", "main"]

_log = logging.getLogger(__name__)
_CURSOR_KEY_ID = 1


class Gateway:
    """Everything of one gateway process, built from its settings; `start` and `stop` once each."""

    def __init__(self, settings: Settings, limits: GatewayLimits | None = None) -> None:
        self._settings = settings
        self.limits = limits or GatewayLimits()
        self.metrics = GatewayMetrics()
        self._mailbox_links = [RedisLink(url) for url in settings.mailbox_redis]
        self._commit_links = [
            RedisLink(url, settings.message_store_connections) for url in settings.commit_redis
        ]
        self._leases = RedisShardLeases(self._mailbox_links, settings.app_id)
        self.view = WatermarkView(settings.mailbox_shard_count)
        self.registry = ConnectionRegistry(self.limits.max_session_epochs)
        self.router = PushRouter(self.view, self.registry, self.limits.max_held_pushes)
        self.writer = ConversationWriter(
            settings, RedisMessageStore(self._commit_links, settings.app_id)
        )
        self.follower = Follower(
            broker=settings.broker,
            watermarks_topic=changelog_topic(settings.app_id, WATERMARKS_TABLE),
            push_topic=push_topic(settings.app_id),
            push_partitions=settings.push_partitions,
            view=self.view,
            router=self.router,
            boundaries=self._boundaries,
            on_ready=self._show_pushes,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            pace=Pace(settings.gateway_page_interval_ms / 1000, records_per_message=2.5),
            on_failure=self._fail,
        )
        signer = _cursor_signer(settings)
        mailbox = RedisMailboxStore(self._mailbox_links, settings.app_id)
        self._desk = LoginDesk(
            tokens=_access_tokens(settings),
            signer=signer,
            registry=self.registry,
            store=mailbox,
            view=self.view,
            limits=self.limits,
            now_s=time.time,
            boundaries=self._boundaries,
            on_failure=self._fail,
        )
        self._reader = MailboxReader(mailbox, self.view, signer, self.limits, self._fail)
        self._readings = GatewayReadings(
            writer=self.writer,
            follower=self.follower,
            registry=self.registry,
            router=self.router,
            reader=self._reader,
            desk=self._desk,
        )
        self.health = HealthPages(
            metrics=MetricsPage(
                "gateway", (self.metrics.readings, self._readings, stage_readings, link_readings)
            ),
            checks={
                "mailbox redis": lambda: _ping(self._mailbox_links),
                "commit redis": lambda: _ping(self._commit_links),
                "writer": self.writer.ready,
                "watermarks": self._check_view,
            },
            alive=lambda: self.failure,
        )
        self.failure: str | None = None
        self.ended = asyncio.Event()
        self._server: GatewayServer | None = None
        self.address = ("", 0)
        self.web_port = 0

    async def start(self) -> None:
        """Start everything and listen; raises QimError when a gate refuses or a part does not answer."""
        settings = self._settings
        host, _, port = settings.gateway_listen.rpartition(":")
        if not is_local(f"tcp://{settings.gateway_listen}"):
            _log.warning("clients are served in plain text on %s", settings.gateway_listen)
        self.web_port = await self.health.start(settings.web_host, settings.gateway_web_port)
        await pass_start_gates(settings, self._mailbox_links, self._commit_links)
        for number, shard in enumerate(self.view.shards):
            shard.set_boundaries(await self._boundaries(number))
        await self.follower.start(settings.start_timeout_s)
        await self.writer.start()
        self._desk.start()
        self._reader.start()
        hub = Hub(
            limits=self.limits,
            committer=self.writer,
            desk=self._desk,
            reader=self._reader,
            registry=self.registry,
            metrics=self.metrics,
        )
        self._readings.hub = hub
        self._server = GatewayServer(hub)
        self.address = await self._server.start(host, int(port))
        self.health.serving = True

    async def stop(self) -> None:
        """Drain clients, finish commits, close everything; also after a start that failed half way."""
        self.health.serving = False
        if self._server is not None:
            await self._server.drain()
        await self._desk.stop()
        await self._reader.stop()
        await self.writer.stop()
        await self.follower.stop()
        await self.health.stop()
        for link in [*self._mailbox_links, *self._commit_links]:
            await link.close()

    async def _boundaries(self, shard: int) -> EpochBoundaries:
        """Epochs of a shard; one that no worker ever took begins like a fresh one."""
        return await self._leases.boundaries(shard) or FIRST_BOUNDARIES

    def _show_pushes(self) -> None:
        for client, entries in self.router.take().items():
            client.push(entries)

    def _fail(self, error: BaseException) -> None:
        """A defect ended a part that every client needs: end the process, so that it is started again."""
        self.failure = f"a part of the gateway ended: {type(error).__name__}"
        self.health.serving = False
        self.ended.set()

    async def _check_view(self) -> None:
        if not self.follower.caught_up:
            raise ServerFault("the watermark view is not caught up")


async def _ping(links: Sequence[RedisLink]) -> None:
    for link in links:
        if await link.command("PING") != b"PONG":
            raise ServerFault(f"{link.name} does not answer PING")


def _access_tokens(settings: Settings) -> AccessTokens:
    try:
        return AccessTokens(settings.token_secret.get_secret_value().encode())
    except ValueError as error:
        raise StartRefused(f"QIM_TOKEN_SECRET: {error}") from None


def _cursor_signer(settings: Settings) -> CursorSigner:
    try:
        return CursorSigner({_CURSOR_KEY_ID: settings.cursor_secret.get_secret_value().encode()})
    except ValueError as error:
        raise StartRefused(f"QIM_CURSOR_SECRET: {error}") from None


async def _serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    gateway = Gateway(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, gateway.ended.set)
    try:
        await gateway.start()
        spare_collector()
        host, port = gateway.address
        print(f"gateway ready on {host}:{port}, http port {gateway.web_port}", flush=True)
        await gateway.ended.wait()
    finally:
        await gateway.stop()
    if gateway.failure is not None:
        raise Bug(gateway.failure)


def main(argv: Sequence[str] | None = None) -> int:
    """`qim gateway`: run until SIGTERM or Ctrl-C; settings come from QIM_ variables. Raises QimError when it cannot
    start, or when a part of it failed.
    """
    parser = argparse.ArgumentParser(
        prog="qim gateway", description="serve clients on QIM_GATEWAY_LISTEN until SIGTERM"
    )
    parser.parse_args(argv)
    settings = Settings()
    arm(settings.test_kill_point)
    configure_logging(settings, settings.gateway_name)
    uvloop.run(_serve(settings))
    return 0
