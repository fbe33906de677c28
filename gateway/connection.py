"""One client socket: the short asyncio loop over the protocol core.

In `data_received`: feed the core, act on its events, leave the writing to the end of the loop pass. A socket that does not take
bytes keeps them in its core, bounded and sliced; a commit step without capacity makes us stop reading, so that nothing is
dropped (COM-17, GW-12, REG-17).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import cast

from gateway.events import Batch, CommitRequested, Event, Login, LoginRequested, PullRequested
from gateway.hub import Hub
from gateway.login import Rebased, Refused
from gateway.ports import CommittedMessage
from gateway.protocol import ServerProtocol
from gateway.tokens import Identity
from schemas.errors import Bug, QimError

__all__ = ["GatewayConnection"]


class GatewayConnection(asyncio.Protocol):
    """One socket; implements `connections.Client` once it is authenticated."""

    __slots__ = (
        "_blocked_since_ms",
        "_closing_since_ms",
        "_core",
        "_eof_sent",
        "_hub",
        "_reading",
        "_starved_since_us",
        "_transport",
        "_waiting",
    )

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._core = ServerProtocol(hub.now_ms(), hub.limits)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Event] = deque()
        self._reading = True
        self._eof_sent = False
        self._starved_since_us: int | None = None
        self._blocked_since_ms: int | None = None
        self._closing_since_ms: int | None = None

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the socket, or close it when the process is full or going down."""
        self._transport = cast("asyncio.Transport", transport)
        hub = self._hub
        if hub.draining or len(hub.connections) >= hub.limits.max_connections:
            hub.metrics.refused_connections += 1
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=hub.limits.socket_buffer_high_bytes)
        hub.metrics.accepted += 1
        hub.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Feed, act, and write at the end of the pass."""
        core = self._core
        events = core.receive_data(data, self._hub.now_ms())
        if events:
            self._waiting.extend(events)
            self._act()
        if core.queued_bytes or core.is_closed():
            self._hub.schedule_write(self)

    def eof_received(self) -> bool:
        """The peer's half is closed: nothing can be answered reliably, the transport closes."""
        self._core.receive_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """Forget the socket; answers still under way are swallowed by the core."""
        self._core.receive_eof()
        self._waiting.clear()
        self._hub.connections.discard(self)
        self._unblock()
        if self._core.login is not None:
            self._hub.registry.remove(self)

    def pause_writing(self) -> None:
        """The socket's buffer is full: keep everything in the core, where urgent frames can overtake."""
        if self._blocked_since_ms is None:
            self._hub.blocked += 1
        self._blocked_since_ms = self._hub.now_ms()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._unblock()
        self._hub.schedule_write(self)

    def _unblock(self) -> None:
        if self._blocked_since_ms is not None:
            self._blocked_since_ms = None
            self._hub.blocked -= 1

    # --- what the core asks for --------------------------------------------------------------------------------------
    def go_on(self) -> None:
        """Act on what waited for commit capacity."""
        self._act()
        self._balance_reading()

    def _act(self) -> None:
        waiting = self._waiting
        while waiting:
            event = waiting[0]
            if isinstance(event, CommitRequested):
                if not self._hub.committer.has_capacity:
                    if self._starved_since_us is None:
                        self._starved_since_us = self._hub.now_us()
                    self._hub.starve(self)
                    break
                waiting.popleft()
                self._commit(event)
            elif isinstance(event, PullRequested):
                waiting.popleft()
                self._pull(event)
            else:
                waiting.popleft()
                self._log_in(event)
        else:
            self._starved_since_us = None
        self._balance_reading()

    def _balance_reading(self) -> None:
        """Read only while this connection's work fits (COM-17): no event waits and few sends are unanswered."""
        hub = self._hub
        few = self._core.sends_in_flight < hub.limits.max_sends_in_flight
        fits = few and not self._waiting and not hub.draining
        transport = self._transport
        if fits == self._reading or self._eof_sent or transport is None or transport.is_closing():
            return
        self._reading = fits
        if fits:
            transport.resume_reading()
        else:
            hub.metrics.reading_paused += 1
            transport.pause_reading()

    def _commit(self, event: CommitRequested) -> None:
        hub = self._hub
        hub.metrics.sends += 1
        since_us = now_us = hub.now_us()
        if self._starved_since_us is not None:  # nothing was read since, so the request is as old
            since_us = self._starved_since_us
            hub.metrics.permit_wait.observe(now_us - since_us)
        done = partial(self._committed, event.request_id, event.request.client_message_id, since_us)
        hub.committer.submit(event.request, done)

    def _committed(
        self,
        request_id: int,
        client_message_id: bytes,
        since_us: int,
        result: CommittedMessage | QimError,
    ) -> None:
        hub = self._hub
        if isinstance(result, QimError):
            hub.metrics.send_errors += 1
        else:
            hub.metrics.acks += 1
        hub.metrics.send_ack_latency.observe(hub.now_us() - since_us)
        self._core.commit_done(request_id, client_message_id, result)
        hub.schedule_write(self)
        if not self._reading:
            self._balance_reading()
        if hub.starved:
            hub.feed_starved()

    def _pull(self, event: PullRequested) -> None:
        self._hub.metrics.pulls += 1
        login = cast("Login", self._core.login)
        try:
            self._hub.reader.pull(login, event, partial(self._pulled, event.request_id))
        except QimError as error:
            self._pulled(event.request_id, error)

    def _pulled(self, request_id: int, result: Batch | QimError) -> None:
        self._hub.metrics.batches += isinstance(result, Batch)
        self._core.pull_done(request_id, result)
        self._hub.schedule_write(self)

    def _log_in(self, event: LoginRequested) -> None:
        self._hub.desk.submit(event, partial(self._logged_in, event.request_id))

    def _logged_in(self, request_id: int, outcome: Login | Rebased | Refused) -> None:
        core = self._core
        if isinstance(outcome, Login):
            if core.auth_accepted(request_id, outcome):
                self._hub.metrics.logins += 1
                replaced = self._hub.registry.add(self)
                if replaced is not None:
                    self._hub.metrics.kicked += 1
                    replaced.kick()
        elif isinstance(outcome, Rebased):
            core.auth_rebased(request_id, *outcome)
        else:
            core.auth_refused(request_id, outcome.error, outcome.identity)
        self._hub.schedule_write(self)

    # --- connections.Client --------------------------------------------------------------------------------------
    @property
    def identity(self) -> Identity:
        """The device and session that hold this connection."""
        return self._session.identity

    @property
    def sync_to_seq(self) -> int:
        """Upper end of what the client pulls itself (CUR-06)."""
        return self._session.sync_to_seq

    @property
    def _session(self) -> Login:
        if self._core.login is None:
            raise Bug("not authenticated")
        return self._core.login

    def push(self, entries: Sequence[bytes]) -> None:
        """Show entries; a peer that does not read gets the last of them later and pulls the rest (GW-13)."""
        dropped = self._core.push(entries)
        self._hub.metrics.pushes_dropped += dropped
        self._hub.metrics.pushed_events += len(entries) - dropped
        self._hub.schedule_write(self)

    def kick(self) -> None:
        """KICKED{REPLACED} and the end (GW-10)."""
        self._core.kick()
        self._hub.schedule_write(self)

    # --- writing and ending ----------------------------------------------------------------------------------------
    def write_out(self) -> None:
        """One write of at most a slice budget; the rest follows in later passes, so that urgent frames can overtake."""
        core, transport = self._core, self._transport
        if transport is None or transport.is_closing():
            return
        if self._blocked_since_ms is None:
            data = core.data_to_send(self._hub.limits.slice_budget_bytes)
            if data:
                transport.write(data)
        if core.queued_bytes:
            # write() may have called pause_writing(); then resume_writing() schedules the rest.
            if self._blocked_since_ms is None:
                self._hub.schedule_write(self)
        elif core.is_closed():
            self._close(transport)
        if core.is_closed() and self._closing_since_ms is None:
            self._closing_since_ms = self._hub.now_ms()

    def _close(self, transport: asyncio.Transport) -> None:
        """Say goodbye and wait for the peer's: closing a socket with unread bytes would reset it, and the peer would lose
        the last frames. What it still sends is read and thrown away; `check` ends the wait (linger_ms).
        """
        if self._eof_sent:
            return
        self._eof_sent = True
        if self._core.login is not None:
            self._hub.registry.remove(self)
        transport.write_eof()
        if not self._reading:
            self._reading = True
            transport.resume_reading()

    def check(self, now_ms: int) -> None:
        """The passing of time; called about once a second."""
        core = self._core
        if not core.is_closed():
            core.check(now_ms, blocked_since_ms=self._blocked_since_ms)
            if core.is_closed():
                self._hub.metrics.closed_by_error += 1
                self._hub.schedule_write(self)
        elif (
            self._closing_since_ms is not None
            and now_ms - self._closing_since_ms >= self._hub.limits.linger_ms
        ):
            self.abort()

    def drain(self) -> None:
        """This process goes down: no new requests, answers in flight still leave."""
        self._core.drain()
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()
        self._hub.schedule_write(self)

    def abort(self) -> None:
        """Tear the socket down; what was not written is lost to this peer, its mailbox has it."""
        if self._transport is not None:
            self._transport.abort()
