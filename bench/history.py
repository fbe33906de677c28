"""What every client saw, one JSON object a line and one file a device, written while it happens and judged afterwards.

    send   {"number", "to", "cmid"}                      the host handed a message to the client
    ack    {"number", "seq", "id", "by"}                 it got coordinates, from a SEND_ACK or from its own mailbox entry
    fail   {"number", "code"}                            it was refused for good
    show   {"conversation", "seq", "mailbox", "id", "type", "from", "number", "pushed"}   an entry was shown
    sync   {"covered", "goal"}                           the cursor moved; `goal` is W of the lane as the server told it
    online, offline                                      {"sync_to"} and {"reason"}

`t` is a wall clock moment in seconds, `from` and `number` are what the sender wrote into the body. Files survive the run, so
that a history can be judged again by a better checker (Jepsen).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from clients.events import (
    Committed,
    EntriesShown,
    Failed,
    Offline,
    Online,
    SessionEvent,
    SyncProgress,
)
from clients.pending import PendingMessage

__all__ = ["Device", "HistoryWriter", "body_of", "read_histories"]

Event = Mapping[str, Any]


def body_of(user: int, number: int) -> bytes:
    """The body of a user's message `number`: who wrote it and when in the order of its writing."""
    return b"%d:%d" % (user, number)


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the test; `peer` is the user it talks to."""

    user: int
    number: int
    peer: int


class HistoryWriter:
    """Writes the history of one device; `listen` is the client's event callback."""

    def __init__(self, folder: Path, device: Device) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{device.user}-{device.number}.jsonl"
        self._file: TextIOWrapper = self.path.open("w")
        self._write("device", user=device.user, number=device.number, peer=device.peer)

    def _write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "t": round(time.time(), 6), **fields})
        self._file.write(line + "\n")

    def sent(self, number: int, message: PendingMessage) -> None:
        """The host handed message `number` over."""
        cmid = message.client_message_id.hex()
        self._write("send", number=number, to=message.record["recipient_user_id"], cmid=cmid)

    def listen(self, event: SessionEvent) -> None:
        """Note one event of the client."""
        if isinstance(event, EntriesShown):
            for entry in event.entries:
                sender, number = _written(entry.decode()["event"]["body"])
                self._write(
                    "show",
                    conversation=entry.conversation_id.hex(),
                    seq=entry.conversation_seq,
                    mailbox=entry.mailbox_seq,
                    id=entry.message_id.hex(),
                    type=entry.event_type,
                    pushed=event.pushed,
                    **{"from": sender, "number": number},
                )
        elif isinstance(event, Committed):
            found = event.message.coordinates
            assert found is not None  # that is what the event says
            seq, by = found.conversation_seq, found.found_by.name
            self._write("ack", number=event.message.tag, seq=seq, id=found.message_id.hex(), by=by)
        elif isinstance(event, Failed):
            self._write("fail", number=event.message.tag, code=str(event.message.error))
        elif isinstance(event, SyncProgress):
            self._write("sync", covered=event.covered_through_seq, goal=event.goal_seq)
        elif isinstance(event, Online):
            self._write("online", sync_to=event.sync_to_seq)
        elif isinstance(event, Offline):
            self._write("offline", reason=event.reason)

    def flush(self) -> None:
        """Write out what is buffered."""
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()


def _written(body: bytes | None) -> tuple[int, int]:
    user, _, number = (body or b"").partition(b":")
    return (int(user), int(number)) if user.isdigit() and number.isdigit() else (-1, -1)


def read_histories(folder: Path) -> Iterator[list[Event]]:
    """The events of each device, the device itself first."""
    for path in sorted(folder.glob("*.jsonl")):
        yield [json.loads(line) for line in path.read_text().splitlines()]
