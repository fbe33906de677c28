"""When which process is hurt, and how: a function of the seed, the names and the length, so that a run can be repeated. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from random import Random
from typing import Final, NamedTuple

__all__ = ["Fault", "FaultKind", "plan_faults"]


class FaultKind(Enum):
    """What happens to a process; after all of it the process comes back.

    `KILL` is SIGKILL, `PAUSE` SIGSTOP and SIGCONT, `STOP` an orderly end. `WIPE` kills a worker and deletes its RocksDB; `TEAR` kills
    a mailbox Redis and cuts the end off its AOF, as a power cut does with appendfsync everysec.
    """

    KILL = "kill"
    WIPE = "wipe"
    TEAR = "tear"
    PAUSE = "pause"
    STOP = "stop"


class Fault(NamedTuple):
    """At `at_s` from the start every one of `targets` is hurt; `down_s` later it comes back."""

    at_s: float
    kind: FaultKind
    targets: tuple[str, ...]
    down_s: float


_KINDS: Final = (FaultKind.KILL,) * 6 + (FaultKind.PAUSE,) * 2 + (FaultKind.STOP,)
_WEIGHTS: Final = {"worker": 4, "gateway": 3, "mailbox": 2, "commit": 2, "kafka": 1}
_PAUSE_S: Final = (0.2, 1.0, 4.0, 18.0)  # the last one is past the lease: a zombie
_DOWN_S: Final = (0.0, 0.0, 0.5, 2.0, 17.0)  # the last one: somebody else takes over
_GAP_S: Final = (2.0, 10.0)
_WIPED: Final = 0.3  # of the kills that hit workers alone
_TORN: Final = 0.5  # of the kills that hit mailbox instances alone
_RECOVERY_S: Final = 12.0  # at the end nothing new happens, so that the run can come to rest


def plan_faults(seed: int, names: Sequence[str], seconds: float) -> Iterator[Fault]:
    """Faults for the processes `names` (`worker-0`, `kafka`, ...), one after another, each ended before the next begins."""
    random = Random(seed)
    weights = [_WEIGHTS.get(name.split("-", maxsplit=1)[0], 1) for name in names]
    at_s = random.uniform(1.0, 4.0)
    while True:
        kind = random.choice(_KINDS)
        count = 2 if len(names) > 1 and random.random() < 0.2 else 1  # noqa: PLR2004
        targets: list[str] = []
        while len(targets) < count:
            name = random.choices(names, weights)[0]
            if name not in targets:
                targets.append(name)
        if kind is FaultKind.KILL:
            kind = _harder(targets, random.random())
        down_s = random.choice(_PAUSE_S if kind is FaultKind.PAUSE else _DOWN_S)
        if not all(name.startswith("worker") for name in targets):
            down_s = min(
                down_s, 4.0
            )  # everybody waits for a store; long waits only make the run shorter
        if at_s + down_s > seconds - min(_RECOVERY_S, seconds / 3):
            return
        yield Fault(round(at_s, 3), kind, tuple(targets), down_s)
        at_s += down_s + random.uniform(*_GAP_S)


def _harder(targets: Sequence[str], chance: float) -> FaultKind:
    if all(name.startswith("worker") for name in targets) and chance < _WIPED:
        return FaultKind.WIPE
    if all(name.startswith("mailbox") for name in targets) and chance < _TORN:
        return FaultKind.TEAR
    return FaultKind.KILL
