import sys
from types import ModuleType

import pytest

from ops import cli
from schemas.errors import StartRefused


def command(monkeypatch: pytest.MonkeyPatch, main: object) -> None:
    module = ModuleType("fake_command")
    vars(module)["main"] = main
    monkeypatch.setitem(sys.modules, "fake_command", module)
    monkeypatch.setitem(cli.COMMANDS, "fake", ("fake_command", "does nothing"))


def test_no_command_prints_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in cli.COMMANDS)


def test_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["nonsense"]) == 2
    assert "no command 'nonsense'" in capsys.readouterr().err


def test_arguments_and_exit_code_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def main(argv: list[str]) -> int:
        seen.extend(argv)
        return 7

    command(monkeypatch, main)
    assert cli.main(["fake", "--rate", "5"]) == 7
    assert seen == ["--rate", "5"]


def test_refused_start_prints_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(_argv: list[str]) -> int:
        raise StartRefused("wrong folder")

    command(monkeypatch, main)
    assert cli.main(["fake"]) == 1
    assert capsys.readouterr().err == "qim fake: wrong folder\n"
