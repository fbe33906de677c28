from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.checks import MAX_MENTIONS, check_pull, check_send
from gateway.limits import GatewayLimits
from gateway.tokens import Identity
from schemas.constants import MAX_BODY_BYTES, MAX_U63
from schemas.errors import ErrorCode, RequestError
from schemas.identifiers import direct_conversation_id
from schemas.wire import SEND_MESSAGE
from tests.support.gateway import ALICE, BOB, DEVICE, message_to

ACTOR = Identity(0, ALICE, DEVICE, 7)


def code_of(**changes: Any) -> ErrorCode:
    with pytest.raises(RequestError) as caught:
        check_send(message_to(**changes), ACTOR)
    assert not caught.value.code.closes
    return caught.value.code


def test_the_actor_comes_from_the_session() -> None:
    request = check_send(message_to(mentions=[BOB], reply_to=b"r" * 16), ACTOR)
    assert (request.tenant, request.user) == (0, ALICE)
    assert (request.device_id, request.session_epoch) == (DEVICE, 7)
    assert (request.recipient_user_id, request.mentions) == (BOB, (BOB,))
    assert request.reply_to == b"r" * 16


REFUSED: list[tuple[dict[str, Any], ErrorCode]] = [
    ({"custom_type": "x" * 65}, ErrorCode.PAYLOAD_TOO_LARGE),
    ({"custom_type": "\u00fc" * 33}, ErrorCode.PAYLOAD_TOO_LARGE),
    ({"body": bytes(MAX_BODY_BYTES + 1)}, ErrorCode.PAYLOAD_TOO_LARGE),
    ({"conversation_id": b"c" * 16}, ErrorCode.INVALID_REQUEST),
    ({"recipient_user_id": BOB + 1}, ErrorCode.INVALID_REQUEST),
    ({"mentions": [BOB + 1]}, ErrorCode.INVALID_REQUEST),
    ({"mentions": [ALICE, BOB, BOB + 1]}, ErrorCode.INVALID_REQUEST),
]


@pytest.mark.contract("COM-06", "COM-26", "COM-28")
@pytest.mark.parametrize(("change", "code"), REFUSED)
def test_what_no_retry_can_make_valid_is_refused_before_there_is_a_request(
    change: dict[str, Any], code: ErrorCode
) -> None:
    assert code_of(**change) is code


@pytest.mark.contract("COM-26")
@pytest.mark.parametrize(
    "change",
    [
        {"custom_type": "x" * 64},
        {"custom_type": "\u00fc" * 32},
        {"body": bytes(MAX_BODY_BYTES)},
        {"mentions": [ALICE, BOB, BOB]},
        {"message_type": 0xFFFF_FFFF},
    ],
)
def test_the_largest_legal_requests_pass(change: dict[str, Any]) -> None:
    check_send(message_to(**change), ACTOR)


@pytest.mark.contract("SEQ-18")
@pytest.mark.parametrize("field", ["client_message_id", "conversation_id", "reply_to"])
@pytest.mark.parametrize("value", [b"", b"x" * 15, b"x" * 17, bytes(16)])
def test_short_long_and_zero_ids_are_refused(field: str, value: bytes) -> None:
    assert code_of(**{field: value}) is ErrorCode.INVALID_REQUEST


@pytest.mark.contract("COM-26")
@pytest.mark.parametrize("custom_type", ["x" * 65, "ä" * 33])
def test_custom_type_above_64_bytes_is_too_large(custom_type: str) -> None:
    assert code_of(custom_type=custom_type) is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("custom_type", ["x" * 64, "ä" * 32, "qim.membership.v1"])
def test_reg_02_custom_type_up_to_64_bytes_is_kept(custom_type: str) -> None:
    assert check_send(message_to(custom_type=custom_type), ACTOR).custom_type == custom_type


@pytest.mark.contract("SEQ-17")
@given(st.integers(0, (1 << 32) - 1))
def test_any_u32_message_type_is_kept(message_type: int) -> None:
    frame = SEND_MESSAGE.encode(message_to(message_type=message_type))
    assert check_send(SEND_MESSAGE.decode(frame), ACTOR).message_type == message_type


@pytest.mark.contract("SEQ-17")
@pytest.mark.parametrize("message_type", [-1, 1 << 32])
def test_what_is_no_u32_is_refused(message_type: int) -> None:
    assert code_of(message_type=message_type) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("recipient", [0, -5])
def test_recipient_out_of_range_is_refused(recipient: int) -> None:
    assert code_of(recipient_user_id=recipient) is ErrorCode.INVALID_REQUEST


def test_another_conversation_is_refused() -> None:
    other = bytes(direct_conversation_id(0, ALICE, BOB + 1))
    assert code_of(conversation_id=other) is ErrorCode.INVALID_REQUEST
    other_tenant = bytes(direct_conversation_id(1, ALICE, BOB))
    assert code_of(conversation_id=other_tenant) is ErrorCode.INVALID_REQUEST


def test_sizes_are_bounded() -> None:
    assert code_of(body=bytes(MAX_BODY_BYTES + 1)) is ErrorCode.PAYLOAD_TOO_LARGE
    assert len(check_send(message_to(body=bytes(MAX_BODY_BYTES)), ACTOR).body) == MAX_BODY_BYTES
    assert code_of(mentions=[BOB] * (MAX_MENTIONS + 1)) is ErrorCode.PAYLOAD_TOO_LARGE
    assert code_of(mentions=[BOB, 0]) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("after_seq", "up_to_seq"), [(-1, 5), (5, -1), (5, 5), (6, 5), (MAX_U63, MAX_U63)]
)
def test_impossible_intervals_are_refused(after_seq: int, up_to_seq: int) -> None:
    pull = {"after_seq": after_seq, "up_to_seq": up_to_seq, "max_items": 1, "max_bytes": 1}
    with pytest.raises(RequestError) as caught:
        check_pull(1, pull, GatewayLimits())  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_counts_are_cut_to_the_limits() -> None:
    limits = GatewayLimits()
    asked = check_pull(
        3, {"after_seq": 0, "up_to_seq": 0, "max_items": 10, "max_bytes": 20}, limits
    )
    assert asked == (3, 0, 0, 10, 20)
    asked = check_pull(
        3, {"after_seq": 0, "up_to_seq": 9, "max_items": -1, "max_bytes": 1 << 30}, limits
    )
    assert asked == (3, 0, 9, limits.pull_default_items, limits.pull_max_bytes)


@pytest.mark.contract("GW-06", "ADAPT-02")
@given(st.binary(max_size=500), st.text(max_size=16))
def test_bodies_are_opaque_and_arrive_as_they_were_sent(body: bytes, custom_type: str) -> None:
    frame = SEND_MESSAGE.encode(message_to(body=body, custom_type=custom_type))
    request = check_send(SEND_MESSAGE.decode(frame), ACTOR)
    assert (request.body, request.custom_type) == (body, custom_type)
