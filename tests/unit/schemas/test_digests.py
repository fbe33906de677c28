"""Digests cover what they should, leave out what they must, and keep their parts apart."""

import pytest

from schemas.digests import identity_digest, payload_digest
from tests.support.samples import sample

_IDENTITY = (b"d" * 16, b"c" * 16, 1, "type", b"body", (3, 4), 9)


@pytest.mark.contract("COM-13", "CON-27", "COM-05")
def test_identity_digest_is_36_bytes_and_covers_each_part() -> None:
    base = identity_digest(*_IDENTITY)
    assert (len(base), base[:4]) == (36, b"QIMD")
    changes = (b"D" * 16, b"C" * 16, 2, "Type", b"Body", (4, 3), 0)
    for at, change in enumerate(changes):
        changed = (*_IDENTITY[:at], change, *_IDENTITY[at + 1 :])
        assert identity_digest(*changed) != base, at  # type: ignore[arg-type]


def test_identity_digest_keeps_its_parts_apart() -> None:
    """Bytes that move from one part into the next give another digest."""
    a = identity_digest(b"d" * 16, b"c" * 16, 1, "ab", b"c", (), 0)
    b = identity_digest(b"d" * 16, b"c" * 16, 1, "a", b"bc", (), 0)
    assert a != b


@pytest.mark.contract("DISP-06", "OPEN-04")
@pytest.mark.parametrize("field", sorted(set(sample("group_dispatch")) - {"fencing_epoch"}))
def test_payload_digest_covers_every_field_that_decides_a_delivery(field: str) -> None:
    record = sample("group_dispatch")
    base = payload_digest(record)
    value = record[field]
    changed: object
    if isinstance(value, int):
        changed = value - 1
    elif isinstance(value, list):
        changed = [*value, 3]
    elif isinstance(value, str):
        changed = value + "x"
    else:
        changed = value[:-1] + bytes([value[-1] ^ 1])
    assert payload_digest(record | {field: changed}) != base


@pytest.mark.contract("DISP-06", "DISP-10")
def test_payload_digest_leaves_out_who_wrote_the_dispatch() -> None:
    record = sample("group_dispatch")
    assert payload_digest(record | {"fencing_epoch": None}) == payload_digest(record)


def test_payload_digest_keeps_recipients_and_mentions_apart() -> None:
    record = sample("group_dispatch")
    a = record | {"recipients": [1, 2], "mentions": []}
    b = record | {"recipients": [1], "mentions": [2]}
    assert payload_digest(a) != payload_digest(b)
