"""Messages of one device on their way: sent, acknowledged, refused, sent again. Pure: time is passed in.

A message leaves under one client_message_id however often it is sent, so every repetition is harmless (COM-04). What the
device's own mailbox shows is settled without an ACK and is not sent again (SDK-06).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clients.config import ClientConfig
from clients.events import Committed, Failed, SessionEvent
from clients.pending import Coordinates, PendingMessage, PendingMessages
from clients.protocol import ClientProtocol
from clients.timeline import Entry
from schemas.errors import ErrorCode, ProtocolError, RecordError, RequestError
from schemas.wire import SEND_MESSAGE, ErrorPayload, SendAck

__all__ = ["Outbox"]


class Outbox:
    """All messages of one device without an end; `emit` gets Committed and Failed."""

    __slots__ = ("_config", "_emit", "_in_flight", "pending")

    def __init__(self, config: ClientConfig, emit: Callable[[SessionEvent], None]) -> None:
        self.pending = PendingMessages(config.ack_timeout_s, config.detection_limit_s)
        self._config = config
        self._emit = emit
        self._in_flight: dict[int, PendingMessage] = {}

    def connection_lost(self) -> None:
        """Nothing is in flight any more; everything unsettled waits for `send_all`."""
        self._in_flight.clear()
        self.pending.connection_lost()

    # --- sending ----------------------------------------------------------------------------------------------
    def add(self, message: PendingMessage, online: ClientProtocol | None, now_s: float) -> None:
        """Keep a message, and send it now where there is an online connection.

        Raises ValueError for a client_message_id under way, RecordError for a record that cannot be encoded.
        """
        if online is None:
            SEND_MESSAGE.encode(message.record)  # refuse now what could never be sent
        self.pending.add(message)
        if online is not None:
            try:
                self.transmit(message, online, now_s)
            except RecordError:
                del self.pending.by_cmid[message.client_message_id]
                raise

    def transmit(self, message: PendingMessage, online: ClientProtocol, now_s: float) -> None:
        """Queue one SEND_MESSAGE."""
        self._in_flight[online.send_message(message.record)] = message
        self.pending.sent(message, now_s)

    def send_all(self, online: ClientProtocol, now_s: float) -> None:
        """Send everything unsettled in its order; what is too old fails (SDK-06)."""
        for message in list(self.pending.by_cmid.values()):
            if now_s - message.created_s > self._config.pending_max_age_s:
                self._fail(message, RequestError("too old to be sent again"))
            else:
                self.transmit(message, online, now_s)

    def send_overdue(self, online: ClientProtocol, now_s: float) -> bool:
        """The probe was answered: send again what it was made for; True if there was something."""
        overdue = self.pending.take_overdue()
        for message in overdue:
            self.transmit(message, online, now_s)
        return bool(overdue)

    def send_refused(self, online: ClientProtocol, now_s: float) -> None:
        """Send again what was refused as retryable, after its pause."""
        for message in self.pending.take_refused(now_s):
            self.transmit(message, online, now_s)

    # --- answers ----------------------------------------------------------------------------------------------
    def on_ack(self, request_id: int, ack: SendAck) -> None:
        """Take a SEND_ACK; raises ProtocolError where it names another message than its request."""
        message = self._in_flight.pop(request_id)
        if ack["client_message_id"] != message.client_message_id:
            raise ProtocolError("SEND_ACK of another message", ErrorCode.MALFORMED_PAYLOAD)
        if self.pending.settle(message, Coordinates.of_ack(ack)):
            self._emit(Committed(message))

    def on_refusal(self, request_id: int, error: ErrorPayload, now_s: float) -> None:
        """Take the ERROR that answers a SEND_MESSAGE."""
        message = self._in_flight.pop(request_id)
        if message.settled:
            return
        if error["retryable"]:
            self.pending.refuse(message, now_s + self._config.refused_retry_s)
            return
        code = error["code"]
        known = ErrorCode(code) if code in set(ErrorCode) else None
        self._fail(message, RequestError(f"{code} {error['detail']}", known))

    def settle_own(self, entries: Iterable[Entry]) -> None:
        """Settle what the device's own entries name; raises RecordError on damage."""
        by_cmid = self.pending.by_cmid
        if not by_cmid:
            return
        for entry in entries:
            cmid = entry.client_message_id
            message = by_cmid.get(cmid) if cmid is not None else None
            if message is not None:
                self.pending.settle(message, Coordinates.of_entry(entry))
                self._emit(Committed(message))

    def _fail(self, message: PendingMessage, error: RequestError) -> None:
        if self.pending.settle(message, error):
            self._emit(Failed(message))
