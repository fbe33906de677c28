"""One connection, as the client sees it, apart from I/O: bytes in, events out; calls in, bytes out.

    protocol = ClientProtocol()
    request_id = protocol.send_message(record)      # calls change the state and queue bytes
    transport.write(protocol.data_to_send())
    for event in protocol.receive_data(data): ...   # bytes become events, in the order of the frames

Legal moves are in states.py. A call out of order raises LocalProtocolError and changes nothing; bad bytes from the
server never raise: they close the connection and come out as `ConnectionEnded` with the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from clients.states import CALLS, FRAMES, ClientState, Ending
from schemas.errors import Bug, ErrorCode, ProtocolError, RecordError
from schemas.frames import FrameDecoder, Message, Opcode, Stream, encode_slices
from schemas.wire import (
    AUTH,
    AUTH_OK,
    CURSOR_REBASED,
    ERROR,
    KICKED,
    MAILBOX_BATCH,
    ONLINE_READY,
    PING,
    PONG,
    PULL_MAILBOX,
    PUSH_EVENTS,
    SEND_ACK,
    SEND_MESSAGE,
    SYNC_COMPLETE,
    Auth,
    AuthOk,
    CursorRebased,
    ErrorPayload,
    Kicked,
    MailboxBatch,
    OnlineReady,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
    SyncComplete,
)

__all__ = [
    "Answer",
    "ClientProtocol",
    "ConnectionEnded",
    "Event",
    "LocalProtocolError",
    "Refusal",
    "UnknownFrame",
]


class LocalProtocolError(Bug):
    """The caller wanted to send what the connection's state does not allow; nothing was sent."""


class Answer(NamedTuple):
    """A legal frame of the server. `request_id` is the one of the request it answers, 0 where it answers none."""

    opcode: Opcode
    request_id: int
    record: (
        AuthOk | CursorRebased | SendAck | MailboxBatch | OnlineReady | PushEvents | Pong | Kicked
    )


class Refusal(NamedTuple):
    """An ERROR frame. `answers` is the opcode of the refused request, None where the error belongs to none."""

    answers: Opcode | None
    request_id: int
    error: ErrorPayload


class UnknownFrame(NamedTuple):
    """A frame of a newer protocol, kept as it came (SDK-15)."""

    message: Message


class ConnectionEnded(NamedTuple):
    """The last event of a connection. `error` is None for an end that the peer's bytes did not cause."""

    ending: Ending
    error: ProtocolError | None


Event = Answer | Refusal | UnknownFrame | ConnectionEnded

_STREAM: Final = {
    Opcode.AUTH: Stream.CONTROL,
    Opcode.PING: Stream.CONTROL,
    Opcode.SYNC_COMPLETE: Stream.CONTROL,
    Opcode.SEND_MESSAGE: Stream.REALTIME,
    Opcode.PULL_MAILBOX: Stream.BULK,
}
_OPCODES: Final = {int(opcode): opcode for opcode in Opcode}
_DECODE: Final[dict[Opcode, Callable[[bytes], Any]]] = {
    Opcode.AUTH_OK: AUTH_OK.decode,
    Opcode.CURSOR_REBASED: CURSOR_REBASED.decode,
    Opcode.SEND_ACK: SEND_ACK.decode,
    Opcode.MAILBOX_BATCH: MAILBOX_BATCH.decode,
    Opcode.ONLINE_READY: ONLINE_READY.decode,
    Opcode.PUSH_EVENTS: PUSH_EVENTS.decode,
    Opcode.PONG: PONG.decode,
    Opcode.KICKED: KICKED.decode,
    Opcode.ERROR: ERROR.decode,
}
_ANSWERED_BY: Final = {
    Opcode.AUTH_OK: Opcode.AUTH,
    Opcode.CURSOR_REBASED: Opcode.AUTH,
    Opcode.SEND_ACK: Opcode.SEND_MESSAGE,
    Opcode.MAILBOX_BATCH: Opcode.PULL_MAILBOX,
    Opcode.ONLINE_READY: Opcode.SYNC_COMPLETE,
    Opcode.PONG: Opcode.PING,
}
_REFUSED: Final = {
    Opcode.AUTH: Ending.AUTH_REFUSED,
    Opcode.SYNC_COMPLETE: Ending.SYNC_REFUSED,
}
_MAX_REQUEST_ID: Final = (1 << 32) - 1


class ClientProtocol:
    """State, framing and request correlation of one connection; a new connection takes a new object."""

    __slots__ = ("_decoder", "_next_id", "_out", "_requests", "state")

    def __init__(self) -> None:
        self.state = ClientState.CONNECTED
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._next_id = 1
        self._requests: dict[int, Opcode] = {}

    def is_closed(self) -> bool:
        """Whether the connection is over for this side."""
        return self.state is ClientState.CLOSED

    # --- calls in, bytes out ---------------------------------------------------------------------------------
    def send_auth(self, record: Auth) -> int:
        """Queue AUTH; returns its request_id, as all calls do."""
        return self._send(Opcode.AUTH, AUTH.encode(record))

    def send_message(self, record: SendMessage) -> int:
        """Queue SEND_MESSAGE; raises RecordError for a record that its schema cannot hold."""
        return self._send(Opcode.SEND_MESSAGE, SEND_MESSAGE.encode(record))

    def send_pull(self, record: PullMailbox) -> int:
        """Queue PULL_MAILBOX; the caller keeps the window of CUR-08."""
        return self._send(Opcode.PULL_MAILBOX, PULL_MAILBOX.encode(record))

    def send_sync_complete(self, record: SyncComplete) -> int:
        """Queue SYNC_COMPLETE, which ends the login barrier (CUR-09)."""
        return self._send(Opcode.SYNC_COMPLETE, SYNC_COMPLETE.encode(record))

    def send_ping(self, record: Ping) -> int:
        """Queue PING."""
        return self._send(Opcode.PING, PING.encode(record))

    def close(self) -> None:
        """Give the connection up; nothing is sent or understood any more. Legal in every state."""
        self.state = ClientState.CLOSED
        self._out.clear()
        self._requests.clear()

    @property
    def wants_write(self) -> bool:
        """Whether `data_to_send` has something."""
        return bool(self._out)

    def data_to_send(self) -> bytes:
        """Return everything queued since the last call, in order; empty when there is nothing."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def is_open(self, request_id: int) -> bool:
        """Whether the request still waits for its answer on this connection."""
        return request_id in self._requests

    # --- bytes in, events out --------------------------------------------------------------------------------
    def receive_data(self, data: bytes) -> list[Event]:
        """Take bytes of any cut of the stream and return the events they complete."""
        if self.is_closed():
            return []
        events: list[Event] = []
        try:
            for message in self._decoder.feed(data):
                events.append(self._receive(message))
                if self.is_closed():
                    return events
            damage = self._decoder.error
            if damage is not None:
                raise damage
        except ProtocolError as error:
            events.append(self._end(Ending.DAMAGE, error))
        return events

    def receive_eof(self) -> list[Event]:
        """The peer closed or the socket broke."""
        return [] if self.is_closed() else [self._end(Ending.EOF, None)]

    # --- inner ------------------------------------------------------------------------------------------------
    def _send(self, opcode: Opcode, payload: bytes) -> int:
        following = CALLS.get((self.state, opcode))
        if following is None:
            raise LocalProtocolError(f"{opcode.name} is not allowed while {self.state.name}")
        request_id = self._next_id
        frames = encode_slices(opcode, _STREAM[opcode], request_id, payload)
        self.state = following
        self._next_id = request_id + 1 if request_id < _MAX_REQUEST_ID else 1
        self._requests[request_id] = opcode
        self._out += frames
        return request_id

    def _receive(self, message: Message) -> Event:
        opcode = _OPCODES.get(message.opcode)
        if opcode is None:
            return UnknownFrame(message)
        following = FRAMES.get((self.state, opcode))
        if following is None:
            raise ProtocolError(
                f"{opcode.name} while {self.state.name}", ErrorCode.UNEXPECTED_FRAME
            )
        try:
            record = _DECODE[opcode](message.payload)
        except RecordError as error:
            raise ProtocolError(error.detail, ErrorCode.MALFORMED_PAYLOAD) from error
        if opcode is Opcode.ERROR:
            return self._refuse(message.request_id, record)
        request = _ANSWERED_BY.get(opcode)
        if request is not None and self._requests.pop(message.request_id, None) is not request:
            raise ProtocolError(
                f"{opcode.name} answers request {message.request_id}, which no {request.name} is",
                ErrorCode.UNEXPECTED_FRAME,
            )
        self.state = following
        return Answer(opcode, message.request_id, record)

    def _refuse(self, request_id: int, error: ErrorPayload) -> Refusal:
        answers = self._requests.pop(request_id, None)
        if _closes(error["code"]):
            self.state = FRAMES[self.state, Ending.CLOSING_ERROR]
        elif answers in _REFUSED:
            self.state = FRAMES[self.state, _REFUSED[answers]]
        return Refusal(answers, request_id, error)

    def _end(self, ending: Ending, error: ProtocolError | None) -> ConnectionEnded:
        self.state = FRAMES[self.state, ending]
        self._out.clear()
        self._requests.clear()
        return ConnectionEnded(ending, error)


def _closes(code: int) -> bool:
    try:
        return ErrorCode(code).closes
    except ValueError:
        return False  # a code of a newer server; it closes by itself if it means to
