"""How values stand in vector files: `{"hex": "00ff"}` for bytes, `{"int": "..."}` above 2**53 (ADAPT-03)."""

from typing import Any

__all__ = ["from_json", "to_json"]

_EXACT_DOUBLE = 1 << 53


def to_json(value: Any) -> Any:
    """Bytes and large numbers in a form that every JSON reader keeps."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_DOUBLE:
        return {"int": str(int(value))}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    """The values again; tuples come back as lists."""
    if isinstance(value, dict):
        if value.keys() == {"hex"}:
            return bytes.fromhex(value["hex"])
        if value.keys() == {"int"}:
            return int(value["int"])
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value
