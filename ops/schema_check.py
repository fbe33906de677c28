"""Checks the committed Avro schemas: `python -m ops.schema_check`; the tests run it too.

Three rules, for each record name with versions 1..n:
1. every version can read what every other version wrote, so that a rolling upgrade works in both directions and old
   log records stay readable for ever;
2. a committed file never changes: its SHA-256 is frozen in `schemas/avro/versions.json`. A change is a new version;
   `--add` records the versions that are not in the list yet and refuses everything else;
3. versions are 1..n without a hole, and the codecs of schemas/ know exactly these.

Exits 1 and names every violation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from avro import schema as avro_schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

import schemas
from schemas import records, wire
from schemas.codec import Codec

__all__ = ["check", "check_compatibility", "check_frozen", "check_versions", "main"]

FOLDER: Final = Path(schemas.__file__).parent / "avro"
FROZEN_FILE: Final = "versions.json"
_NAME: Final = re.compile(r"(?P<name>[a-z_]+)\.v(?P<version>[1-9][0-9]*)\.avsc")
_DIRECT: Final = {"entry_head": 1}  # read by schemas/entry.py without a codec

Versions = Mapping[str, Mapping[int, str]]  # name -> version -> text


def load(folder: Path) -> dict[str, dict[int, str]]:
    """Every schema of a folder, by name and version; raises ValueError on a file name that says neither."""
    found: dict[str, dict[int, str]] = {}
    for path in sorted(folder.glob("*.avsc")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise ValueError(f"{path.name}: not <name>.v<version>.avsc")
        found.setdefault(match["name"], {})[int(match["version"])] = path.read_text()
    return found


def check_compatibility(found: Versions) -> list[str]:
    """Rule 1, by the checker of the avro library."""
    parse = cast("Callable[[str], avro_schema.Schema]", avro_schema.parse)
    checker = cast("Callable[[], Any]", ReaderWriterCompatibilityChecker)
    problems = []
    for name, versions in sorted(found.items()):
        parsed = {version: parse(text) for version, text in versions.items()}
        for reader, reads in parsed.items():
            for writer, wrote in parsed.items():
                result = checker().get_compatibility(reads, wrote)
                if result.compatibility is not SchemaCompatibilityType.compatible:
                    why = "; ".join(sorted(result.messages))
                    problems.append(f"{name}: v{reader} cannot read v{writer}: {why}")
    return problems


def digests(found: Versions) -> dict[str, str]:
    """`<name>.v<version>` -> SHA-256 of the file."""
    return {
        f"{name}.v{version}": hashlib.sha256(text.encode()).hexdigest()
        for name, versions in sorted(found.items())
        for version, text in sorted(versions.items())
    }


def check_frozen(found: Versions, frozen: Mapping[str, str]) -> list[str]:
    """Rule 2."""
    now = digests(found)
    return [
        *(
            f"{key}: is not recorded: run `python -m ops.schema_check --add`"
            for key in now
            if key not in frozen
        ),
        *(f"{key}: was committed and is gone" for key in frozen if key not in now),
        *(
            f"{key}: was committed and has changed: make it a new version"
            for key in now
            if key in frozen and frozen[key] != now[key]
        ),
    ]


def check_versions(found: Versions) -> list[str]:
    """Rule 3."""
    codecs = [
        c for module in (records, wire) for c in vars(module).values() if isinstance(c, Codec)
    ]
    known = {codec.name: codec.versions for codec in codecs} | _DIRECT
    problems = []
    for name in sorted(known.keys() | found.keys()):
        versions = sorted(found.get(name, {}))
        if versions != list(range(1, known.get(name, 0) + 1)):
            problems.append(
                f"{name}: files {versions}, the code knows versions up to {known.get(name, 0)}"
            )
    return problems


def check(folder: Path = FOLDER) -> list[str]:
    """All three rules; an empty list when everything holds."""
    found = load(folder)
    frozen = json.loads((folder / FROZEN_FILE).read_text())
    return [*check_versions(found), *check_compatibility(found), *check_frozen(found, frozen)]


def _add(folder: Path) -> None:
    path = folder / FROZEN_FILE
    frozen: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(digests(load(folder)) | frozen, indent=2, sort_keys=True) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ops.schema_check", description="Check the committed Avro schemas."
    )
    parser.add_argument("--add", action="store_true", help="record the versions that are new")
    if parser.parse_args(arguments).add:
        _add(FOLDER)
    problems = check()
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{sum(map(len, load(FOLDER).values()))} schemas are compatible and unchanged")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
