"""`qim settings`: the reference page of all settings, drawn from the model.

`--write PATH` writes it, `--check PATH` fails when the file differs, neither prints it.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from schemas.config import Settings

__all__ = ["default_text", "main", "page", "type_text"]

_INTRODUCTION = """# Settings

Drawn from `schemas/config.py` by `make docs`; do not edit. Every process reads the same variables
and uses those that concern it. Durations and sizes carry their unit in the name.

| variable | type | default | meaning |
| --- | --- | --- | --- |
"""


def default_text(value: object) -> str:
    """Return a default as one would write it into the environment."""
    if isinstance(value, SecretStr):
        return "required" if not value.get_secret_value() else "hidden"
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    if isinstance(value, bool):
        return f"`{int(value)}`"
    return f"`{value}`"


def type_text(annotation: Any) -> str:
    """Return the name of a setting's type in words of the environment."""
    if isinstance(annotation, UnionType):
        return type_text(next(a for a in get_args(annotation) if a is not NoneType))
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(get_args(annotation))}"
    if get_origin(annotation) is tuple:
        return f"list of {type_text(get_args(annotation)[0])}"
    names = {
        bool: "0 or 1",
        int: "integer",
        SecretStr: "secret",
        str: "text",
        Path: "path",
        float: "number",
    }
    return names.get(annotation, str(annotation.__name__))


def _row(name: str, field: FieldInfo) -> str:
    cells = (
        f"`QIM_{name.upper()}`",
        type_text(field.annotation),
        default_text(field.default),
        field.description or "",
    )
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """Return the page, one row a setting in the order of the model."""
    fields = Settings.model_fields
    return _INTRODUCTION + "".join(_row(name, field) for name, field in fields.items())


def main(argv: Sequence[str]) -> int:
    """Run `qim settings`; with --check returns 1 and prints the difference when there is one."""
    parser = argparse.ArgumentParser(prog="qim settings")
    parser.add_argument("--write", type=Path, help="write the page to this file")
    parser.add_argument("--check", type=Path, help="fail when this file differs")
    arguments = parser.parse_args(argv)
    if arguments.write:
        arguments.write.write_text(page())
    elif arguments.check:
        have, want = arguments.check.read_text(), page()
        difference = difflib.unified_diff(
            have.splitlines(keepends=True), want.splitlines(keepends=True), "committed", "drawn"
        )
        sys.stdout.writelines(difference)
        return int(have != want)
    else:
        sys.stdout.write(page())
    return 0
