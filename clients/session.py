"""One device across its connections, apart from I/O: what to say when, and what the answers mean.

The shell tells what happened (`connection_made`, `data_received`, `connection_lost`, `tick`), always with the time, and
then carries out what the session wants: write `data_to_send()`, hand on `take_events()`, dial when `wants_dial`, drop the
socket when `wants_drop`, and call `tick` at `next_deadline_s()`. The steps of a connection:

1. AUTH with the cursor of the last contiguous batch
2. pull (cursor, sync_to_seq] with four requests in flight, then SYNC_COMPLETE (CUR-06, CUR-08, CUR-09)
3. ONLINE_READY: send again what the mailbox did not settle, with the same client_message_ids (SDK-06)
4. online: pushes are shown at once and mark the mailbox dirty; one pull at a time moves the cursor (PUSH-06)
5. no SEND_ACK for 3 s: PING; answered, the overdue messages are sent again; 7 s: drop, dial, from 1 (GW-09)

At least once, idempotent by client_message_id and by event identity; nothing here reads a clock or rolls a die.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from clients.cmid import ClientMessageIds
from clients.config import ClientConfig, Login
from clients.events import (
    EntriesShown,
    Kicked,
    LoginRefused,
    Offline,
    Online,
    SessionEvent,
    SyncProgress,
)
from clients.liveness import Dialling, Liveness
from clients.mailbox import MailboxSync
from clients.outbox import Outbox
from clients.pending import PendingMessage, PendingMessages
from clients.protocol import Answer, ClientProtocol, Event, Refusal, UnknownFrame
from clients.states import ClientState
from clients.timeline import Timeline
from schemas.errors import ProtocolError, RecordError
from schemas.frames import Opcode
from schemas.wire import (
    AuthOk,
    CursorRebased,
    MailboxBatch,
    OnlineReady,
    Pong,
    PushEvents,
    SendAck,
)

__all__ = ["DeviceSession"]


class DeviceSession:
    """The client of one device. All `now_s` are seconds of one monotonic clock of the shell."""

    def __init__(self, login: Login, config: ClientConfig) -> None:
        self.login = login
        self.config = config
        self.timeline = Timeline(keep=config.keep_timeline, start=login.start)
        self.cmids = ClientMessageIds(login.device_id, login.first_ordinal)
        self.wants_drop = False
        self.ended = False
        self._protocol = ClientProtocol()
        self._protocol.close()
        self._mailbox = MailboxSync(config)
        self._events: list[SessionEvent] = []
        self._outbox = Outbox(config, self._emit)
        self._liveness = Liveness(config)
        self._dialling = Dialling(config.reconnect_delays_s)
        self._session_epoch = 0
        self._sync_to_seq = 0
        self._reason = ""
        self._on_answer: Final[dict[Opcode, Callable[[int, Any, float], None]]] = {
            Opcode.SEND_ACK: self._on_ack,
            Opcode.PUSH_EVENTS: self._on_push,
            Opcode.MAILBOX_BATCH: self._on_batch,
            Opcode.PONG: self._on_pong,
            Opcode.AUTH_OK: self._on_auth_ok,
            Opcode.CURSOR_REBASED: self._on_rebased,
            Opcode.ONLINE_READY: self._on_online_ready,
            Opcode.KICKED: self._on_kicked,
        }

    # --- calls of the host ------------------------------------------------------------------------------------
    @property
    def pending(self) -> PendingMessages:
        """Messages without coordinates."""
        return self._outbox.pending

    @property
    def is_online(self) -> bool:
        """Whether messages go out at once."""
        return self._protocol.state is ClientState.ONLINE and not self.wants_drop

    def start(self, now_s: float) -> None:
        """Ask for the first connection; legal once more after a loss that was final."""
        self.ended = False
        self._dialling.succeeded()
        self._dialling.at(now_s)

    def stop(self, reason: str = "stopped") -> None:
        """End the session for good; pending messages stay in memory and are not sent."""
        self._end(reason)

    def send(self, message: PendingMessage, now_s: float) -> None:
        """Keep a message and, online, send it now; offline it goes out after the next sync (SDK-05, SDK-06).

        Raises ValueError for a client_message_id under way, RecordError for a record that cannot be encoded.
        """
        self._outbox.add(message, self._protocol if self.is_online else None, now_s)

    def resend(self, message: PendingMessage, now_s: float) -> None:
        """Send a settled message once more under its client_message_id; it counts as pending again.

        The server answers with the same coordinates (COM-04).
        """
        message.coordinates = None
        self.send(message, now_s)

    def pull(self, now_s: float) -> None:
        """Pull the mailbox now."""
        self._mailbox.hint(now_s, at_once=True)
        self._pull_what_is_due(now_s)

    # --- what happened ----------------------------------------------------------------------------------------
    @property
    def wants_dial(self) -> bool:
        """Whether the shell shall dial at `next_deadline_s` or now; False while a connection exists."""
        return self._dialling.due_s < inf

    def dialling(self) -> None:
        """The shell has begun to dial; `connection_made` or `connection_lost` follows."""
        self._dialling.cancel()

    def connection_made(self, now_s: float) -> None:
        """A socket is open: log in."""
        self.wants_drop = False
        self._protocol = ClientProtocol()
        self._liveness.connection_made(now_s)
        self._authenticate()

    def data_received(self, data: bytes, now_s: float) -> None:
        """Take bytes of the connection."""
        for event in self._protocol.receive_data(data):
            if isinstance(event, Answer):
                try:
                    self._on_answer[event.opcode](event.request_id, event.record, now_s)
                except (ProtocolError, RecordError) as error:
                    self._drop(f"damage: {error.detail}")
            else:
                self._on_other(event, now_s)
            if self.wants_drop:
                return

    def connection_lost(self, now_s: float, reason: str = "connection lost") -> None:
        """The socket is gone, or could not be opened: forget the connection, dial again after a pause."""
        reason = self._reason or reason
        self._reason = ""
        self.wants_drop = False
        self._protocol.close()
        self._mailbox.connection_lost()
        self._outbox.connection_lost()
        self._liveness.connection_lost()
        if not self.ended:
            self._dialling.failed(now_s)
            self._events.append(Offline(reason, final=False))

    def tick(self, now_s: float) -> None:
        """Judge time; cheap to call early."""
        if self._protocol.is_closed() or self.wants_drop:
            return
        if any(part.given_up(now_s) for part in (self._liveness, self.pending, self._mailbox)):
            self._drop("no answer within the detection limit")
            return
        if self.is_online:
            overdue = self.pending.mark_overdue(now_s)
            if self._liveness.take_ping(now_s, probe=overdue):
                self._ping(now_s)
            self._outbox.send_refused(self._protocol, now_s)
        self._pull_what_is_due(now_s)

    def next_deadline_s(self) -> float:
        """Return when `tick` (or a dial) is due next; `inf` for never."""
        if self._protocol.is_closed():
            return self._dialling.due_s
        return min(
            self._liveness.deadline_s(), self.pending.deadline_s(), self._mailbox.deadline_s()
        )

    @property
    def wants_write(self) -> bool:
        """Whether `data_to_send` has something."""
        return self._protocol.wants_write

    def data_to_send(self) -> bytes:
        """Return the bytes to write now."""
        return self._protocol.data_to_send()

    def take_events(self) -> list[SessionEvent]:
        """Return what happened since the last call, in order."""
        events = self._events
        if events:
            self._events = []
        return events

    # --- answers ----------------------------------------------------------------------------------------------
    def _on_ack(self, request_id: int, ack: SendAck, _now_s: float) -> None:
        self._outbox.on_ack(request_id, ack)

    def _on_push(self, _request_id: int, push: PushEvents, now_s: float) -> None:
        fresh = self.timeline.show(push["entries"])
        if fresh:
            self._outbox.settle_own(fresh)
            self._events.append(EntriesShown(fresh, pushed=True))
        self._mailbox.hint(now_s)

    def _on_batch(self, request_id: int, batch: MailboxBatch, now_s: float) -> None:
        self._liveness.login_answered(now_s)
        syncing = self._protocol.state is ClientState.SYNCING
        for entries, covered_through_seq, cursor in self._mailbox.deliver(request_id, batch, now_s):
            fresh = self.timeline.apply_batch(entries, covered_through_seq, cursor)
            if fresh:
                self._outbox.settle_own(fresh)
                self._events.append(EntriesShown(fresh, pushed=False))
            goal_seq = self._sync_to_seq if syncing else batch["lane_watermark"]
            self._events.append(SyncProgress(covered_through_seq, goal_seq))
        self._pull_what_is_due(now_s)
        self._complete_sync()

    def _on_pong(self, _request_id: int, pong: Pong, now_s: float) -> None:
        self._liveness.pong()
        self._liveness.ping_in(now_s, pong["next_ping_interval_ms"])
        if not self.is_online:
            return
        overdue = self._outbox.send_overdue(self._protocol, now_s)
        if pong["lane_watermark"] > self.timeline.cursor_seq:
            # After a retry its ACK has the first word; the mailbox settles the message if that is lost too.
            self._mailbox.hint(now_s, at_once=not overdue)
            self._pull_what_is_due(now_s)

    def _on_auth_ok(self, _request_id: int, ok: AuthOk, now_s: float) -> None:
        self._liveness.login_answered(now_s)
        self._liveness.ping_in(now_s, ok["next_ping_interval_ms"])
        self._session_epoch = ok["session_epoch"]
        self._sync_to_seq = ok["sync_to_seq"]
        self._mailbox.begin_login(ok["cursor_seq"], ok["sync_to_seq"], now_s)
        self._pull_what_is_due(now_s)
        self._complete_sync()

    def _on_rebased(self, _request_id: int, rebased: CursorRebased, now_s: float) -> None:
        self._liveness.login_answered(now_s)
        self.timeline.adopt_cursor(rebased["replay_from_seq"], rebased["new_cursor"])
        self._authenticate()

    def _on_online_ready(self, _request_id: int, ready: OnlineReady, now_s: float) -> None:
        # A gateway whose view of W lags behind the last one's says less than we have.
        if ready["sync_to_seq"] >= self.timeline.cursor_seq:
            self.timeline.adopt_cursor(ready["sync_to_seq"], ready["cursor"])
        self._liveness.online()
        self._dialling.succeeded()
        self._mailbox.go_online(now_s)
        self._events.append(Online(self._session_epoch, ready["sync_to_seq"]))
        self._outbox.send_all(self._protocol, now_s)

    def _on_kicked(self, _request_id: int, kicked: dict[str, str], _now_s: float) -> None:
        self._events.append(Kicked(kicked["reason"]))
        self._end(f"kicked: {kicked['reason']}")

    def _on_other(self, event: Event, now_s: float) -> None:
        if isinstance(event, Refusal):
            self._on_refusal(event, now_s)
        elif not isinstance(event, UnknownFrame | Answer):
            self._drop(str(event.error or "closed by the gateway"))

    def _on_refusal(self, refusal: Refusal, now_s: float) -> None:
        answers, request_id, error = refusal
        if answers is Opcode.SEND_MESSAGE:
            self._outbox.on_refusal(request_id, error, now_s)
        elif answers is Opcode.PULL_MAILBOX and error["retryable"]:
            self._liveness.login_answered(now_s)
            self._mailbox.refuse(request_id, now_s)
        elif error["retryable"] or answers is Opcode.SYNC_COMPLETE:
            self._drop(f"refused: {error['code']} {error['detail']}")
        elif answers in {Opcode.AUTH, Opcode.PULL_MAILBOX} or self._protocol.is_closed():
            code, rebuild = error["code"], error["rebuild_required"]
            self._events.append(LoginRefused(code, error["detail"], rebuild))
            self._end(f"refused: {code} {error['detail']}")

    # --- inner ------------------------------------------------------------------------------------------------
    def _authenticate(self) -> None:
        self._protocol.send_auth(
            {
                "access_token": self.login.access_token,
                "device_id": self.login.device_id,
                "cursor_kind": self.timeline.cursor_kind,
                "cursor": self.timeline.cursor,
                "foreground": self.config.foreground,
            }
        )

    def _ping(self, now_s: float) -> None:
        self._protocol.send_ping(
            {"client_time_ms": int(now_s * 1000), "foreground": self.config.foreground}
        )

    def _pull_what_is_due(self, now_s: float) -> None:
        if self._protocol.state not in {ClientState.SYNCING, ClientState.ONLINE}:
            return
        self._mailbox.send_due(self._protocol, self.timeline.cursor_seq, now_s)

    def _complete_sync(self) -> None:
        if self._protocol.state is ClientState.SYNCING and self._mailbox.login_complete:
            self._protocol.send_sync_complete({"sync_to_seq": self._sync_to_seq})

    def _emit(self, event: SessionEvent) -> None:
        self._events.append(event)

    def _drop(self, reason: str) -> None:
        self._reason = reason
        self.wants_drop = True

    def _end(self, reason: str) -> None:
        if not self.ended:
            self.ended = True
            self._events.append(Offline(reason, final=True))
        self._dialling.cancel()
        self._protocol.close()
        self._drop(reason)
