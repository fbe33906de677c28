from pathlib import Path

import pytest
from pydantic import SecretStr

from ops.settings_page import default_text, main, page, type_text
from schemas.config import Settings

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def test_committed_page_is_the_one_drawn_from_the_model() -> None:
    assert COMMITTED.read_text() == page(), "run `make docs`"


def test_page_has_a_row_with_a_meaning_for_every_setting() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `QIM_")]
    assert [row[0] for row in rows] == [f"| `QIM_{n.upper()}`" for n in Settings.model_fields]
    assert all(row[-1].removesuffix("|").strip() for row in rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8, "`8`"),
        (True, "`1`"),
        (None, "unset"),
        (("a", "b"), "`a,b`"),
        (Path("data"), "`data`"),
        (SecretStr(""), "required"),
        (SecretStr("x"), "hidden"),
    ],
)
def test_default_text(value: object, text: str) -> None:
    assert default_text(value) == text


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "integer"),
        (bool, "0 or 1"),
        (tuple[str, ...], "list of text"),
        (tuple[int, ...] | None, "list of integer"),
    ],
)
def test_type_text(annotation: object, text: str) -> None:
    assert type_text(annotation) == text


def test_check_prints_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "settings.md"
    assert main(["--write", str(path)]) == 0
    assert main(["--check", str(path)]) == 0
    path.write_text(page().replace("| integer |", "| float |", 1))
    assert main(["--check", str(path)]) == 1
    assert "+| `QIM_" in capsys.readouterr().out
