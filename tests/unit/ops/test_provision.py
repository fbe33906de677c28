"""Installing what is missing: what is asked of apt and what a person is told."""

import os
import subprocess
from pathlib import Path

import pytest

from ops import bootstrap
from ops.servers import provision
from ops.servers.provision import ProvisionError, apt_install, install_servers, kafka_jars


class Commands:
    """Records commands instead of running them; `failing` names the one that fails."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.failing = ""

    def run(self, argv: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        self.seen.append(list(argv))
        failed = bool(self.failing) and self.failing in argv
        return subprocess.CompletedProcess(argv, int(failed), "", "no network" if failed else "")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    recorder = Commands()
    monkeypatch.setattr(subprocess, "run", recorder.run)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return recorder


def test_root_gets_the_package_after_an_update(commands: Commands) -> None:
    apt_install(["redis-server"], lambda _text: None)
    assert [argv[2] for argv in commands.seen] == ["update", "install"]
    assert commands.seen[1][-1] == "redis-server"


def test_failure_of_apt_is_shown(commands: Commands) -> None:
    commands.failing = "update"
    with pytest.raises(ProvisionError, match=r"(?s)apt-get update failed.*no network"):
        apt_install(["redis-server"], lambda _text: None)
    assert len(commands.seen) == 1


def test_other_users_are_told_the_package_and_nothing_is_run(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ProvisionError, match="please install: maven"):
        apt_install(["maven"], lambda _text: None)
    assert commands.seen == []


def test_machine_that_has_everything_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(packages: list[str], _say: object) -> None:
        raise AssertionError(packages)

    monkeypatch.setattr(provision, "apt_install", refuse)
    install_servers(pytest.fail)


def test_another_pin_needs_another_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have = kafka_jars()
    pom = tmp_path / "kafka-pom.xml"
    pom.write_text("<project/>")
    monkeypatch.setattr(provision, "_KAFKA_POM", pom)
    with pytest.raises(ProvisionError, match="run `make setup`"):
        kafka_jars()
    assert any(have.glob("kafka_*.jar"))


def test_environment_is_made_once_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(bootstrap, "_ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "_VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "_STAMP", tmp_path / "stamp")

    assert bootstrap.main(["--environment-only"]) == 0
    first = [argv[1:3] for argv in commands.seen]
    assert first == [["-m", "venv"], ["-m", "pip"], ["-m", "pip"]]
    assert "--require-hashes" in commands.seen[1]

    assert bootstrap.main(["--environment-only"]) == 0
    assert len(commands.seen) == 3
    (tmp_path / "requirements.lock").write_text("2")
    assert bootstrap.main(["--environment-only"]) == 0
    assert len(commands.seen) > 3


def test_failed_install_leaves_no_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(bootstrap, "_ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "_STAMP", tmp_path / "stamp")
    commands.failing = "--require-hashes"
    assert bootstrap.main(["--environment-only"]) == 1
    assert not (tmp_path / "stamp").exists()
