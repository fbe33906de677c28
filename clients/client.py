"""The asyncio client of one device: what demo, tests and load generator call. Decisions are made in session.py.

    client = Client(("127.0.0.1", 7800), Login(tenant, user, device_id, token))
    await client.connect()
    message = client.send(peer, b"hello")            # returns at once, also offline
    coordinates = await client.committed(message)
    async for event in client.events(): ...          # or Client(..., on_event=callback)

Runs on any event loop. Memory only: what is pending, the cursor and the timeline end with the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable

from clients.config import ClientConfig, Login
from clients.connection import SessionDriver
from clients.events import Committed, Failed, LoginRefused, Offline, Online, SessionEvent
from clients.faults import Link
from clients.pending import Coordinates, PendingMessage
from clients.session import DeviceSession
from clients.timeline import Timeline
from schemas.entry import MessageType
from schemas.errors import ErrorCode, QimError, RequestError
from schemas.identifiers import direct_conversation_id

__all__ = ["Client"]


class Client:
    """One device on one gateway address."""

    def __init__(
        self,
        address: tuple[str, int],
        login: Login,
        config: ClientConfig | None = None,
        *,
        on_event: Callable[[SessionEvent], None] | None = None,
        link: Link | None = None,
    ) -> None:
        self.session = DeviceSession(login, config or ClientConfig())
        self._driver = SessionDriver(address, self.session, link)
        self._listeners = self._driver.listeners
        self._conversations: dict[int, bytes] = {}
        if on_event is not None:
            self._listeners.append(on_event)

    # --- calls ------------------------------------------------------------------------------------------------
    def listen(self, on_event: Callable[[SessionEvent], None]) -> None:
        """Call `on_event` with everything that happens from now on, in order."""
        self._listeners.append(on_event)

    @property
    def timeline(self) -> Timeline:
        """What this device has seen."""
        return self.session.timeline

    async def connect(self, timeout_s: float = 30.0) -> Online:
        """Log in and return once the login barrier is passed.

        Raises RequestError with the gateway's code if the login is refused for good, TimeoutError if it takes too long;
        until then lost connections are dialled again.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Online] = loop.create_future()

        def listen(event: SessionEvent) -> None:
            if answer.done():
                return
            if isinstance(event, Online):
                answer.set_result(event)
            elif isinstance(event, LoginRefused):
                code = ErrorCode(event.code) if event.code in set(ErrorCode) else None
                answer.set_exception(RequestError(event.detail, code))
            elif isinstance(event, Offline) and event.final:
                answer.set_exception(ConnectionError(event.reason))

        self._listeners.insert(0, listen)
        try:
            self._driver.start()
            async with asyncio.timeout(timeout_s):
                return await answer
        finally:
            self._listeners.remove(listen)

    def send(
        self,
        recipient: int,
        body: bytes,
        *,
        message_type: int = MessageType.TEXT,
        custom_type: str = "",
        mentions: Iterable[int] = (),
        reply_to: bytes | None = None,
        tag: object = None,
    ) -> PendingMessage:
        """Send `body` to a user under a new client_message_id; it leaves with this loop pass, or after the next sync.

        Raises RecordError for what the wire cannot carry. The gateway's refusal comes as Failed.
        """
        conversation_id = self._conversations.get(recipient)
        if conversation_id is None:
            login = self.session.login
            conversation_id = direct_conversation_id(login.tenant, login.user, recipient)
            self._conversations[recipient] = conversation_id
        now_s = time.monotonic()
        message = PendingMessage(
            {
                "client_message_id": self.session.cmids.take(),
                "conversation_id": conversation_id,
                "recipient_user_id": recipient,
                "message_type": message_type,
                "custom_type": custom_type,
                "body": body,
                "mentions": list(mentions),
                "reply_to": reply_to,
            },
            now_s,
            tag,
        )
        self.session.send(message, now_s)
        self._driver.after_call(now_s)
        return message

    def resend(self, message: PendingMessage) -> None:
        """Send a settled message once more under its client_message_id; the ACK brings the same coordinates (COM-04)."""
        now_s = time.monotonic()
        self.session.resend(message, now_s)
        self._driver.after_call(now_s)

    async def committed(self, message: PendingMessage, timeout_s: float = 30.0) -> Coordinates:
        """Wait for the coordinates of a message; raises its RequestError, or TimeoutError."""
        if not message.settled:
            settled = asyncio.get_running_loop().create_future()

            def listen(event: SessionEvent) -> None:
                ours = isinstance(event, Committed | Failed) and event.message is message
                if ours and not settled.done():
                    settled.set_result(None)

            self._listeners.append(listen)
            try:
                async with asyncio.timeout(timeout_s):
                    await settled
            finally:
                self._listeners.remove(listen)
        if message.coordinates is None:
            raise message.error or QimError("message was never settled")
        return message.coordinates

    def pull(self) -> None:
        """Pull the mailbox now instead of after the debounce pause."""
        now_s = time.monotonic()
        self.session.pull(now_s)
        self._driver.after_call(now_s)

    async def events(self) -> AsyncIterator[SessionEvent]:
        """Yield what happens from now on; ends after the final Offline."""
        queue: asyncio.Queue[SessionEvent] = asyncio.Queue()
        self._listeners.append(queue.put_nowait)
        try:
            while True:
                event = await queue.get()
                yield event
                if isinstance(event, Offline) and event.final:
                    return
        finally:
            self._listeners.remove(queue.put_nowait)

    async def close(self) -> None:
        """Go offline and stay there until `connect`; cursor, timeline and pending messages stay in memory."""
        await self._driver.stop()

    def abort(self) -> None:
        """Break the connection as a dead network would; the session dials again by itself."""
        self._driver.abort()
