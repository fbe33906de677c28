"""From push records to entries on connections: nothing is shown before W covers it (PUSH-01). Pure.

A push usually arrives after the watermark row that covers it and goes out at once; one that overtakes it waits here, in order,
until the row comes. What is grouped per connection until `take` becomes one PUSH_EVENTS frame.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from gateway.connections import Client, ConnectionRegistry
from gateway.visibility import WatermarkView
from schemas.identifiers import lane_of
from schemas.records import PushBatch

__all__ = ["PushRouter"]


class _Held(NamedTuple):
    tenant: int
    user: int
    lane: int
    batch: PushBatch
    entries: list[bytes]


class PushRouter:
    """Routes pushes to the connected devices of their recipients; `dropped` counts what did not fit while it waited."""

    def __init__(self, view: WatermarkView, registry: ConnectionRegistry, max_held: int) -> None:
        self._view = view
        self._registry = registry
        self._max_held = max_held
        self._held: list[deque[_Held]] = [deque() for _ in view.shards]
        self._ready: dict[Client, list[bytes]] = {}
        self.held = 0
        self.dropped = 0

    def offer(self, batch: PushBatch) -> None:
        """Take one push record: route what W covers, hold the rest back."""
        shard, seq, common = (
            batch["mailbox_shard"],
            batch["mailbox_seq"],
            batch["common_encoded_body"],
        )
        if not 0 <= shard < len(self._held):
            self.dropped += 1  # a record of another shard layout; the mailbox is the truth
            return
        tenant = int.from_bytes(batch["tenant_id"], "big")
        covered = self._view.covers(shard, seq)
        for recipient in batch["recipients"]:
            user = recipient["user_id"]
            entries = [head + common for head in recipient["entry_heads"]]
            if covered:
                self._route(tenant, user, batch, entries)
                continue
            lane = lane_of(tenant, user)
            if self._view.covers(shard, seq, lane):
                self._route(tenant, user, batch, entries)
            elif self.held >= self._max_held:
                self.dropped += 1
            else:
                # Also for users without a connection: they may log in before W gets here, with a smaller sync_to_seq.
                self.held += 1
                self._held[shard].append(_Held(tenant, user, lane, batch, entries))

    def release(self, shard: int) -> None:
        """W of `shard` moved: route what it covers now, in the order of arrival."""
        waiting = self._held[shard]
        for _ in range(len(waiting)):
            held = waiting.popleft()
            if self._view.covers(shard, held.batch["mailbox_seq"], held.lane):
                self.held -= 1
                self._route(held.tenant, held.user, held.batch, held.entries)
            else:
                waiting.append(held)

    def take(self) -> dict[Client, list[bytes]]:
        """What is ready, by connection, in the order it was routed; the caller writes it out."""
        ready, self._ready = self._ready, {}
        return ready

    def _route(self, tenant: int, user: int, batch: PushBatch, entries: list[bytes]) -> None:
        origin = batch["origin_device_id"] if user == batch["sender_id"] else None
        for client in self._registry.devices_of(tenant, user):
            # The sending device has its SEND_ACK; what a login still pulls is not pushed as well (CUR-06).
            if client.identity.device_id != origin and batch["mailbox_seq"] > client.sync_to_seq:
                self._ready.setdefault(client, []).extend(entries)
