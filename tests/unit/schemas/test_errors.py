"""The error tree: whose fault, which code, and whether trying again may help."""

import asyncio

import pytest

from schemas import errors
from schemas.errors import ErrorCode, QimError, is_retryable

CLASSES = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, QimError)
]


@pytest.mark.contract("GW-15")
def test_wire_codes_are_frozen() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {
        "BAD_FRAME": 100,
        "FRAME_TOO_LARGE": 101,
        "BAD_STREAM": 102,
        "MALFORMED_PAYLOAD": 103,
        "UNEXPECTED_FRAME": 104,
        "UNKNOWN_OPCODE": 105,
        "NOT_AUTHENTICATED": 106,
        "SLOW_CONSUMER": 107,
        "HEARTBEAT_TIMEOUT": 108,
        "PULL_WINDOW_EXCEEDED": 109,
        "AUTH_FAILED": 200,
        "SESSION_SUPERSEDED": 201,
        "KICKED_REPLACED": 202,
        "DRAINING": 203,
        "PAYLOAD_TOO_LARGE": 300,
        "INVALID_REQUEST": 301,
        "IDEMPOTENCY_CONFLICT": 302,
        "RATE_LIMITED": 303,
        "FANOUT_QUOTA_EXCEEDED": 304,
        "CURSOR_INVALID": 400,
        "CURSOR_EXPIRED": 401,
        "CURSOR_REBASED": 402,
        "SYNC_INCOMPLETE": 403,
        "SHARD_MOVED": 404,
        "MAILBOX_DIRTY": 405,
        "PRESENCE_STALE": 406,
        "UNAVAILABLE": 500,
        "INTERNAL": 501,
    }


def test_the_tree_at_the_top_of_the_file_names_every_class() -> None:
    drawn = errors.__doc__ or ""
    drawn_elsewhere = {"IdentifierError", "RecordError"}  # kinds of ClientError with their own file
    for kind in CLASSES:
        assert kind.__name__ in drawn or kind.__name__ in drawn_elsewhere


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_has_a_code_and_takes_another(kind: type[QimError]) -> None:
    assert isinstance(kind("detail").code, ErrorCode)
    assert kind("detail", ErrorCode.RATE_LIMITED).code is ErrorCode.RATE_LIMITED
    assert str(kind("detail")) == "detail"


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (errors.ProtocolError("x"), False),
        (errors.RequestError("x"), False),
        (errors.RequestError("x", ErrorCode.RATE_LIMITED), True),
        (errors.IdentifierError("x"), False),
        (errors.RecordError("x"), False),
        (errors.StoreFault("x"), True),
        (errors.StoreUnknownOutcome("x"), True),
        (errors.Bug("x"), False),
        (errors.StartRefused("x"), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (ValueError(), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_is_retryable(error: BaseException, retryable: bool) -> None:  # noqa: FBT001
    assert is_retryable(error) is retryable


def test_protocol_codes_close_and_request_codes_do_not() -> None:
    closing = {code for code in ErrorCode if code.closes}
    assert ErrorCode.UNKNOWN_OPCODE not in closing
    assert {c for c in ErrorCode if c < 200} - {ErrorCode.UNKNOWN_OPCODE} <= closing
    assert not {c for c in ErrorCode if c >= 300} & closing
