"""Histories: what a device does becomes lines, and the lines are what the checker needs. A torn AOF loses its end."""

from pathlib import Path

from bench.checker import FAULTS, check_histories
from bench.faults import tear_aof
from bench.history import Device, HistoryWriter, body_of, read_histories
from clients.events import Committed, EntriesShown, Failed, Offline, Online, SyncProgress
from clients.pending import Coordinates, FoundBy, PendingMessage
from clients.timeline import Entry
from schemas.errors import RequestError
from schemas.identifiers import direct_conversation_id
from tests.support.entries import entry_bytes

ALICE, BOB = 11, 12
CONVERSATION = direct_conversation_id(0, ALICE, BOB)


def pending(number: int) -> PendingMessage:
    record = {
        "client_message_id": number.to_bytes(16, "big"),
        "conversation_id": CONVERSATION,
        "recipient_user_id": BOB,
        "message_type": 1,
        "custom_type": "",
        "body": body_of(ALICE, number),
        "mentions": [],
        "reply_to": None,
    }
    return PendingMessage(record, 0.0, tag=number)  # type: ignore[arg-type]  # a plain dict will do


def shown(number: int, body: bytes | None = None) -> EntriesShown:
    raw = entry_bytes(
        number + 1,
        seq=100 + number,
        conversation_id=CONVERSATION,
        conversation_seq=number + 1,
        body=body_of(ALICE, number) if body is None else body,
    )
    return EntriesShown([Entry(raw)], pushed=False)


def write(folder: Path) -> None:
    alice = HistoryWriter(folder, Device(ALICE, 1, BOB))
    bob = HistoryWriter(folder, Device(BOB, 1, ALICE))
    for number in range(2):
        message = pending(number)
        alice.sent(number, message)
        message.coordinates = Coordinates(
            (number + 1).to_bytes(16, "big"), number + 1, 0, duplicate=False, found_by=FoundBy.ACK
        )
        alice.listen(Committed(message))
    for history in (alice, bob):
        history.listen(Online(1, 99))
        history.listen(shown(0))
        history.listen(shown(1))
        history.listen(SyncProgress(101, 101))
        history.listen(Offline("bye", final=True))
    refused = pending(2)
    alice.sent(2, refused)
    refused.error = RequestError("too old")
    alice.listen(Failed(refused))
    bob.listen(shown(5, b"not of this test"))
    alice.close()
    bob.close()


def test_what_devices_do_is_read_back_and_judged(tmp_path: Path) -> None:
    write(tmp_path)
    histories = list(read_histories(tmp_path))
    assert [history[0]["user"] for history in histories] == [ALICE, BOB]
    kinds = [event["kind"] for event in histories[0]]
    told = "device send ack send ack online show show sync offline send fail"
    assert kinds == told.split()
    assert all(event["t"] > 1.7e9 for history in histories for event in history)
    counts = check_histories(0, histories)
    assert {name: counts[name] for name in FAULTS} == {
        **dict.fromkeys(FAULTS, 0),
        "misdelivered": 1,  # the body that nobody of this test wrote
    }
    assert (counts["sent"], counts["acknowledged"], counts["refused"]) == (3, 2, 1)


def test_a_torn_aof_has_lost_its_end(tmp_path: Path) -> None:
    assert tear_aof(tmp_path, 100) == 0
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"old")
    newest = folder / "appendonly.aof.2.incr.aof"
    newest.write_bytes(bytes(range(200)))
    assert tear_aof(tmp_path, 50) == 50
    assert newest.read_bytes() == bytes(range(150))
    assert tear_aof(tmp_path, 500) == 150
    assert newest.read_bytes() == b""
