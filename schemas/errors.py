"""The error tree and the codes that travel on the wire.

    QimError
    ├── ClientError          the peer did something wrong: reply with a code, keep or close the connection
    │   ├── ProtocolError        bytes or order that the protocol does not allow
    │   └── RequestError         a well-formed request that is refused
    ├── ServerFault          something of ours failed: log, reply retryable, retry or stop
    │   ├── StoreFault           a store refused or is damaged
    │   └── StoreUnknownOutcome  no reply: the write may or may not have happened; replay, never guess
    ├── StartRefused         a start gate failed: the process ends non-zero (fail closed)
    └── Bug                  an invariant of our own code is broken: crash

Wire codes are part of the protocol; changing one needs a decision record (GW-15, OPEN-07).
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "Bug",
    "ClientError",
    "ErrorCode",
    "IdentifierError",
    "ProtocolError",
    "QimError",
    "RecordError",
    "RequestError",
    "ServerFault",
    "StartRefused",
    "StoreFault",
    "StoreUnknownOutcome",
    "is_retryable",
]


class ErrorCode(IntEnum):
    """Codes of ERROR frames; the hundreds tell the family, the fate of the connection is `closes`."""

    # 1xx: protocol, the connection is closed
    BAD_FRAME = 100  # magic, version or header CRC (GW-03)
    FRAME_TOO_LARGE = 101  # announced length above the limit, refused before allocation
    BAD_STREAM = 102  # slices out of order, unknown stream, too many open messages
    MALFORMED_PAYLOAD = 103  # the payload is not the record that the opcode promises
    UNEXPECTED_FRAME = 104  # legal frame in a state that does not allow it
    UNKNOWN_OPCODE = 105  # not in this protocol version; the connection stays usable
    NOT_AUTHENTICATED = 106  # anything but AUTH before AUTH_OK
    SLOW_CONSUMER = 107  # the peer does not read; its mailbox keeps everything
    HEARTBEAT_TIMEOUT = 108  # no bytes within the promised interval
    PULL_WINDOW_EXCEEDED = 109  # more than pull_mailbox_window requests in flight (CUR-08)

    # 2xx: authentication and session
    AUTH_FAILED = 200  # token signature, expiry, audience or claims
    SESSION_SUPERSEDED = 201  # an older session_epoch than the one seen (SEQ-23)
    KICKED_REPLACED = 202  # the same (user, device) logged in again (GW-10)
    DRAINING = 203  # this gateway is going down; reconnect elsewhere

    # 3xx: requests that are refused, nothing was stored
    PAYLOAD_TOO_LARGE = 300  # COM-26 and body limit
    INVALID_REQUEST = 301  # ids of wrong length or zero, wrong direct conversation (SEQ-18)
    IDEMPOTENCY_CONFLICT = 302  # the client_message_id belongs to another message (COM-05)
    RATE_LIMITED = 303
    FANOUT_QUOTA_EXCEEDED = 304

    # 4xx: cursors and synchronisation
    CURSOR_INVALID = 400  # CUR-04 (1)
    CURSOR_EXPIRED = 401  # CUR-04 (2), CUR-10
    CURSOR_REBASED = 402  # CUR-04 (3)
    SYNC_INCOMPLETE = 403  # CUR-09
    SHARD_MOVED = 404  # CUR-14
    MAILBOX_DIRTY = 405  # CUR-14
    PRESENCE_STALE = 406  # PUSH-04

    # 5xx: our fault, retry with the same client_message_id
    UNAVAILABLE = (
        500  # a store or the log did not answer; the outcome is unknown or nothing happened
    )
    INTERNAL = 501

    @property
    def closes(self) -> bool:
        """Whether the connection ends after an ERROR frame with this code."""
        return (
            self < 200 and self is not ErrorCode.UNKNOWN_OPCODE
        ) or self in _CLOSING_SESSION_CODES

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without a change."""
        return self in _RETRYABLE


_CLOSING_SESSION_CODES = frozenset(
    {
        ErrorCode.AUTH_FAILED,
        ErrorCode.SESSION_SUPERSEDED,
        ErrorCode.KICKED_REPLACED,
        ErrorCode.DRAINING,
    }
)
_RETRYABLE = frozenset(
    {
        ErrorCode.RATE_LIMITED,
        ErrorCode.FANOUT_QUOTA_EXCEEDED,
        ErrorCode.SHARD_MOVED,
        ErrorCode.MAILBOX_DIRTY,
        ErrorCode.UNAVAILABLE,
        ErrorCode.INTERNAL,
        ErrorCode.DRAINING,
        ErrorCode.SLOW_CONSUMER,
        ErrorCode.HEARTBEAT_TIMEOUT,
    }
)


class QimError(Exception):
    """Base of every error of ours; `code` is what a client would be told."""

    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, detail: str, code: ErrorCode | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code


class ClientError(QimError):
    """The peer is at fault."""

    code = ErrorCode.INVALID_REQUEST


class ProtocolError(ClientError):
    """Bytes, or an order of frames, that the protocol does not allow."""

    code = ErrorCode.MALFORMED_PAYLOAD


class RequestError(ClientError):
    """A well-formed request that is refused; nothing was stored."""


class IdentifierError(ClientError, ValueError):
    """An identifier out of its range or of the wrong length (SEQ-10, SEQ-18)."""


class RecordError(ClientError, ValueError):
    """Bytes that are not the record they should be."""

    code = ErrorCode.MALFORMED_PAYLOAD


class ServerFault(QimError):
    """Something of ours failed."""

    code = ErrorCode.UNAVAILABLE


class StoreFault(ServerFault):
    """A store refused the operation or holds damaged data; nothing was written."""


class StoreUnknownOutcome(ServerFault):
    """No reply arrived: the write may or may not have happened. Replay it, never guess."""


class StartRefused(QimError):
    """A start gate failed; the process must end non-zero and never become ready."""


class Bug(QimError):
    """An invariant of our own code does not hold."""


def is_retryable(error: BaseException) -> bool:
    """The one place that says whether an operation may be tried again unchanged."""
    if isinstance(error, QimError):
        return error.code.retryable and not isinstance(error, Bug | StartRefused)
    return isinstance(error, ConnectionError | TimeoutError)
