"""Recoverer: continues commits that were left in the middle, without the client (COM-01, COM-03, COM-10).

It reads the recovery index of each commit instance and gives what is old enough to the commit step, which publishes
and marks it like any other intent. A message that the client retries at the same time may get a second outbox record;
dispatch_id and payload_digest absorb it (COM-08).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gateway.commit import CommitStep
from gateway.commit_core import Intent
from schemas.background import Background
from schemas.errors import QimError, ServerFault
from stores.messages import MessageStore, StaleIntent

__all__ = ["Recoverer"]

_log = logging.getLogger(__name__)
_ROUND_S = 2.0
_AGE_MS = 5_000  # above every page that is merely slow, below the 30 s of GATE-13
_BATCH = 1024  # COM-25
_BUDGET_S = 2.0  # COM-25
_PAUSE_S = 0.05


class Recoverer(Background):
    """Runs a round over all commit instances every 2 s; `recovered` counts the intents it continued.

    What was not continued when it stops is found again by the next recoverer.
    """

    def __init__(
        self,
        store: MessageStore,
        commit: CommitStep,
        instances: int,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._commit = commit
        self._instances = instances
        self._now_ms = now_ms
        self.recovered = 0
        super().__init__("commit-recoverer", self._run)

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except ServerFault as error:
                _log.error("recoverer: %s", error.detail)
            await asyncio.sleep(_ROUND_S)

    async def round(self) -> None:
        """One round: each instance until a short batch or until its time is used up (COM-25).

        A full batch stays in the index until it is marked, so the next one is asked for after a moment.
        """
        for instance in range(self._instances):
            deadline = time.monotonic() + _BUDGET_S
            while time.monotonic() < deadline:
                found = await self._store.stale_intents(instance, self._now_ms() - _AGE_MS, _BATCH)
                self.recovered += sum(self._resume(stale) for stale in found)
                if len(found) < _BATCH:
                    break
                await asyncio.sleep(_PAUSE_S)

    def _resume(self, stale: StaleIntent) -> bool:
        intent = Intent(
            stale.tenant,
            stale.sender,
            stale.client_message_id,
            stale.conversation_id,
            stale.bucket,
            stale.identity,
            duplicate=True,
            message_id=stale.message_id,
            last_activity_id=stale.last_activity_id,
            trace_id=stale.trace_id,
            committed_at_ms=stale.committed_at_ms,
            conversation_seq=stale.conversation_seq,
            outbox_head=stale.outbox_meta,
            record=stale.record,
        )
        try:
            return self._commit.resume(intent, stale.state)
        except QimError as error:
            _log.error("intent cannot be continued: %s", error.detail)
            return False
