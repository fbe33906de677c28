"""The Redis scripts: one file a script, read and hashed once a process (REDIS-07, REG-28).

A line `-- @include name` is replaced by the text of `name.lua`, so that scripts share checks and not only conventions.
Each file opens with its contract: purpose, keys, arguments, writes, return codes.
"""

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Script", "load"]

_FOLDER: Final = Path(__file__).parent
_INCLUDE: Final = re.compile(r"^-- @include (\w+)$", re.MULTILINE)


class Script(NamedTuple):
    """A script as Redis gets it: `sha1` is the lower-case hex digest by which EVALSHA names it."""

    name: str
    source: str
    sha1: str


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


@cache
def load(name: str) -> Script:
    """Return the script `lua/<name>.lua`; reads and hashes it at the first call only (REG-28)."""
    source = _INCLUDE.sub(lambda match: _read(match[1]), _read(name))
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
