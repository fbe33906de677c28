"""The Kafka producer of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from faust.transport.drivers import aiokafka as driver

if TYPE_CHECKING:
    from streams.app import QimApp

__all__ = ["QimProducer"]


class QimProducer(driver.Producer):
    """Producer of a worker: acks=all; idempotent only where configured (LOG-03)."""

    def _settings_extra(self) -> Mapping[str, Any]:
        idempotent = cast("QimApp", self.app).qim.producer_idempotence
        return {"acks": "all", "enable_idempotence": idempotent}

    async def create_topic(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: topics are made by operations and only read back by the consumer (LOG-11)."""
