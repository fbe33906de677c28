"""The command line, the stack it is attached to, and the judgement of one login."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cli import parse
from bench.offline import findings
from bench.payload import body_of
from bench.target import attached
from clients.timeline import Entry
from ops.plan import StackOptions, load_or_create
from schemas.errors import StartRefused
from tests.support.entries import entry_bytes


def test_one_login_is_judged_against_what_was_stored() -> None:
    nonce = b"n" * 16

    def entry(index: int, conversation_seq: int) -> Entry:
        body = body_of(nonce, index, 40)
        return Entry(entry_bytes(index, conversation_seq=conversation_seq, body=body))

    assert findings(nonce, 3, [entry(0, 1), entry(1, 2), entry(2, 3)]) == {
        "missing": 0,
        "duplicates": 0,
        "order_breaks": 0,
    }
    assert findings(nonce, 3, [entry(1, 2), entry(0, 1), entry(1, 3)]) == {
        "missing": 1,
        "duplicates": 1,
        "order_breaks": 1,
    }
    assert findings(b"o" * 16, 1, [entry(0, 1)])["missing"] == 1


@pytest.fixture
def plan_folder(tmp_path: Path) -> Path:
    load_or_create(tmp_path / "stack.json", StackOptions())
    return tmp_path


def test_running_stack_is_found_by_its_data_folder(plan_folder: Path) -> None:
    plan = load_or_create(plan_folder / "stack.json", StackOptions())
    target = attached(f"127.0.0.1:{plan.gateway_ports[0]}", plan_folder)
    assert target.settings.broker == plan.servers.broker
    assert target.settings.token_secret.get_secret_value() == plan.token_secret
    assert {port for _, port in target.web} == {*plan.gateway_web_ports, *plan.worker_web_ports}
    assert target.counts == {"gateway": 1, "worker": 1, "redis": 2, "broker": 1}
    assert target.processes() == {}  # nothing listens


def test_gateway_of_another_stack_is_refused(plan_folder: Path) -> None:
    with pytest.raises(StartRefused, match="gateways"):
        attached("127.0.0.1:1", plan_folder)


@pytest.mark.parametrize("address", ["nowhere", ":1", "127.0.0.1:x"])
def test_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match="host:port"):
        attached(address, tmp_path)


@pytest.mark.parametrize(
    "argv",
    [
        ["pair", "--pairs", "50", "--rate", "1000", "--seconds", "20", "--json", "f"],
        ["pair", "--rate", "1000", "--json", "f", "--attach", "127.0.0.1:7800"],
        ["ladder", "--json", "f"],
        ["offline", "--messages", "2000", "--json", "f"],
    ],
)
def test_command_lines_of_the_manual_are_understood(argv: list[str]) -> None:
    options = parse(argv)
    assert options.json == Path("f")
    assert options.command == argv[0]


@pytest.mark.parametrize(
    "argv", [[], ["pair", "--json", "f"], ["ladder"], ["dance", "--json", "f"]]
)
def test_wrong_command_line_ends_with_two(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
