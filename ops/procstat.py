"""CPU time and memory of processes, read from /proc (Linux)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuMeter", "ProcessStat", "parse_stat", "read_stat"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Positions after the command name, which is field 2 and may itself hold spaces and parentheses.
_UTIME, _STIME, _RSS = 11, 12, 21


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """CPU seconds used since the process began, all its threads, user and system; resident bytes."""

    cpu_s: float
    rss_bytes: int


def parse_stat(text: str) -> ProcessStat:
    """Read one /proc/<pid>/stat line."""
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[_UTIME]) + int(fields[_STIME])
    return ProcessStat(ticks / _TICKS_PER_S, int(fields[_RSS]) * _PAGE_BYTES)


def read_stat(pid: int) -> ProcessStat | None:
    """Return what a process has used so far, None when there is no such process."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


class CpuMeter:
    """CPU seconds by process between two moments.

    `processes` maps a name to its pid. A process that was restarted meanwhile counts from its
    start; one that is gone counts nothing.
    """

    __slots__ = ("_begin",)

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._begin = {pid: stat.cpu_s for pid in processes.values() if (stat := read_stat(pid))}

    def used_s(self, processes: Mapping[str, int]) -> dict[str, float]:
        """Return the seconds since construction, by name."""
        return {
            name: stat.cpu_s - self._begin.get(pid, 0.0)
            for name, pid in processes.items()
            if (stat := read_stat(pid))
        }
