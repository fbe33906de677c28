"""What a rebuild must give back, as digests that can be compared, written to a file and told to a person. Pure.

A mailbox is its living entries by day, in order, and the two boundaries below which nothing is promised. Days expire while
a rebuild runs, so both sides are first brought to the later one's clock: an expired day is no difference, but it raises
the gap, as Redis' own expiry does (MBX-40).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from blake3 import blake3

from schemas.constants import MAILBOX_RETENTION_DAYS, MAX_LOG_OFFSET, SECONDS_PER_DAY

__all__ = [
    "DAMAGED",
    "Comparison",
    "DayDigest",
    "MailboxDigest",
    "UserDigest",
    "compare_mailboxes",
    "compare_rows",
    "digest_entries",
    "dump_mailbox",
    "load_mailbox",
    "row_digests",
]

_DIGEST_BYTES: Final = 16
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class DayDigest:
    """Entries of one user and UTC day: how many, log offsets of the first and the last, digest of all in order (hex).

    `highest_seq` is the last entry's mailbox_seq in 16 hex digits.
    """

    entries: int
    first_offset: int
    last_offset: int
    highest_seq: str
    digest: str


DAMAGED: Final = DayDigest(0, MAX_LOG_OFFSET, 0, "", "damaged")
"""What stands for a bucket that cannot be read: equal to no bucket that can."""


@dataclass(frozen=True, slots=True)
class UserDigest:
    """One user's mailbox of one incarnation; boundaries in 16 hex digits, '' for none."""

    trim: str = ""
    gap: str = ""
    days: Mapping[int, DayDigest] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether this is what a user without a mailbox has."""
        return not (self.trim or self.gap or self.days)

    def at(self, now_s: int) -> UserDigest:
        """The same as it stands at `now_s`: days that have expired by then only leave the gap."""
        gone = [day for day in self.days if _expiry_s(day) <= now_s]
        gap = max([self.gap, *(self.days[day].highest_seq for day in gone)])
        return UserDigest(self.trim, gap, {d: v for d, v in self.days.items() if d not in gone})


MailboxDigest = Mapping[str, UserDigest]
"""User key (as in the store) -> what that user has."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many things were compared, a digest of each side over all of them, and what differs (the first few)."""

    compared: int
    before: str
    after: str
    different: int
    examples: Sequence[str]

    @property
    def equal(self) -> bool:
        """Whether both sides are the same, thing by thing."""
        return self.different == 0

    def as_json(self) -> dict[str, Any]:
        """For reports."""
        return {
            "compared": self.compared,
            "before": self.before,
            "after": self.after,
            "different": self.different,
            "examples": list(self.examples),
        }


def _offset_of(gap: str) -> int:
    """Log offset of a boundary, -1 for none and for a damaged one."""
    try:
        return int(gap, 16) & MAX_LOG_OFFSET
    except ValueError:
        return -1


def _expiry_s(day: int) -> int:
    return (day + MAILBOX_RETENTION_DAYS + 1) * SECONDS_PER_DAY


def digest_entries(entries: Sequence[tuple[int, bytes]]) -> DayDigest:
    """Digest of the (log offset, entry) pairs of one bucket, not empty, in the bucket's order."""
    hasher = blake3()
    for offset, entry in entries:
        hasher.update(offset.to_bytes(8, "big") + len(entry).to_bytes(4, "big") + entry)
    last = entries[-1]
    return DayDigest(
        len(entries), entries[0][0], last[0], last[1][1:9].hex(), hasher.hexdigest(_DIGEST_BYTES)
    )


def row_digests(rows: Mapping[bytes, bytes]) -> dict[str, str]:
    """Key -> digest of its row, both hex: small enough to keep for a whole table."""
    return {
        key.hex(): str(blake3(row).hexdigest(_DIGEST_BYTES)) for key, row in sorted(rows.items())
    }


def _whole_rows(rows: Mapping[str, str]) -> str:
    hasher = blake3()
    for key in sorted(rows):
        hasher.update(f"{key}:{rows[key]};".encode())
    return str(hasher.hexdigest(_DIGEST_BYTES))


def _whole(users: MailboxDigest) -> str:
    hasher = blake3()
    for key in sorted(users):
        hasher.update(json.dumps([key, _plain(users[key])], sort_keys=True).encode())
    return str(hasher.hexdigest(_DIGEST_BYTES))


def compare_mailboxes(
    before: MailboxDigest, after: MailboxDigest, now_s: int, limit_of: Callable[[str], int]
) -> Comparison:
    """Compare user by user as of `now_s`, which is when `after` was read.

    `limit_of` is the log offset up to which a user's mailbox is compared; a gap that was raised by later records is no
    difference.
    """
    nobody = UserDigest()
    sides: list[dict[str, UserDigest]] = [{}, {}]
    for key in sorted(before.keys() | after.keys()):
        one, two = before.get(key, nobody).at(now_s), after.get(key, nobody).at(now_s)
        if _offset_of(two.gap) > limit_of(key):
            two = replace(two, gap=one.gap)
        for side, user in zip(sides, (one, two), strict=True):
            if not user.is_empty:
                side[key] = user
    keys = sorted(sides[0].keys() | sides[1].keys())
    texts: list[str] = []
    different = 0
    for key in keys:
        one, two = sides[0].get(key, nobody), sides[1].get(key, nobody)
        if one != two:
            different += 1
            texts += [f"{key}: {text}" for text in _differences(one, two)][: _SHOWN - len(texts)]
    return Comparison(len(keys), _whole(sides[0]), _whole(sides[1]), different, texts)


def _differences(one: UserDigest, two: UserDigest) -> Iterable[str]:
    if one.trim != two.trim:
        yield f"trim {one.trim or 'none'} became {two.trim or 'none'}"
    if one.gap != two.gap:
        yield f"gap {one.gap or 'none'} became {two.gap or 'none'}"
    for day in sorted(one.days.keys() | two.days.keys()):
        old, new = one.days.get(day), two.days.get(day)
        if old != new:
            counts = [0 if side is None else side.entries for side in (old, new)]
            yield f"day {day}: {counts[0]} entries became {counts[1]}, or other ones"


def compare_rows(before: Mapping[str, str], after: Mapping[str, str]) -> Comparison:
    """Compare a table row by row; both sides are `row_digests`."""
    keys = sorted(before.keys() | after.keys())
    wrong = [key for key in keys if before.get(key) != after.get(key)]
    what = [
        "lost" if key not in after else "new" if key not in before else "other" for key in wrong
    ]
    examples = [f"row {key}: {text}" for key, text in zip(wrong[:_SHOWN], what, strict=False)]
    return Comparison(len(keys), _whole_rows(before), _whole_rows(after), len(wrong), examples)


def _plain(user: UserDigest) -> list[Any]:
    days = {
        str(day): [d.entries, d.first_offset, d.last_offset, d.highest_seq, d.digest]
        for day, d in user.days.items()
    }
    return [user.trim, user.gap, days]


def dump_mailbox(users: MailboxDigest) -> dict[str, Any]:
    """As JSON, one item a user."""
    return {key: _plain(users[key]) for key in sorted(users)}


def load_mailbox(plain: Mapping[str, Any]) -> dict[str, UserDigest]:
    """What `dump_mailbox` gave."""
    return {
        key: UserDigest(trim, gap, {int(day): DayDigest(*values) for day, values in days.items()})
        for key, (trim, gap, days) in plain.items()
    }
