"""Which process listens on a loopback port, read from /proc (Linux): how an attached stack's CPU is found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["listening_inodes", "pids_of_listeners"]

_LISTEN: Final = "0A"
_STATE, _INODE = 3, 9


def listening_inodes(table: str) -> dict[int, int]:
    """Return inode -> port of every listening socket in the text of /proc/net/tcp or tcp6."""
    found: dict[int, int] = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > _INODE and fields[_STATE] == _LISTEN:
            found[int(fields[_INODE])] = int(fields[1].rpartition(":")[2], 16)
    return found


def pids_of_listeners(ports: Iterable[int]) -> dict[int, int]:
    """Return port -> pid for those of `ports` whose owner we may see."""
    wanted = set(ports)
    inodes: dict[int, int] = {}
    for name in ("tcp", "tcp6"):
        table = Path("/proc/net") / name
        if table.exists():
            inodes |= listening_inodes(table.read_text())
    sockets = {f"socket:[{inode}]": port for inode, port in inodes.items() if port in wanted}
    pids: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            for target in _open_files(folder / "fd"):
                if target in sockets:
                    pids[sockets[target]] = int(folder.name)
    return pids


def _open_files(folder: Path) -> list[str]:
    try:
        links = list(folder.iterdir())
    except OSError:  # gone meanwhile, or not ours
        return []
    return [target for link in links if (target := _target(link)) is not None]


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except OSError:  # closed meanwhile, as the folder that was just listed
        return None
