"""A client's end of a server core, and fakes of what stands behind a gateway."""

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from gateway.events import Batch, CommitRequested, Event, Login, LoginRequested, PullRequested
from gateway.limits import GatewayLimits
from gateway.ports import CommitDone, CommitRequest, CommittedMessage
from gateway.protocol import ServerProtocol
from gateway.tokens import Identity
from schemas.errors import ErrorCode, QimError
from schemas.frames import FrameDecoder, Opcode, Stream, encode_slices
from schemas.identifiers import direct_conversation_id
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
    SendMessage,
)
from stores.mailbox import (
    MailboxHead,
    ScanRequest,
    ScanResult,
)

__all__ = [
    "ALICE",
    "BOB",
    "DEVICE",
    "SEQ",
    "FakeCommitter",
    "FakeMailbox",
    "Frame",
    "Peer",
    "client_frame",
    "committed",
    "entry",
    "message_to",
    "read_frames",
]

ALICE, BOB = 1001, 1002
DEVICE = bytes(range(1, 17))
SEQ = 1 << 48
"""mailbox_seq of epoch 1, offset 0."""

_CODECS: dict[int, Any] = {
    Opcode.AUTH: AUTH,
    Opcode.AUTH_OK: AUTH_OK,
    Opcode.CURSOR_REBASED: CURSOR_REBASED,
    Opcode.ERROR: ERROR,
    Opcode.KICKED: KICKED,
    Opcode.MAILBOX_BATCH: MAILBOX_BATCH,
    Opcode.ONLINE_READY: ONLINE_READY,
    Opcode.PING: PING,
    Opcode.PONG: PONG,
    Opcode.PULL_MAILBOX: PULL_MAILBOX,
    Opcode.PUSH_EVENTS: PUSH_EVENTS,
    Opcode.SEND_ACK: SEND_ACK,
    Opcode.SEND_MESSAGE: SEND_MESSAGE,
    Opcode.SYNC_COMPLETE: SYNC_COMPLETE,
}


class Frame(NamedTuple):
    """One frame of the server, decoded."""

    opcode: Opcode
    request_id: int
    record: Any


def client_frame(
    opcode: int, record: Any, request_id: int = 1, stream: int = Stream.CONTROL
) -> bytes:
    """The bytes of one message; `record` is encoded by the opcode's codec unless it is bytes already."""
    payload = record if isinstance(record, bytes) else _CODECS[opcode].encode(record)
    return b"".join(encode_slices(opcode, stream, request_id, payload))


def read_frames(data: bytes, decoder: FrameDecoder | None = None) -> list[Frame]:
    """Decode what a server wrote."""
    messages = (decoder or FrameDecoder()).feed(data)
    return [
        Frame(Opcode(m.opcode), m.request_id, _CODECS[m.opcode].decode(m.payload)) for m in messages
    ]


def message_to(
    recipient: int = BOB, sender: int = ALICE, number: int = 1, **changes: Any
) -> SendMessage:
    """A legal SEND_MESSAGE of `sender`; `changes` replace fields."""
    message: dict[str, Any] = {
        "client_message_id": struct.pack(">QQ", sender, number),
        "conversation_id": bytes(direct_conversation_id(0, sender, recipient)),
        "recipient_user_id": recipient,
        "message_type": 1,
        "custom_type": "",
        "body": b"hello",
        "mentions": [],
        "reply_to": None,
    }
    return cast("SendMessage", {**message, **changes})  # tests break types on purpose


def committed(seq: int = 1, *, duplicate: bool = False) -> CommittedMessage:
    """Coordinates of a committed message."""
    return CommittedMessage(
        seq.to_bytes(16, "big"),
        seq,
        seq.to_bytes(16, "big"),
        1_700_000_000_000,
        b"t" * 16,
        duplicate,
    )


def entry(offset: int, body: bytes = b"x") -> bytes:
    """Opaque entry bytes whose mailbox_seq is (epoch 1, `offset`)."""
    return b"\x01" + (SEQ + offset).to_bytes(8, "big") + b"\x00" + body


class Peer:
    """A server core with a client's hands: feeds frames in, reads frames out, moves a clock of its own."""

    def __init__(self, limits: GatewayLimits | None = None) -> None:
        self.now_ms = 0
        self.limits = limits or GatewayLimits()
        self.core = ServerProtocol(0, self.limits)
        self.events: deque[Event] = deque()
        self.watermark = SEQ + 100
        self._decoder = FrameDecoder()

    def feed(self, data: bytes) -> list[Event]:
        """Bytes of the client arrive."""
        events = self.core.receive_data(data, self.now_ms)
        self.events.extend(events)
        return events

    def send(self, opcode: int, record: Any, request_id: int = 1) -> list[Event]:
        """One message of the client arrives."""
        return self.feed(client_frame(opcode, record, request_id))

    def assert_closed(self, code: ErrorCode, request_id: int | None = None) -> None:
        """The last word was an ERROR with a code that ends the connection, and it did."""
        frame = self.frame()
        assert frame.opcode is Opcode.ERROR
        assert frame.record["code"] == code
        assert code.closes
        assert request_id is None or frame.request_id == request_id
        assert self.core.is_closed()

    def assert_refused(self, code: ErrorCode) -> None:
        """One request was refused with `code`, the connection goes on."""
        frame = self.frame()
        assert (frame.opcode, frame.record["code"]) == (Opcode.ERROR, code)
        assert not code.closes
        assert not self.core.is_closed()

    def frames(self) -> list[Frame]:
        """What the server has to say by now."""
        data = b""
        while self.core.queued_bytes:
            data += self.core.data_to_send(1 << 20)
        return read_frames(data, self._decoder)

    def frame(self) -> Frame:
        """The one frame that the server has to say."""
        (frame,) = self.frames()
        return frame

    def auth(self, kind: int = 0, cursor: bytes = b"", request_id: int = 1) -> LoginRequested:
        """Send AUTH."""
        record = {
            "access_token": "token",
            "device_id": DEVICE,
            "cursor_kind": kind,
            "cursor": cursor,
            "foreground": True,
        }
        (event,) = self.send(Opcode.AUTH, record, request_id)
        assert isinstance(event, LoginRequested)
        return event

    def login_of(self, start_seq: int = 0, sync_to_seq: int = SEQ + 10) -> Login:
        """A judged login of alice."""
        return Login(
            identity=Identity(0, ALICE, DEVICE, 1),
            shard=0,
            lane=0,
            trim_watermark=0,
            start_seq=start_seq,
            sync_to_seq=sync_to_seq,
            cursor_at_sync=b"cursor-at-sync",
            pending_entries=None,
            lane_watermark=lambda: self.watermark,
        )

    def log_in(self, start_seq: int = 0, sync_to_seq: int = SEQ + 10) -> Frame:
        """AUTH and AUTH_OK: the login barrier starts."""
        event = self.auth()
        assert self.core.auth_accepted(event.request_id, self.login_of(start_seq, sync_to_seq))
        return self.frame()

    def go_online(self) -> None:
        """A login that owes nothing, completed."""
        self.log_in(start_seq=SEQ + 10, sync_to_seq=SEQ + 10)
        self.send(Opcode.SYNC_COMPLETE, {"sync_to_seq": SEQ + 10})
        assert self.frame().opcode is Opcode.ONLINE_READY

    def pull(self, after_seq: int, up_to_seq: int, request_id: int = 1) -> PullRequested:
        """Send PULL_MAILBOX."""
        record = {"after_seq": after_seq, "up_to_seq": up_to_seq, "max_items": 0, "max_bytes": 0}
        (event,) = self.send(Opcode.PULL_MAILBOX, record, request_id)
        assert isinstance(event, PullRequested)
        return event

    def serve(
        self, after_seq: int, covered: int, entries: Sequence[bytes] = (), *, more: bool = False
    ) -> None:
        """Pull and answer at once."""
        event = self.pull(after_seq, covered)
        batch = Batch(list(entries), after_seq, covered, self.watermark, more, b"cursor")
        self.core.pull_done(event.request_id, batch)

    def post(self, request_id: int = 1, **changes: Any) -> CommitRequested:
        """Send SEND_MESSAGE."""
        (event,) = self.send(Opcode.SEND_MESSAGE, message_to(**changes), request_id)
        assert isinstance(event, CommitRequested)
        return event


class FakeCommitter:
    """A commit step whose capacity and completions the test decides; every submit is kept."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.waiting: deque[tuple[CommitRequest, CommitDone]] = deque()
        self.submitted: list[CommitRequest] = []
        self.most_waiting = 0

    @property
    def has_capacity(self) -> bool:
        """See Committer."""
        return len(self.waiting) < self.capacity

    def submit(self, request: CommitRequest, done: CommitDone) -> None:
        """See Committer."""
        assert self.has_capacity, "submitted above the capacity"
        self.submitted.append(request)
        self.waiting.append((request, done))
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def finish(self, result: CommittedMessage | QimError | None = None) -> None:
        """Complete the oldest request."""
        _, done = self.waiting.popleft()
        done(result or committed(len(self.submitted)))

    async def start(self) -> None:
        """See Committer."""

    async def stop(self) -> None:
        """See Committer."""


class FakeMailbox:
    """A mailbox store whose answers the test decides; `gate` holds answers back until it is set."""

    def __init__(self) -> None:
        self.head = MailboxHead(0, 0)
        self.entries: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        self.failure: BaseException | None = None
        self.item_failure: QimError | None = None
        self.pages: list[list[ScanRequest]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def write(self, user: int, offset: int, raw: bytes | None = None) -> bytes:
        """Store one entry of `user` in tenant 0."""
        stored = raw or entry(offset, b"body of %d" % offset)
        self.entries.setdefault((0, user), []).append((SEQ + offset, stored))
        return stored

    async def heads(self, scans: Sequence[ScanRequest]) -> list[MailboxHead | QimError]:
        """See MailboxStore."""
        await self._answer(scans)
        return [self.item_failure or self.head for _ in scans]

    async def range_scan(self, scans: Sequence[ScanRequest]) -> list[ScanResult | QimError]:
        """See MailboxStore; cuts at max_items without knowing of groups."""
        await self._answer(scans)
        return [self.item_failure or self._scan(scan) for scan in scans]

    async def _answer(self, scans: Sequence[ScanRequest]) -> None:
        self.pages.append(list(scans))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure

    def _scan(self, scan: ScanRequest) -> ScanResult:
        mine = self.entries.get((scan.tenant, scan.user), [])
        found = [item for item in mine if scan.after_seq < item[0] <= scan.up_to_seq]
        page, more = found[: scan.max_items], len(found) > scan.max_items
        covered = page[-1][0] if more else scan.up_to_seq
        return ScanResult([raw for _, raw in page], covered, more, 0)
