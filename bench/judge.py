"""The judge: what was sent against what each client saw, decided after the run from the recorded history.

Nothing is judged while the load runs, so the generator pays one list append for each arrival. What is looked for:

1. lost: acknowledged or offered, never shown to the recipient
2. duplicate: one message shown twice by one client (after the client's own dedup, SDK-02)
3. order break: within one conversation, one client saw a conversation_seq at or below one it had seen before; the
   client's own messages are left out, since it learns their place from the ACK, not from the order of arrival
4. stranger: shown to a client that is neither its sender nor its recipient

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Arrival", "Sent", "Verdict", "judge"]


class Sent(NamedTuple):
    """One offered message. Moments are seconds of one monotonic clock; `acked_s` is None without a SEND_ACK."""

    sender: int
    recipient: int
    due_s: float
    acked_s: float | None


class Arrival(NamedTuple):
    """One timeline entry of one client, in the order in which that client showed it.

    `message` is its number in the run; `at_s` is when the client showed it, `pushed` whether by push or by pull.
    """

    client: int
    message: int
    conversation_id: bytes
    conversation_seq: int
    at_s: float
    pushed: bool = True


@dataclass(slots=True)
class Verdict:
    """Counts and latencies (seconds from the due moment) of one run."""

    offered: int = 0
    acked: int = 0
    delivered: int = 0
    pushed: int = 0
    duplicates: int = 0
    order_breaks: int = 0
    strangers: int = 0
    acked_not_delivered: list[int] = field(default_factory=list)
    ack_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)

    @property
    def delivered_share(self) -> float:
        """Delivered over offered, 0..1; an empty run delivered nothing."""
        return self.delivered / self.offered if self.offered else 0.0


def judge(sent: Sequence[Sent], arrivals: Iterable[Arrival]) -> Verdict:
    """Judge one run; `sent[i]` is message `i`, `arrivals` of one client keep that client's order."""
    verdict = Verdict(offered=len(sent))
    shown: set[tuple[int, int]] = set()
    delivered: set[int] = set()
    highest: dict[tuple[int, bytes], int] = {}
    for client, index, conversation_id, conversation_seq, at_s, pushed in arrivals:
        if (client, index) in shown:
            verdict.duplicates += 1
            continue
        shown.add((client, index))
        message = sent[index]
        if client == message.sender:
            continue
        place = (client, conversation_id)
        if conversation_seq <= highest.get(place, 0):
            verdict.order_breaks += 1
        else:
            highest[place] = conversation_seq
        if client == message.recipient:
            delivered.add(index)
            verdict.pushed += pushed
            verdict.e2e_s.append(at_s - message.due_s)
        else:
            verdict.strangers += 1
    for index, message in enumerate(sent):
        if message.acked_s is not None:
            verdict.acked += 1
            verdict.ack_s.append(message.acked_s - message.due_s)
            if index not in delivered:
                verdict.acked_not_delivered.append(index)
    verdict.delivered = len(delivered)
    return verdict
