"""The part of the server core that no frame is special to: state, queued answers, the ways a connection ends. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway import replies
from gateway.heartbeat import Heartbeat
from gateway.limits import GatewayLimits
from gateway.outbound import Outbound
from gateway.states import TRANSITIONS, Action, Input, State, Step
from schemas.errors import Bug, ClientError, ErrorCode, ProtocolError, QimError, RequestError
from schemas.frames import Opcode, Stream

__all__ = ["UNAUTHENTICATED", "ConnectionCore"]

UNAUTHENTICATED: Final = (State.CONNECTED, State.AUTHENTICATING)


class ConnectionCore:
    """State and output of one connection. All times are milliseconds of one monotonic clock of the shell."""

    def __init__(self, now_ms: int, limits: GatewayLimits) -> None:
        self.state = State.CONNECTED
        self.sends_in_flight = 0
        self.pulls_in_flight = 0
        self._limits = limits
        self._heartbeat = Heartbeat(now_ms)
        self._opened_ms = now_ms
        self._out = Outbound()
        self._missed_push: bytes | None = None

    # --- bytes out -----------------------------------------------------------------------------------------------
    def data_to_send(self, budget_bytes: int) -> bytes:
        """Whole frames to write now, urgent streams first, until `budget_bytes` is reached; b"" when none waits."""
        data = self._out.take(budget_bytes)
        missed = self._missed_push
        if missed is not None and self._out.queued_bytes * 2 <= self._limits.push_queue_bytes:
            self._missed_push = None
            if not self.is_closed():
                self._put_push([missed])
        return data

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for `data_to_send`."""
        return self._out.queued_bytes

    def is_closed(self) -> bool:
        """True when the shell shall close the socket after what `data_to_send` still holds."""
        return self.state is State.CLOSED

    # --- ends ----------------------------------------------------------------------------------------------------
    def receive_eof(self) -> None:
        """The peer closed or the socket broke: nothing can be answered any more (COM-18)."""
        self._move(Input.EOF)
        self._out.clear()

    def drain(self) -> None:
        """This gateway goes down: answers in flight still leave; `check` closes when none is left."""
        if self._move(Input.DRAIN).action is Action.SEND_ERROR:
            self._send_error(RequestError("gateway is draining", ErrorCode.DRAINING), 0)

    def check(self, now_ms: int, *, blocked_since_ms: int | None = None) -> None:
        """Judge time: a login that takes too long, silence, a peer that does not read, a drain that is finished.

        `blocked_since_ms` is when the socket last stopped taking bytes, None while it takes them.
        """
        if self.is_closed():
            return
        if blocked_since_ms is not None and (
            now_ms - blocked_since_ms >= self._limits.write_stall_ms
        ):
            self._fail_slow()
        elif self.state in UNAUTHENTICATED:
            if now_ms - self._opened_ms >= self._limits.auth_timeout_ms:
                self._time_out("no login in time")
        elif now_ms >= self._heartbeat.deadline_ms:
            self._time_out("nothing heard")
        elif self.state is State.DRAINING and not self.sends_in_flight + self.pulls_in_flight:
            self._move(Input.DRAINED)
            self._send_error(RequestError("gateway is draining", ErrorCode.DRAINING), 0)

    def _fail(self, error: ClientError, request_id: int = 0) -> None:
        self._move(Input.BROKEN)
        self._send_error(error, request_id)

    def _fail_slow(self) -> None:
        self._move(Input.SLOW)
        self._out.clear()
        self._send_error(ProtocolError("peer does not read", ErrorCode.SLOW_CONSUMER), 0)

    def _time_out(self, detail: str) -> None:
        self._move(Input.TIMEOUT)
        self._send_error(ProtocolError(detail, ErrorCode.HEARTBEAT_TIMEOUT), 0)

    # --- inside --------------------------------------------------------------------------------------------------
    def _move(self, given: Input) -> Step:
        """Take an input of the shell; one that the table does not allow is our own mistake."""
        step = TRANSITIONS.get((self.state, given))
        if step is None:
            raise Bug(f"{given.name} in state {self.state.name}")
        self.state = step.state
        return step

    def _put(self, opcode: int, stream: int, request_id: int, payload: bytes) -> None:
        try:
            self._out.put(opcode, stream, request_id, payload)
        except ProtocolError as error:  # above the frame limit: no client could read it
            self._fail(error, request_id)
        if self._out.queued_bytes > self._limits.max_queue_bytes and not self.is_closed():
            self._fail_slow()

    def _put_push(self, entries: Sequence[bytes]) -> None:
        frame: list[bytes] = []
        size = 0
        for entry in entries:
            if frame and size + len(entry) > self._limits.push_frame_bytes:
                self._put(Opcode.PUSH_EVENTS, Stream.REALTIME, 0, replies.push_events(frame))
                frame, size = [], 0
            frame.append(entry)
            size += len(entry)
        self._put(Opcode.PUSH_EVENTS, Stream.REALTIME, 0, replies.push_events(frame))

    def _send_error(
        self, error: QimError, request_id: int, client_message_id: bytes | None = None
    ) -> None:
        payload = replies.error_of(error, client_message_id)
        self._put(Opcode.ERROR, Stream.CONTROL, request_id, payload)
