"""The server side of one client connection, apart from I/O: bytes and calls in, events and bytes out.

    receive_data(bytes, now) -> events the shell must act on                   (login, commit, pull)
    auth_accepted / commit_done / pull_done / push / kick / drain / check      calls with the results
    data_to_send(budget) -> bytes                                              what to write next

No socket, no clock, no event loop, no store. Every frame and every call is one lookup in `states.TRANSITIONS`; damage never
raises into the shell but becomes an ERROR frame with a code and the end of the connection (`is_closed`). Promises: a SEND_ACK is
built from a CommittedMessage only (COM-02); a cursor moves by MAILBOX_BATCH only, never by a push (CUR-02); an answer is never
dropped (COM-18), a push may be (GW-13), and then the last one is delivered once the peer reads again, so that it pulls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from gateway import replies
from gateway.checks import check_pull, check_send
from gateway.core import UNAUTHENTICATED, ConnectionCore
from gateway.coverage import Coverage
from gateway.events import Batch, CommitRequested, Event, Login, LoginRequested
from gateway.limits import GatewayLimits
from gateway.ports import CommittedMessage
from gateway.states import CLIENT_FRAMES, TRANSITIONS, Action, Input, State, violation
from gateway.tokens import Identity
from schemas.errors import Bug, ClientError, ErrorCode, ProtocolError, QimError, RequestError
from schemas.frames import FrameDecoder, Message, Opcode, Stream
from schemas.wire import AUTH, PING, PULL_MAILBOX, SEND_MESSAGE, SYNC_COMPLETE

__all__ = ["ServerProtocol"]

_KNOWN_OPCODES: Final = frozenset(int(opcode) for opcode in Opcode)
_REPLACED: Final = "REPLACED"  # GW-10


class ServerProtocol(ConnectionCore):
    """Server core of one connection. All times are milliseconds of one monotonic clock of the shell."""

    def __init__(self, now_ms: int, limits: GatewayLimits) -> None:
        super().__init__(now_ms, limits)
        self.login: Login | None = None
        self._decoder = FrameDecoder(limits.max_inbound_message_bytes)
        self._coverage = Coverage(0, 0)
        self._now_ms = now_ms
        self._stranger_bytes = 0
        self._attempts = 0
        self._proved: Identity | None = None

    # --- bytes in ------------------------------------------------------------------------------------------------
    def receive_data(self, data: bytes, now_ms: int) -> list[Event]:
        """Take any cut of the peer's byte stream; returns what the shell has to do, in order. Never raises."""
        events: list[Event] = []
        if self.is_closed():
            return events
        self._now_ms = self._heartbeat.heard_ms = now_ms
        if self.state in UNAUTHENTICATED:
            self._stranger_bytes += len(data)
            if self._stranger_bytes > self._limits.max_unauthenticated_bytes:
                self._fail(ProtocolError("too much before AUTH_OK", ErrorCode.FRAME_TOO_LARGE))
                return events
        messages = self._decoder.feed(data)
        for message in messages:
            event = self._receive(message)
            if event is not None:
                events.append(event)
            if self.is_closed():
                return events
        if self._decoder.error is not None:
            self._fail(self._decoder.error)
        return events

    def _receive(self, message: Message) -> Event | None:
        given = CLIENT_FRAMES.get(message.opcode)
        if given is None:
            known = message.opcode in _KNOWN_OPCODES
            given = Input.SERVER_FRAME if known else Input.UNKNOWN_FRAME
        try:
            if given is Input.SYNC_FULL and self.state is State.SYNCING:
                given = self._judge_sync(message)
            step = TRANSITIONS.get((self.state, given))
            if step is None:
                detail = f"{given.name} in state {self.state.name}"
                raise ProtocolError(detail, violation(self.state))
            self.state = step.state
            return self._FRAME_ACTIONS[step.action](self, message)
        except RequestError as error:  # this request is refused, the connection goes on
            self._send_error(error, message.request_id)
        except ClientError as error:  # the frame is not what the protocol allows
            self._fail(error, message.request_id)
        return None

    # --- frames of the peer --------------------------------------------------------------------------------------
    def _request_login(self, message: Message) -> Event | None:
        auth = AUTH.decode(message.payload)
        self._attempts += 1
        if self._attempts > self._limits.max_auth_attempts:
            raise ProtocolError("too many AUTH attempts", ErrorCode.AUTH_FAILED)
        return LoginRequested(
            message.request_id,
            auth["access_token"],
            auth["device_id"],
            auth["cursor_kind"],
            auth["cursor"],
            self._proved,
        )

    def _request_commit(self, message: Message) -> Event | None:
        frame = SEND_MESSAGE.decode(message.payload)
        try:
            request = check_send(frame, self._session.identity)
        except RequestError as error:
            self._send_error(error, message.request_id, frame["client_message_id"])
            return None
        self.sends_in_flight += 1
        return CommitRequested(message.request_id, request)

    def _request_pull(self, message: Message) -> Event | None:
        pull = PULL_MAILBOX.decode(message.payload)
        if self.pulls_in_flight >= self._limits.pull_window:
            raise ProtocolError("pull window exceeded", ErrorCode.PULL_WINDOW_EXCEEDED)
        request = check_pull(message.request_id, pull, self._limits)
        self.pulls_in_flight += 1
        return request

    def _judge_sync(self, message: Message) -> Input:
        """CUR-09: the value of this AUTH_OK, and served intervals that join without a gap."""
        asked = SYNC_COMPLETE.decode(message.payload)["sync_to_seq"]
        whole = asked == self._session.sync_to_seq and self._coverage.complete
        return Input.SYNC_FULL if whole else Input.SYNC_GAP

    def _send_online_ready(self, message: Message) -> Event | None:
        payload = replies.online_ready(self._session)
        self._put(Opcode.ONLINE_READY, Stream.CONTROL, message.request_id, payload)
        return None

    def _send_pong(self, message: Message) -> Event | None:
        ping = PING.decode(message.payload)
        self._heartbeat.ping(self._now_ms, foreground=ping["foreground"])
        watermark = self._session.lane_watermark()
        payload = replies.pong(ping["client_time_ms"], self._heartbeat, watermark)
        self._put(Opcode.PONG, Stream.CONTROL, message.request_id, payload)
        return None

    def _refuse_opcode(self, message: Message) -> Event | None:
        raise RequestError(f"opcode {message.opcode:#06x}", ErrorCode.UNKNOWN_OPCODE)

    def _refuse_sync(self, message: Message) -> Event | None:
        self._send_error(
            RequestError("other sync_to_seq or uncovered gap", ErrorCode.SYNC_INCOMPLETE),
            message.request_id,
        )
        return None

    def _ignore(self, _message: Message) -> Event | None:
        """Nothing: the connection is draining, its closing ERROR will say so."""
        return None

    _FRAME_ACTIONS: ClassVar[dict[Action, Callable[[ServerProtocol, Message], Event | None]]] = {
        Action.REQUEST_LOGIN: _request_login,
        Action.REQUEST_COMMIT: _request_commit,
        Action.REQUEST_PULL: _request_pull,
        Action.SEND_PONG: _send_pong,
        Action.SEND_ONLINE_READY: _send_online_ready,
        Action.REFUSE_OPCODE: _refuse_opcode,
        Action.REFUSE_SYNC: _refuse_sync,
        Action.IGNORE: _ignore,
    }

    # --- results of the shell ------------------------------------------------------------------------------------
    def auth_accepted(self, request_id: int, login: Login) -> bool:
        """AUTH_OK, and the login barrier starts; False when the connection ended meanwhile."""
        if self._move(Input.AUTH_ACCEPTED).action is Action.IGNORE:
            return False
        self.login = login
        self._coverage = Coverage(login.start_seq, login.sync_to_seq)
        payload = replies.auth_ok(login, self._heartbeat.interval_ms)
        self._put(Opcode.AUTH_OK, Stream.CONTROL, request_id, payload)
        return True

    def auth_rebased(
        self, request_id: int, identity: Identity, new_cursor: bytes, replay_from_seq: int
    ) -> None:
        """CURSOR_REBASED: the peer authenticates again with the new cursor (CUR-04 step 3)."""
        if self._move(Input.AUTH_REBASED).action is not Action.IGNORE:
            self._proved = identity
            payload = replies.cursor_rebased(new_cursor, replay_from_seq)
            self._put(Opcode.CURSOR_REBASED, Stream.CONTROL, request_id, payload)

    def auth_refused(
        self, request_id: int, error: QimError, identity: Identity | None = None
    ) -> None:
        """The login failed; whether the peer may try again here is a property of the code (`ErrorCode.closes`).

        `identity` is what the attempt proved before it failed; later attempts must prove the same (REB-02).
        """
        given = Input.AUTH_REJECTED if error.code.closes else Input.AUTH_REFUSED
        if self._move(given).action is not Action.IGNORE:
            self._proved = identity or self._proved
            self._send_error(error, request_id)

    def commit_done(
        self, request_id: int, client_message_id: bytes, result: CommittedMessage | QimError
    ) -> None:
        """The result of a CommitRequested: SEND_ACK with the current request_id (COM-04), or ERROR."""
        self.sends_in_flight -= 1
        if self._move(Input.COMMIT_DONE).action is Action.IGNORE:
            return
        if isinstance(result, QimError):
            self._send_error(result, request_id, client_message_id)
            return
        payload = replies.send_ack(client_message_id, result)
        self._put(Opcode.SEND_ACK, Stream.REALTIME, request_id, payload)

    def pull_done(self, request_id: int, result: Batch | QimError) -> None:
        """The result of a PullRequested: MAILBOX_BATCH, counted towards the login barrier, or ERROR."""
        self.pulls_in_flight -= 1
        if self._move(Input.PULL_DONE).action is Action.IGNORE:
            return
        if isinstance(result, QimError):
            self._send_error(result, request_id)
            return
        if self.state is State.SYNCING:
            self._coverage.add(result.after_seq, result.covered_through_seq)
            if self._coverage.pieces > self._limits.max_sync_pieces:
                self._fail(ProtocolError("scattered pulls", ErrorCode.PULL_WINDOW_EXCEEDED))
                return
        self._put(Opcode.MAILBOX_BATCH, Stream.BULK, request_id, replies.mailbox_batch(result))

    def push(self, entries: Sequence[bytes]) -> int:
        """PUSH_EVENTS with `entries` in order; returns how many were dropped because the peer does not read.

        Nothing is lost by a drop: the mailbox has the entries, and the last one is pushed when the peer reads again, which
        makes it pull everything before (PUSH-06).
        """
        if self._move(Input.PUSH).action is Action.IGNORE or not entries:
            return 0
        if self._missed_push is not None or self._out.queued_bytes > self._limits.push_queue_bytes:
            self._missed_push = entries[-1]
            return len(entries)
        self._put_push(entries)
        return 0

    def kick(self) -> None:
        """KICKED{REPLACED}, then the end: the same device of the same user logged in again (GW-10)."""
        if self._move(Input.KICK).action is not Action.IGNORE:
            self._put(Opcode.KICKED, Stream.CONTROL, 0, replies.kicked(_REPLACED))

    # --- inside --------------------------------------------------------------------------------------------------
    @property
    def _session(self) -> Login:
        if self.login is None:
            raise Bug("a session is needed before AUTH_OK")
        return self.login
