"""docs/gateway.md against the code it describes."""

import re
from pathlib import Path

import pytest

from gateway import diagram
from schemas.errors import ErrorCode

TESTS = Path(__file__).resolve().parents[2]


def test_the_page_shows_the_table_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagram.main(["--check"]) == 0, capsys.readouterr().out
    page = diagram.PAGE.read_text()
    for code in ErrorCode:
        assert f"| {code.name} | {code.value} |" in page


def test_an_outdated_page_is_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "gateway.md"
    page.write_text(diagram.PAGE.read_text().replace("CONNECTED -->", "CONNECTED ==>"))
    monkeypatch.setattr(diagram, "PAGE", page)
    assert diagram.main(["--check"]) == 1
    assert diagram.main([]) == 0
    assert diagram.main(["--check"]) == 0


def test_every_failure_case_names_a_test_that_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", diagram.PAGE.read_text()))
    sources = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert len(named) >= 10
    assert {name for name in named if f"def {name}(" not in sources} == set()
