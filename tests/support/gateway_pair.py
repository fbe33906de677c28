"""Client sessions and server cores back to back: no socket, no clock, no store.

`World` is what stands behind a gateway, as small as it can be: a log of committed messages, one mailbox a user, W. Sessions
and server cores exchange bytes when `settle` is called; time only passes when a test says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from clients.config import ClientConfig, Login
from clients.events import SessionEvent
from clients.session import DeviceSession
from gateway.events import Batch, CommitRequested, Event, LoginRequested, PullRequested
from gateway.events import Login as ServerLogin
from gateway.limits import GatewayLimits
from gateway.ports import CommitRequest, CommittedMessage
from gateway.protocol import ServerProtocol
from gateway.tokens import Identity
from schemas.entry import EntryFlag, EventType, encode_common, encode_entry_head
from schemas.errors import ErrorCode, QimError, RequestError
from schemas.identifiers import MailboxSeq, dispatch_id_of, event_id_of, trace_id_of

__all__ = ["Desk", "DoublingWorld", "Line", "World", "device"]

Kind = TypeVar("Kind")

_LIMITS = GatewayLimits()
_TENANT = 0


def device(number: int) -> bytes:
    """The device id with this number."""
    return number.to_bytes(16, "big")


@dataclass
class World:
    """Everything behind the gateway; one shard, one lane, epoch 1."""

    now_s: float = 1000.0
    offset: int = -1
    watermark_offset: int | None = None  # None: W follows the log at once
    accept: bool = True  # dials succeed
    batch_items: int = 500
    commits: dict[bytes, CommittedMessage] = field(default_factory=dict)
    refuse_commit: QimError | None = None
    refuse_pull: QimError | None = None
    refuse_login: QimError | None = None
    hold_commits: bool = False  # commits happen, their answers do not come
    ignore_sends: bool = False  # nothing is committed and nothing answered
    mailboxes: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    lines: list["Line"] = field(default_factory=list)
    desks: list["Desk"] = field(default_factory=list)
    pulls: list[PullRequested] = field(default_factory=list)

    @property
    def watermark(self) -> int:
        """W of the only lane, 0 for nothing."""
        offset = self.offset if self.watermark_offset is None else self.watermark_offset
        return MailboxSeq.compose(1, offset) if offset >= 0 else 0

    def line(self, user: int, number: int = 1, config: ClientConfig | None = None) -> "Line":
        """A session of a user's device, not dialled yet."""
        line = Line(self, Login(_TENANT, user, device(number), f"{user}"), config)
        self.lines.append(line)
        return line

    def commit(self, request: CommitRequest) -> CommittedMessage:
        """Commit once under a client_message_id, write both mailboxes, push to everybody else."""
        known = self.commits.get(request.client_message_id)
        if known is not None:
            return CommittedMessage(
                known.message_id,
                known.conversation_seq,
                known.last_activity_id,
                known.committed_at_ms,
                known.trace_id,
                duplicate=True,
            )
        number = len(self.commits) + 1
        message_id = number.to_bytes(16, "big")
        committed = CommittedMessage(
            message_id, number, message_id, 5000 + number, trace_id_of(number)
        )
        self.commits[request.client_message_id] = committed
        self.offset += 1
        for user in {request.user, request.recipient_user_id}:
            self.deliver(user, request, committed)
        return committed

    def deliver(self, user: int, request: CommitRequest, committed: CommittedMessage) -> None:
        """Write one mailbox entry at the present offset and push it to the user's other devices."""
        own = user == request.user
        seq = MailboxSeq.compose(1, self.offset)
        dispatch_id = dispatch_id_of(int.from_bytes(committed.message_id, "big"), 0)
        head = encode_entry_head(
            seq,
            EventType.MESSAGE,
            event_id_of(_TENANT, dispatch_id, user, EventType.MESSAGE),
            EntryFlag.AFFECTS_SESSION_ORDER if own else EntryFlag.COUNTS_UNREAD,
            0,
            request.client_message_id if own else None,
        )
        common = encode_common(
            {
                "conversation_seq": committed.conversation_seq.to_bytes(8, "big"),
                "message_id": committed.message_id,
                "conversation_id": request.conversation_id,
                "sender_id": request.user,
                "created_at_ms": committed.committed_at_ms,
                "message_type": request.message_type,
                "custom_type": request.custom_type,
                "reply_to": request.reply_to,
                "visibility_floor_conversation_seq": None,
                "body": request.body,
            }
        )
        self.mailboxes.setdefault(user, []).append((seq, head + common))
        for desk in self.desks:
            desk.push(user, request.device_id, head + common, seq)

    def scan(self, user: int, pull: PullRequested) -> Batch:
        """Answer a pull, cut at `batch_items` entries."""
        up_to = min(pull.up_to_seq or self.watermark, self.watermark)
        found = [item for item in self.mailboxes.get(user, []) if pull.after_seq < item[0] <= up_to]
        page, more = found[: self.batch_items], len(found) > self.batch_items
        covered = page[-1][0] if more else up_to
        return Batch(
            [raw for _, raw in page],
            pull.after_seq,
            covered,
            self.watermark,
            more,
            covered.to_bytes(8, "big"),
        )

    def settle(self) -> None:
        """Let everybody talk until nobody has anything to say."""
        for _ in range(1000):
            busy = [line.step() for line in self.lines]  # everybody moves, then it is judged
            if not any(busy):
                return
        raise AssertionError("the conversation does not end")

    def wait(self, seconds: float, step_s: float = 0.05) -> None:
        """Let time pass in small steps."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + step_s)
            self.settle()


class DoublingWorld(World):
    """Writes every `period`-th message twice, the second time as another message."""

    period: int = 10

    def deliver(self, user: int, request: CommitRequest, committed: CommittedMessage) -> None:
        """Deliver, and every `period`-th time once more under a new message_id and position."""
        super().deliver(user, request, committed)
        if len(self.commits) % self.period == 0:
            self.offset += 1
            other = b"\xff" + committed.message_id[1:]
            copy = CommittedMessage(
                other, committed.conversation_seq, other, committed.committed_at_ms, bytes(16)
            )
            super().deliver(user, request, copy)


class Desk:
    """The server's end of one connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.deaf = False  # pushes are not made
        self.core = ServerProtocol(int(world.now_s * 1000), _LIMITS)
        world.desks.append(self)

    def close(self) -> None:
        """The connection is gone."""
        if self in self.world.desks:
            self.world.desks.remove(self)

    def receive(self, data: bytes) -> None:
        """Take bytes of the client and do what they ask for."""
        for event in self.core.receive_data(data, int(self.world.now_s * 1000)):
            self._serve(event)

    def push(self, user: int, origin: bytes, raw: bytes, seq: int) -> None:
        """Push an entry as a gateway would: to the user's other devices, only above sync_to_seq."""
        login = self.core.login
        if self.deaf or login is None or login.identity.user != user:
            return
        if login.identity.device_id != origin and seq > login.sync_to_seq:
            self.core.push([raw])

    def _serve(self, event: Event) -> None:
        world = self.world
        if isinstance(event, LoginRequested):
            self._log_in(event)
        elif isinstance(event, CommitRequested):
            if world.ignore_sends:
                return
            result = world.refuse_commit or world.commit(event.request)
            if not world.hold_commits:
                self.core.commit_done(event.request_id, event.request.client_message_id, result)
        else:
            world.pulls.append(event)
            batch = world.refuse_pull or world.scan(self._user, event)
            self.core.pull_done(event.request_id, batch)

    def _log_in(self, event: LoginRequested) -> None:
        world = self.world
        if world.refuse_login is not None:
            self.core.auth_refused(event.request_id, world.refuse_login)
            return
        identity = Identity(_TENANT, int(event.access_token), event.device_id, 7)
        starts = {0: 0, 1: world.watermark, 2: int.from_bytes(event.cursor, "big")}
        if event.cursor_kind not in starts:
            error = RequestError("cursor kind", ErrorCode.CURSOR_INVALID)
            self.core.auth_refused(event.request_id, error)
            return
        login = ServerLogin(
            identity=identity,
            shard=0,
            lane=0,
            trim_watermark=0,
            start_seq=starts[event.cursor_kind],
            sync_to_seq=world.watermark,
            cursor_at_sync=world.watermark.to_bytes(8, "big"),
            pending_entries=None,
            lane_watermark=lambda: world.watermark,
        )
        self.core.auth_accepted(event.request_id, login)

    @property
    def _user(self) -> int:
        assert self.core.login is not None
        return self.core.login.identity.user


class Line:
    """One session and the connection it has at the moment."""

    def __init__(self, world: World, login: Login, config: ClientConfig | None) -> None:
        self.world = world
        self.user, self.device_id = login.user, login.device_id
        self.session = DeviceSession(login, config or ClientConfig())
        self.events: list[SessionEvent] = []
        self.desk: Desk | None = None
        self.cut = False  # bytes vanish in both directions
        self.filter: Callable[[bytes], bytes] = bytes
        self.dials = 0

    # --- what a test says

    def go_online(self) -> None:
        """Start the session and let it log in."""
        self.session.start(self.world.now_s)
        self.world.settle()

    def lose(self, reason: str = "lost") -> None:
        """The connection breaks."""
        self._hang_up()
        self.session.connection_lost(self.world.now_s, reason)

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        """The events of one kind so far."""
        return [event for event in self.events if isinstance(event, kind)]

    # --- what the world does

    def step(self) -> bool:
        """Exchange what is there now; False when there was nothing."""
        session, now_s = self.session, self.world.now_s
        busy = self._connect()
        if session.next_deadline_s() <= now_s and not session.wants_dial:
            session.tick(now_s)
        desk = self.desk
        if desk is not None:
            busy = self._exchange(desk) or busy
        if session.wants_drop:
            self._hang_up()
            session.connection_lost(now_s)
            busy = True
        self.events += session.take_events()
        return busy

    def _connect(self) -> bool:
        session, now_s = self.session, self.world.now_s
        if not session.wants_dial or session.next_deadline_s() > now_s:
            return False
        session.dialling()
        self.dials += 1
        if self.world.accept:
            self.desk = Desk(self.world)
            session.connection_made(now_s)
        else:
            session.connection_lost(now_s, "refused")
        return True

    def _hang_up(self) -> None:
        if self.desk is not None:
            self.desk.close()
            self.desk = None

    def _exchange(self, desk: Desk) -> bool:
        up = self.session.data_to_send()
        if up and not self.cut:
            desk.receive(up)
        down = desk.core.data_to_send(1 << 20)
        if down and not self.cut:
            self.session.data_received(self.filter(down), self.world.now_s)
        if desk.core.is_closed() and self.desk is desk:
            self._hang_up()
            self.session.connection_lost(self.world.now_s, "closed by the gateway")
        return bool(up or down)
