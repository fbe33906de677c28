"""What must hold while a schedule plays, and at its end. It reads durable state only and shares no code with the shard.

1. no write by a stale lease term; W of a shard never covers an entry that is not in its mailbox (WM-01, WM-02)
2. a watermark row is never ahead of what the mailbox covered, and never goes back within a lease term (WM-04)
3. inside a lane entries land in order (LANE-03); a page that is acknowledged is covered in every lane that misses nothing of it (LANE-04, M-1)
4. at the end every mailbox holds exactly what a replay of its log writes, byte by byte (TAKE-09), every device has pulled
   exactly that, in order, and everything that was acknowledged to a client is in a log (COM-01)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from clients.timeline import Entry
from gateway.ports import CommittedMessage
from gateway.visibility import ShardView
from schemas.constants import LANE_COUNT
from schemas.identifiers import lane_of
from schemas.records import GROUP_DISPATCH, WatermarkRow
from schemas.watermarks import unpack_w
from stores.mailbox import ShardAppend
from stores.memory_mailbox import UserMailbox
from streams.expand import Expander, ShardContext
from tests.support.dispatch_fakes import SHARDS

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Judge", "Violation", "dispatch_id_in", "entries_of", "marks_in"]


Boundaries = tuple[tuple[int, int], ...]


class Violation(AssertionError):
    """An invariant that did not hold."""


@lru_cache(maxsize=200_000)
def entries_of(
    shard: int, offset: int, value: bytes, boundaries: Boundaries = ((1, 0),)
) -> tuple[tuple[int, int, bytes], ...]:
    """(lane, user, member) of a dispatch at an offset."""
    dispatch = GROUP_DISPATCH.decode(value)
    expander = Expander(ShardContext(shard, SHARDS, 4, boundaries))
    expander.add(offset, dispatch, dispatch["recipients"])
    entries, _ = expander.take()
    return tuple((lane_of(e.tenant, e.user), e.user, e.member) for e in entries)


@lru_cache(maxsize=200_000)
def dispatch_id_in(value: bytes) -> bytes:
    """The id of an encoded dispatch."""
    return GROUP_DISPATCH.decode(value)["dispatch_id"]


@lru_cache(maxsize=50_000)
def marks_in(blob: bytes) -> tuple[int, ...]:
    """W of the 64 lanes of a packed blob."""
    return tuple(lane.w for lane in unpack_w(blob))


class _Expected:
    """What a replay of one dispatch log writes: the first record of each dispatch_id counts."""

    def __init__(self, shard: int, boundaries: Boundaries) -> None:
        self.shard = shard
        self.boundaries = boundaries
        self.seen: set[bytes] = set()
        self.by_lane: dict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
        self.by_user: dict[int, list[bytes]] = defaultdict(list)
        self.read = 0

    def follow(self, log: Sequence[object]) -> _Expected:
        """Read the log on."""
        for record in log[self.read :]:
            value: bytes = record.value  # type: ignore[attr-defined]
            dispatch_id = dispatch_id_in(value)
            if dispatch_id not in self.seen:
                self.seen.add(dispatch_id)
                for lane, user, member in entries_of(self.shard, self.read, value, self.boundaries):
                    self.by_lane[lane].append((self.read, user, member))
                    self.by_user[user].append(member)
            self.read += 1
        return self


class Judge:
    """Keeps the claims that were made; `world` is set once it exists."""

    def __init__(self) -> None:
        self.world: World
        self._expected: dict[int, _Expected] = {}
        self._covered: dict[int, list[int]] = {}  # checked W of the store, by shard and lane
        self._peak: dict[int, list[int]] = {}
        self._rows: dict[tuple[int, int], tuple[int, ...]] = {}
        self._shown: dict[int, dict[int, int]] = {}
        self.judged = 0
        self.found: list[str] = []

    def raise_found(self) -> None:
        """Raise what was found inside of a process, which may have caught it."""
        if self.found:
            raise Violation(self.found[0])

    def expected(self, shard: int) -> _Expected:
        """Up to the end of the log as it is now; a takeover changes the epoch of what comes behind it (CON-39)."""
        found = self._expected.get(shard)
        boundaries = self._boundaries(shard)
        if found is None or found.boundaries != boundaries:
            found = self._expected[shard] = _Expected(shard, boundaries)
        return found.follow(self.world.dispatch[shard])

    def _boundaries(self, shard: int) -> Boundaries:
        """As the registry has them, or the log where the registry lost its end."""
        known = dict(self.world.epochs_in_log(shard)) or {1: 0}
        registered = self.world.leases._epochs.get(shard, {})
        return tuple(
            sorted(
                {**registered, **known}.items() if max(known) > 1 else (registered or known).items()
            )
        )

    def mailbox(self, shard: int, user: int) -> UserMailbox | None:
        """The mailbox of a user in the one incarnation of the log."""
        base = max(epoch for epoch, first in self._boundaries(shard) if first == 0)
        return self.world.mailboxes.mailboxes.get((0, user, base))

    def holds(self, shard: int, user: int, member: bytes) -> bool:
        """Whether an entry is in a mailbox."""
        mailbox = self.mailbox(shard, user)
        return mailbox is not None and any(member in b.members for b in mailbox.buckets.values())

    def first_missing(self, shard: int, lane: int, begin: int = 0) -> int | None:
        """The first offset from `begin` on whose entries of this lane are not all in their mailboxes."""
        for offset, user, member in self.expected(shard).by_lane.get(lane, ()):
            if offset >= begin and not self.holds(shard, user, member):
                return offset
        return None

    # --- while it plays ------------------------------------------------------------------------------------------
    def appended(self, section: ShardAppend, live_term: int | None) -> None:
        """A section landed."""
        if section.lease_term != live_term:
            self.found.append(f"a write with lease term {section.lease_term} under {live_term}")
        new = marks_in(section.new_w)
        covered = self._covered.setdefault(section.shard, [-1] * LANE_COUNT)
        peak = self._peak.setdefault(section.shard, [-1] * LANE_COUNT)
        for lane in self.expected(section.shard).by_lane:
            w = new[lane]
            if w > covered[lane]:
                missing = self.first_missing(section.shard, lane, covered[lane] + 1)
                if missing is not None and missing <= w:
                    self.found.append(f"W {w} of lane {lane} covers {missing}, which is not there")
            elif w < covered[lane]:
                self.found.append(f"W of the mailbox goes back from {covered[lane]} to {w}")
        self._judge_order(section)
        covered[:] = new
        peak[:] = map(max, peak, new)
        self.judged += 1

    def _judge_order(self, section: ShardAppend) -> None:
        """Inside a lane nothing lands before what stands in front of it (LANE-03)."""
        last: dict[int, int] = {}
        for entry in section.entries:
            lane = lane_of(entry.tenant, entry.user)
            last[lane] = max(entry.log_offset, last.get(lane, -1))
        for lane, offset in last.items():
            missing = self.first_missing(section.shard, lane)
            if missing is not None and missing < offset:
                self.found.append(f"lane {lane}: {offset} lands before {missing}")

    def row_written(self, shard: int, row: WatermarkRow) -> None:
        """A watermark row is in the changelog."""
        new = marks_in(row["w"])
        peak = self._peak.get(shard, [-1] * LANE_COUNT)
        if any(w > top for w, top in zip(new, peak, strict=True)):
            self.found.append("a watermark row is ahead of the mailbox")
        place = (shard, row["lease_term"])
        before = self._rows.get(place)
        if before is not None and any(w < old for w, old in zip(new, before, strict=True)):
            self.found.append("W goes back within a lease term")
        self._rows[place] = new

    def rolled_back(self) -> None:
        """The mailbox lost something: what it covers is read again."""
        for shard in self._covered:
            stored = self.world.mailboxes.watermarks.get(shard)
            self._covered[shard] = [-1] * LANE_COUNT if stored is None else [*marks_in(stored.blob)]

    def acknowledged(
        self, shard: int, offset: int, marks: Sequence[int], blocked: frozenset[int]
    ) -> None:
        """A page up to `offset` was acknowledged while W of the table was `marks` and these lanes had work left."""
        for lane in range(LANE_COUNT):
            if marks[lane] < offset and lane not in blocked:
                self.found.append(
                    f"lane {lane} has nothing left up to {offset}, its W is {marks[lane]}"
                )

    def shown(self, shard: int, view: ShardView) -> None:
        """What a gateway shows now: an open lane never goes back (WM-07)."""
        high = self._shown.setdefault(shard, {})
        for lane in self.expected(shard).by_lane:
            if view.is_open(lane):
                w = view.watermark(lane)
                if w < high.get(lane, 0):
                    self.found.append(f"lane {lane} is shown up to {w:x} after {high[lane]:x}")
                high[lane] = w

    def new_gateway(self) -> None:
        """A gateway that knows nothing of what another one showed."""
        self._shown.clear()

    def answered(self, result: object) -> None:
        """A client got its answer: the message is in a log by now (COM-01)."""
        if isinstance(result, CommittedMessage) and result.message_id not in self.published():
            self.found.append("an acknowledged message is in no log")

    def published(self) -> set[bytes]:
        """Message ids in the outbox."""
        return {key for log in self.world.outbox.log.values() for key, _ in log}

    # --- at the end ----------------------------------------------------------------------------------------------
    def final(self, devices: dict[int, list[bytes]], shard_of_user: dict[int, int]) -> None:
        """Nothing is on its way any more."""
        for user, shown in devices.items():
            wanted = self.expected(shard_of_user[user]).by_user[user]
            mailbox = self.mailbox(shard_of_user[user], user)
            stored = (
                [] if mailbox is None else [m for b in mailbox.buckets.values() for m in b.members]
            )
            if sorted(stored) != sorted(wanted):
                raise Violation(
                    f"mailbox of {user}: {len(stored)} entries, a replay writes {len(wanted)}"
                )
            if shown != wanted:
                raise Violation(
                    f"device of {user} pulled {len(shown)} entries, {len(set(shown))} different ones, "
                    f"of {len(wanted)}"
                )

    def final_answers(self, devices: dict[int, list[bytes]]) -> None:
        """Everything that was acknowledged is shown to both, and under the coordinates that the client was told."""
        shown = {
            user: {Entry(raw).message_id: Entry(raw) for raw in entries}
            for user, entries in devices.items()
        }
        coordinates: dict[bytes, tuple[bytes, int]] = {}
        for asked, result in self.world.answers:
            if not isinstance(result, CommittedMessage):
                raise Violation(f"a valid message was refused: {result!r}")
            told = (result.message_id, result.conversation_seq)
            if coordinates.setdefault(asked.client_message_id, told) != told:
                raise Violation("one message was acknowledged with two sets of coordinates")
            for user in (asked.user, asked.recipient_user_id):
                entry = shown[user].get(result.message_id)
                if entry is None or entry.conversation_seq != result.conversation_seq:
                    raise Violation(f"an acknowledged message is not shown to {user}")
