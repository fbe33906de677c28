import hashlib
import re
from pathlib import Path

import pytest

import lua

SCRIPTS = sorted(path.stem for path in Path(lua.__file__).parent.glob("[a-z]*.lua"))


@pytest.mark.contract("REG-28", "REDIS-07")
def test_reg_28_a_script_is_read_and_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    sha1 = hashlib.sha1

    def counting(data: bytes, *, usedforsecurity: bool) -> object:
        hashed.append(data)
        return sha1(data, usedforsecurity=usedforsecurity)

    monkeypatch.setattr(hashlib, "sha1", counting)
    lua.load.cache_clear()
    assert lua.load("append_page") is lua.load("append_page")
    assert len(hashed) == 1


def test_includes_are_replaced_and_the_digest_is_of_what_redis_gets() -> None:
    script = lua.load("append_page")
    assert "@include" not in script.source
    assert "local function load_state" in script.source
    assert script.sha1 == hashlib.sha1(script.source.encode(), usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_opens_with_its_contract(name: str) -> None:
    source = lua.load(name).source
    assert source.startswith("#!lua")  # a lack of memory is found before the first write
    for part in (f"-- {name}: ", "Keys", "Arguments: ", "Writes: ", "Returns "):
        assert part in source, part


@pytest.mark.contract("MBX-22")
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_knows_the_number_of_retention_days(name: str) -> None:
    code = re.sub(r"--.*", "", lua.load(name).source)
    assert not re.search(r"\b(7|8|604800|691200)\s*\*|\*\s*(7|8)\b|retention_days\s*=\s*\d", code)


@pytest.mark.contract("REDIS-08")
@pytest.mark.parametrize("name", SCRIPTS)
def test_data_expires_at_an_absolute_time_without_options(name: str) -> None:
    code = re.sub(r"--.*", "", lua.load(name).source)
    assert not re.search(r"'P?EXPIRE(AT)?',[^}\n]*'(NX|XX|GT|LT)'", code)
    relative = re.findall(r"'P?EXPIRE'|'P?X'", code)
    assert not relative or name.startswith(("shard_", "writer_"))  # leases have a TTL, data never
