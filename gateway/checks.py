"""Checks of what a client asks for, before anything is allocated for it (COM-28): pure, each raises RequestError.

A refused request is answered with its code and leaves no trace; the connection stays (GW-15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.events import PullRequested
from gateway.limits import GatewayLimits
from gateway.ports import CommitRequest
from gateway.tokens import Identity
from schemas.constants import CUSTOM_TYPE_MAX_BYTES, MAX_BODY_BYTES, MAX_U63
from schemas.errors import ErrorCode, RequestError
from schemas.identifiers import direct_conversation_id
from schemas.wire import PullMailbox, SendMessage

__all__ = ["MAX_MENTIONS", "check_pull", "check_send"]

MAX_MENTIONS: Final = 64
"""Distinct events per user are bounded (EVT-02), the list is not; a longer one is a broadcast, which has its own type."""

_ID_BYTES: Final = 16
_ZERO_ID: Final = bytes(_ID_BYTES)
_U32_MAX: Final = (1 << 32) - 1


def _check_id(name: str, value: bytes) -> None:
    if len(value) != _ID_BYTES or value == _ZERO_ID:
        raise RequestError(f"{name} must be {_ID_BYTES} non-zero bytes")


def _check_mentions(mentions: Sequence[int], members: frozenset[int]) -> None:
    if len(mentions) > MAX_MENTIONS:
        raise RequestError("too many mentions", ErrorCode.PAYLOAD_TOO_LARGE)
    if not members.issuperset(mentions):
        raise RequestError("a mention names a user outside the conversation")


def check_send(message: SendMessage, actor: Identity) -> CommitRequest:
    """The commit request of a SEND_MESSAGE by `actor`.

    Refuses what no retry can make valid, before anything is stored and no sequence is used (COM-06). Raises RequestError:
    INVALID_REQUEST for ids (SEQ-18), ranges, a mention of somebody outside the conversation, and a conversation that is
    not the one of actor and recipient; PAYLOAD_TOO_LARGE for custom_type, body and mentions (COM-26). Nothing is
    shortened or cleared silently.
    """
    client_message_id, conversation_id = message["client_message_id"], message["conversation_id"]
    _check_id("client_message_id", client_message_id)
    _check_id("conversation_id", conversation_id)
    recipient, message_type = message["recipient_user_id"], message["message_type"]
    custom_type, body, mentions = message["custom_type"], message["body"], message["mentions"]
    reply_to = message["reply_to"]
    if recipient < 1:
        raise RequestError("recipient_user_id out of range")
    if not 0 <= message_type <= _U32_MAX:
        raise RequestError("message_type is not a u32")
    if len(custom_type.encode()) > CUSTOM_TYPE_MAX_BYTES:
        raise RequestError("custom_type too long", ErrorCode.PAYLOAD_TOO_LARGE)
    if len(body) > MAX_BODY_BYTES:
        raise RequestError("body too large", ErrorCode.PAYLOAD_TOO_LARGE)
    if mentions:
        _check_mentions(mentions, frozenset((actor.user, recipient)))
    if reply_to is not None:
        _check_id("reply_to", reply_to)
    if conversation_id != direct_conversation_id(actor.tenant, actor.user, recipient):
        raise RequestError("conversation_id is not the conversation of sender and recipient")
    return CommitRequest(
        tenant=actor.tenant,
        user=actor.user,
        device_id=actor.device_id,
        session_epoch=actor.session_epoch,
        client_message_id=client_message_id,
        conversation_id=conversation_id,
        recipient_user_id=recipient,
        message_type=message_type,
        custom_type=custom_type,
        body=body,
        mentions=tuple(mentions),
        reply_to=reply_to,
    )


def check_pull(request_id: int, pull: PullMailbox, limits: GatewayLimits) -> PullRequested:
    """The pull of a PULL_MAILBOX with its counts cut to the limits (they are soft, EVT-06).

    Raises RequestError(INVALID_REQUEST) for positions outside u63 or an interval that runs backwards.
    """
    after_seq, up_to_seq = pull["after_seq"], pull["up_to_seq"]
    if not 0 <= after_seq <= MAX_U63 or not 0 <= up_to_seq <= MAX_U63:
        raise RequestError("mailbox_seq out of range")
    if up_to_seq and up_to_seq <= after_seq:
        raise RequestError("the interval is empty")
    items, size = pull["max_items"], pull["max_bytes"]
    return PullRequested(
        request_id,
        after_seq,
        up_to_seq,
        min(items, limits.pull_max_items) if items > 0 else limits.pull_default_items,
        min(size, limits.pull_max_bytes) if size > 0 else limits.pull_max_bytes,
    )
