"""What the shared mailbox suite is written with: the harness that each backend brings, and a writer that acts as a worker does.

Days are counted from a harness's own beginning: `harness.day(0)` is the day on which the test began, `age(n)` lets n days pass.
The harness answers for what no test can wait for (natural expiry) and what no API does (damage).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest

from schemas.errors import QimError
from schemas.watermarks import pack_uniform
from stores.leases import LeaseGrant, ShardLeases
from stores.mailbox import (
    ZERO_CURSOR,
    AppendOutcome,
    EntryWrite,
    MailboxStore,
    ScanRequest,
    ScanResult,
    ShardAppend,
)

__all__ = [
    "OTHER",
    "TENANT",
    "USER",
    "Damage",
    "Mailbox",
    "MailboxBase",
    "MailboxHarness",
    "member",
    "offsets",
    "scan_of",
    "seq_of",
]

TENANT, USER, OTHER = 0, 7, 8
_LARGE = 1 << 20


class Damage(Enum):
    """What may be wrong with the proofs of one user's mailbox."""

    META_LOST = "meta lost"
    FORMAT_3 = "older retention format"
    PROOF_WRONG = "proof names another largest sequence"
    BUCKET_LOST = "bucket lost while its proof lives"
    DAY_INDEX_LOST = "day index lost"
    IDENTITY_LOST = "identity index lost"
    EXPIRY_MOVED = "bucket with another expiry"


class MailboxHarness(ABC):
    """One backend, empty at the beginning of a test."""

    store: MailboxStore
    leases: ShardLeases

    @abstractmethod
    def day(self, number: int) -> int:
        """UTC day number of the test's day `number`, as seen now."""

    @abstractmethod
    async def age(self, days: int) -> None:
        """Let days pass for everything stored."""

    @abstractmethod
    async def damage(self, kind: Damage, user: int, day: int) -> None:
        """Damage the mailbox of a user (base epoch 1)."""

    @abstractmethod
    async def plant(self, user: int, day: int, log_offset: int, entry: bytes) -> None:
        """Put a foreign entry below the largest offset of a bucket, proofs untouched."""

    @abstractmethod
    async def forget_identity(self, user: int, seq: int) -> None:
        """Remove one sequence from the identity index."""

    @abstractmethod
    async def snapshot(self) -> object:
        """Everything stored, expiries included; equal snapshots mean that nothing was written."""

    @abstractmethod
    async def end_lease(self, shard: int) -> None:
        """Let the lease of a shard run out."""


def seq_of(log_offset: int, epoch: int = 1) -> int:
    """mailbox_seq of an offset."""
    return epoch << 48 | log_offset


def member(seq: int, ordinal: int = 0, size: int = 100) -> bytes:
    """Entry bytes of a given length; what follows the ordinal is opaque to stores."""
    head = b"\x01" + seq.to_bytes(8, "big") + bytes([ordinal << 1])
    return head + bytes((seq + ordinal + i) % 251 for i in range(size - len(head)))


def scan_of(after: int = ZERO_CURSOR, up_to: int = _LARGE, **fields: Any) -> ScanRequest:
    """A pull of USER on shard 0 up to offset `up_to` of epoch 1."""
    scan = ScanRequest(TENANT, USER, 0, (1,), after, seq_of(up_to), 1000, _LARGE)
    return scan._replace(**fields)


class Mailbox:
    """Writes as a shard's worker does: one lease, W kept from page to page."""

    def __init__(self, harness: MailboxHarness, shard: int = 0) -> None:
        self.harness = harness
        self.shard = shard
        self.term = 0
        self.w: bytes | None = None

    async def lease(self, owner: str = "worker") -> None:
        """Take the shard."""
        grant = await self.harness.leases.acquire(self.shard, owner, 60_000)
        assert isinstance(grant, LeaseGrant)
        self.term = grant.term

    def section(
        self, entries: Sequence[EntryWrite], w: int | None = None, epoch: int = 1
    ) -> ShardAppend:
        """A section that advances W to the last entry (or to `w`)."""
        reached = entries[-1].log_offset if w is None else w
        return ShardAppend(
            self.shard, self.term, epoch, self.w, pack_uniform(reached), epoch, entries
        )

    async def append(
        self, *entries: EntryWrite, w: int | None = None, epoch: int = 1
    ) -> AppendOutcome:
        """Append one page; W follows when it was stored."""
        if not self.term:
            await self.lease()
        section = self.section(entries, w, epoch)
        (outcome,) = await self.harness.store.append_page([section])
        if outcome.code == "ok":
            self.w = section.new_w
        return outcome

    def entry(
        self,
        offset: int,
        day: int = 0,
        user: int = USER,
        ordinal: int = 0,
        size: int = 100,
        epoch: int = 1,
    ) -> EntryWrite:
        """One entry of the test's day `day`."""
        seq = seq_of(offset, epoch)
        bytes_ = member(seq, ordinal, size)
        return EntryWrite(TENANT, user, offset, seq, self.harness.day(day), bytes_)

    async def fill(self, *offsets: int, day: int = 0) -> None:
        """Append one page of single entries; must succeed."""
        assert (await self.append(*(self.entry(o, day) for o in offsets))).code == "ok"

    async def scan(
        self, after: int = ZERO_CURSOR, up_to: int = _LARGE, **fields: Any
    ) -> ScanResult:
        """Pull; must succeed."""
        found = await self.scan_any(after, up_to, **fields)
        assert isinstance(found, ScanResult), found
        return found

    async def scan_any(
        self, after: int = ZERO_CURSOR, up_to: int = _LARGE, **fields: Any
    ) -> ScanResult | QimError:
        """Pull; whatever the answer."""
        (found,) = await self.harness.store.range_scan([scan_of(after, up_to, **fields)])
        return found


def offsets(found: ScanResult) -> list[int]:
    """Log offsets of the entries, one each."""
    return [int.from_bytes(entry[1:9], "big") & ((1 << 48) - 1) for entry in found.entries]


class MailboxBase:
    """The fixture and the check that all parts of the suite share."""

    @pytest.fixture
    def mailbox(self, harness: MailboxHarness) -> Mailbox:
        return Mailbox(harness)

    async def refused(self, mailbox: Mailbox, code: str, *entries: EntryWrite) -> AppendOutcome:
        """Append what must be refused without a write; another user of the page suffers with it."""
        if not mailbox.term:
            await mailbox.lease()
        before = await mailbox.harness.snapshot()
        outcome = await mailbox.append(mailbox.entry(50, user=OTHER), *entries)
        assert outcome.code == code, outcome
        assert await mailbox.harness.snapshot() == before
        return outcome
