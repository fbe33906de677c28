"""Encoder and decoder of one Avro record type.

Encoded form: one version byte, then the Avro binary of that version's schema (ADAPT-02). A reader resolves each
committed version against the newest schema, so both directions of a rolling upgrade work; `tests/unit/schemas` checks
the compatibility of every committed version with the avro library. Records are TypedDicts, because fastavro reads and
writes dicts: no conversion is paid.
"""

from __future__ import annotations

import io
import json
from functools import cache
from importlib.resources import files
from typing import Any, Final, Generic, TypeVar, cast

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from schemas.errors import RecordError

__all__ = ["Codec", "load_schema"]

Record = TypeVar("Record")
_DIRECTORY: Final = files("schemas") / "avro"


@cache
def load_schema(name: str, version: int) -> dict[str, Any]:
    """The parsed JSON of `avro/<name>.v<version>.avsc`; raises FileNotFoundError."""
    return cast("dict[str, Any]", json.loads((_DIRECTORY / f"{name}.v{version}.avsc").read_text()))


class Codec(Generic[Record]):
    """Encoder and decoder of one record type; `versions` are all committed schema versions, oldest first."""

    __slots__ = ("_newest", "_prefix", "_schemas", "name", "versions")

    def __init__(self, name: str, versions: int = 1) -> None:
        self.name = name
        self.versions = versions
        self._schemas = {
            v: parse_schema(load_schema(name, v), named_schemas={}) for v in range(1, versions + 1)
        }
        self._newest = self._schemas[versions]
        self._prefix = bytes([versions])

    def encode(self, record: Record) -> bytes:
        """Version byte and Avro binary; raises RecordError when a field does not fit its schema."""
        out = io.BytesIO()
        out.write(self._prefix)
        try:
            schemaless_writer(out, self._newest, record)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise RecordError(f"{self.name}: cannot encode: {error}") from error
        return out.getvalue()

    def decode(self, data: bytes) -> Record:
        """The record in its newest shape; raises RecordError on an unknown version, damage or trailing bytes."""
        if not data:
            raise RecordError(f"{self.name}: empty")
        version = data[0]
        schema = self._schemas.get(version)
        if schema is None:
            raise RecordError(f"{self.name}: unknown schema version {version}")
        source = io.BytesIO(data)
        source.seek(1)
        reader = None if version == self.versions else self._newest
        try:
            record = schemaless_reader(source, schema, reader)
        except (
            Exception
        ) as error:  # a hostile payload may raise almost anything inside the Avro reader
            raise RecordError(f"{self.name}: malformed") from error
        if source.tell() != len(data):
            raise RecordError(f"{self.name}: {len(data) - source.tell()} trailing bytes")
        return cast("Record", record)
