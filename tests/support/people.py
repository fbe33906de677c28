"""Two people for session tests: composing and sending on a `Line`, and filters that damage what comes down."""

from collections.abc import Callable

from clients.pending import PendingMessage
from schemas.frames import FrameDecoder, Opcode, encode_slices
from schemas.identifiers import direct_conversation_id
from tests.support.gateway_pair import Line

__all__ = ["ALICE", "BOB", "bodies", "compose", "drop_acks", "rewriting", "say"]

ALICE, BOB = 11, 22


def compose(line: Line, body: bytes) -> PendingMessage:
    """A message from the line's user to the other one."""
    other = BOB if line.user == ALICE else ALICE
    return PendingMessage(
        {
            "client_message_id": line.session.cmids.take(),
            "conversation_id": direct_conversation_id(0, line.user, other),
            "recipient_user_id": other,
            "message_type": 1,
            "custom_type": "",
            "body": body,
            "mentions": [],
            "reply_to": None,
        },
        line.world.now_s,
    )


def say(line: Line, body: bytes) -> PendingMessage:
    """Send a message and let it travel."""
    message = compose(line, body)
    line.session.send(message, line.world.now_s)
    line.world.settle()
    return message


def bodies(line: Line) -> list[bytes | None]:
    """What the line's device has shown, in its order."""
    return [entry.decode()["event"]["body"] for entry in line.session.timeline.entries]


def drop_acks(data: bytes) -> bytes:
    """A line filter that loses every SEND_ACK."""
    kept = [m for m in FrameDecoder().feed(data) if m.opcode != Opcode.SEND_ACK]
    return b"".join(frame for message in kept for frame in encode_slices(*message))


def rewriting(opcode: Opcode, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A line filter that changes the payload of one kind of frame."""

    def rewrite(data: bytes) -> bytes:
        frames: list[bytes] = []
        for message in FrameDecoder().feed(data):
            payload = change(message.payload) if message.opcode == opcode else message.payload
            frames += encode_slices(*message[:3], payload)
        return b"".join(frames)

    return rewrite
