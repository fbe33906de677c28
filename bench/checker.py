"""The offline checker: what the clients' histories prove, after the run and without the system (Jepsen style).

1. lost: a message with coordinates (its sender was told, or saw its own entry) that a device of its sender or its recipient
   has not shown by the end, or has shown under another conversation_seq.
2. duplicated: one written message that a device shows twice; one message that got two sets of coordinates.
3. reordered: two messages of one sender whose conversation_seq are not in the order of their writing.
4. misdelivered: an entry on a device whose user is neither its writer nor the one it was written to, or that nobody wrote.
5. watermark_regressions: W as a server told it to a device, or the cursor of the device, goes back; and rows of the watermarks
   changelog that go back in a lane within a lease term.
6. refused, unsettled: what was never acknowledged; no fault of the pipeline, but no good run either if there are many.

Pure: events in, counts out; no clock, no I/O.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from schemas.identifiers import direct_conversation_id
from schemas.records import WatermarkRow
from schemas.watermarks import unpack_w

__all__ = ["FAULTS", "check_histories", "check_watermarks"]

FAULTS: Final = ("lost", "duplicated", "reordered", "misdelivered", "watermark_regressions")
Event = Mapping[str, Any]
History = Sequence[Event]


class _Written:
    """Everything that was written, and what became of it."""

    def __init__(self, histories: Iterable[History]) -> None:
        self.to: dict[tuple[int, int], int] = {}
        self.coordinates: dict[tuple[int, int], set[tuple[int, str]]] = defaultdict(set)
        self.refused: set[tuple[int, int]] = set()
        for history in histories:
            user = history[0]["user"]
            for event in history:
                if event["kind"] == "send":
                    self.to[user, event["number"]] = event["to"]
                elif event["kind"] == "ack":
                    place = (event["seq"], event["id"])
                    self.coordinates[user, event["number"]].add(place)
                elif event["kind"] == "fail":
                    self.refused.add((user, event["number"]))


def check_histories(tenant: int, histories: Sequence[History]) -> dict[str, int]:
    """Count everything of the list above that clients can see; every count of FAULTS is 0 in a sound run."""
    written = _Written(histories)
    counts: Counter[str] = Counter(dict.fromkeys(FAULTS, 0))
    counts["sent"] = len(written.to)
    counts["acknowledged"] = sum(map(bool, written.coordinates.values()))
    counts["refused"] = len(written.refused)
    counts["unsettled"] = len(written.to.keys() - written.coordinates.keys() - written.refused)
    counts["duplicated"] += sum(len(places) - 1 for places in written.coordinates.values())
    counts["reordered"] += _reordered(written)
    for history in histories:
        counts += _check_device(tenant, history, written)
        counts["watermark_regressions"] += _went_back(history)
    return {
        name: counts[name] for name in (*FAULTS, "sent", "acknowledged", "refused", "unsettled")
    }


def _reordered(written: _Written) -> int:
    """Pairs of one writer's messages to one peer whose sequences are not in the order of the writing."""
    order: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (user, number), places in written.coordinates.items():
        if places:
            order[user, written.to[user, number]].append((number, min(places)[0]))
    return sum(a[1] >= b[1] for numbered in order.values() for a, b in pairwise(sorted(numbered)))


def _check_device(tenant: int, history: History, written: _Written) -> Counter[str]:
    user = history[0]["user"]
    counts: Counter[str] = Counter()
    shown: dict[tuple[int, int], set[tuple[int, str]]] = defaultdict(set)
    times: Counter[tuple[int, int, int]] = Counter()
    for event in history:
        if event["kind"] != "show":
            continue
        message = (event["from"], event["number"])
        recipient = written.to.get(message)
        if recipient is None or user not in (message[0], recipient):
            counts["misdelivered"] += 1
            continue
        conversation = direct_conversation_id(tenant, message[0], recipient)
        if event["conversation"] != conversation.hex():
            counts["misdelivered"] += 1
            continue
        times[*message, event["type"]] += 1
        shown[message].add((event["seq"], event["id"]))
    counts["duplicated"] += sum(n - 1 for n in times.values())
    for message, places in written.coordinates.items():
        if places and user in (message[0], written.to[message]) and not places <= shown[message]:
            counts["lost"] += 1
    return counts


def _went_back(history: History) -> int:
    """Times at which W, or the cursor, was lower than the device had been told before."""
    found = goal = covered = 0
    for event in history:
        if event["kind"] == "sync":
            found += (event["goal"] < goal) + (event["covered"] < covered)
            goal, covered = max(goal, event["goal"]), max(covered, event["covered"])
        elif event["kind"] == "online":
            found += event["sync_to"] < goal
            goal = max(goal, event["sync_to"])
    return found


def check_watermarks(rows: Iterable[WatermarkRow]) -> int:
    """Rows of one shard's changelog, in log order, that go back in a lane within their lease term."""
    last: dict[int, list[int]] = {}
    found = 0
    for row in rows:
        marks = [lane.w for lane in unpack_w(row["w"])]
        before = last.get(row["lease_term"])
        if before is not None and any(w < old for w, old in zip(marks, before, strict=True)):
            found += 1
        last[row["lease_term"]] = marks
    return found
