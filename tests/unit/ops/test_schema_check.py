"""The check of the committed schemas holds, and each of its rules fails when it is broken."""

import json
from pathlib import Path

import pytest

from ops import schema_check


@pytest.mark.contract("ADAPT-02")
def test_the_committed_schemas_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert schema_check.main([]) == 0
    assert "compatible and unchanged" in capsys.readouterr().out


def record(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "R", "namespace": "qim", "fields": list(fields)})


A = {"name": "a", "type": "long"}
V1 = record(A)


@pytest.mark.parametrize(
    ("v2", "problem"),
    [
        (record(A, {"name": "b", "type": "long"}), "v2 cannot read v1"),  # no default
        (record({"name": "c", "type": "long"}), "v1 cannot read v2"),  # a is gone
        (record({"name": "a", "type": "string"}), "v2 cannot read v1"),
        (record({"name": "a", "type": ["null", "long"], "default": None}), "v1 cannot read v2"),
        (record({"name": "a", "type": "int"}), "v2 cannot read v1"),
    ],
)
def test_a_change_that_one_direction_cannot_follow_is_named(v2: str, problem: str) -> None:
    problems = schema_check.check_compatibility({"r": {1: V1, 2: v2}})
    assert any(problem in line for line in problems)


def test_an_optional_field_at_the_end_is_compatible_both_ways() -> None:
    v2 = record(A, {"name": "b", "type": ["null", "long"], "default": None})
    assert schema_check.check_compatibility({"r": {1: V1, 2: v2}}) == []


def test_the_first_and_the_third_version_must_fit_too() -> None:
    b = {"name": "b", "type": "long", "default": 0}
    b_text = {"name": "b", "type": "string", "default": ""}
    versions = {1: record(A, b), 2: V1, 3: record(A, b_text)}
    assert schema_check.check_compatibility({"r": {1: versions[1], 2: versions[2]}}) == []
    assert schema_check.check_compatibility({"r": {1: versions[2], 2: versions[3]}}) == []
    assert schema_check.check_compatibility({"r": versions})


def test_a_changed_a_lost_and_a_new_file_are_named() -> None:
    found = {"r": {1: V1}}
    frozen = schema_check.digests(found)
    assert schema_check.check_frozen(found, frozen) == []
    assert "has changed" in schema_check.check_frozen({"r": {1: V1 + " "}}, frozen)[0]
    assert "is gone" in schema_check.check_frozen({}, frozen)[0]
    assert "not recorded" in schema_check.check_frozen(found, {})[0]


@pytest.mark.parametrize("versions", [{}, {2: V1}, {1: V1, 2: V1}])
def test_files_must_be_the_versions_that_the_code_knows(versions: dict[int, str]) -> None:
    found = schema_check.load(schema_check.FOLDER) | {"kicked": versions}
    assert [line.split(":")[0] for line in schema_check.check_versions(found)] == ["kicked"]


def test_recording_adds_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kicked.v1.avsc").write_text(V1)
    schema_check._add(tmp_path)
    first = (tmp_path / "versions.json").read_text()
    (tmp_path / "kicked.v1.avsc").write_text(V1 + " ")
    schema_check._add(tmp_path)
    assert (tmp_path / "versions.json").read_text() == first
    assert any("has changed" in line for line in schema_check.check(tmp_path))


def test_a_file_without_a_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kicked.avsc").write_text(V1)
    with pytest.raises(ValueError, match="kicked"):
        schema_check.load(tmp_path)


def test_violations_end_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schema_check, "check", lambda: ["kicked: bad"])
    assert schema_check.main([]) == 1
    assert "kicked: bad" in capsys.readouterr().err
