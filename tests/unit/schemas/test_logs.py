"""The one way to log: a line an event, context as fields, nothing secret."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from schemas.config import Settings
from schemas.logs import LogFormatter, configure_logging
from schemas.redaction import Scrubber

BODY = b"dinner at eight, bring the red folder"
KEY = "a key of the tests, long enough for HMAC"


def record(message: str, *args: object, **extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord(extra)
    made.msg, made.args, made.name = message, args, "gateway.login"
    made.levelno, made.levelname = logging.WARNING, "WARNING"
    return made


def line(made: logging.LogRecord, *, as_json: bool = False) -> str:
    return LogFormatter(Scrubber([KEY]), as_json=as_json, process="gateway-0").format(made)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logging.captureWarnings(capture=False)
    logger.handlers[:] = handlers
    logger.setLevel(level)


def test_a_line_of_text_has_its_context_at_the_end() -> None:
    text = line(record("shard %d is leased", 3, owner="worker 1", ttl_ms=250))
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING  gateway\.login: ", text)
    assert text.endswith(': shard 3 is leased owner="worker 1" ttl_ms=250')


def test_a_line_of_json_has_the_same_as_fields() -> None:
    fields = json.loads(line(record("shard %d is leased", 3, ttl_ms=250, ok=True), as_json=True))
    assert (fields["event"], fields["message"]) == ("shard %d is leased", "shard 3 is leased")
    assert (fields["level"], fields["logger"], fields["process"]) == (
        "WARNING",
        "gateway.login",
        "gateway-0",
    )
    assert (fields["ttl_ms"], fields["ok"]) == (250, True)


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_in_a_value_can_begin_a_line_of_its_own(as_json: bool) -> None:  # noqa: FBT001
    text = line(record("from %s", "x\n2026-01-01 ERROR forged", note="a\r\nb"), as_json=as_json)
    assert "\n" not in text
    assert "\r" not in text
    assert "forged" in text


@pytest.mark.contract("OBS-10")
@pytest.mark.parametrize("as_json", [False, True])
def test_obs_10_values_context_and_tracebacks_are_scrubbed(as_json: bool) -> None:  # noqa: FBT001
    try:
        raise ValueError(BODY, KEY)
    except ValueError:
        failed = record("%s failed with %r", BODY, KEY, payload=BODY)
        failed.exc_info = sys.exc_info()
    text = line(failed, as_json=as_json)
    assert "ValueError" in text
    assert "red folder" not in text
    assert KEY not in text


@pytest.mark.contract("OBS-10")
def test_obs_10_every_logger_of_every_library_passes_the_formatter(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(
        token_secret=SecretStr(KEY),
        mailbox_redis=("redis://:pass-word@127.0.0.1:1/0",),
        log_format="json",
        log_level="INFO",
    )
    configure_logging(settings, "worker-0")
    logging.getLogger("some.library").error("sent %r with %s and pass-word", BODY, KEY)
    logging.getLogger("aiokafka").info("not wanted")
    logging.getLogger("gateway").debug("nor this")
    out, err = capsys.readouterr()
    assert out == ""
    (only,) = err.splitlines()
    assert json.loads(only)["message"].startswith("sent <bytes literal of 37> with <secret ")
    assert "pass-word" not in only


@pytest.mark.contract("OBS-10")
def test_obs_10_a_refused_setting_does_not_show_its_value() -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(mailbox_redis=("redis://:pass-word@127.0.0.1:1/0",) * 3)
    assert "pass-word" not in str(refused.value)


@pytest.mark.contract("OBS-10")
def test_obs_10_every_secret_setting_is_known_to_the_scrubber() -> None:
    fields = [name for name, f in Settings.model_fields.items() if f.annotation is SecretStr]
    assert {"token_secret", "cursor_secret"} <= set(fields)
    values = {name: SecretStr(f"value of {name}") for name in fields}
    settings = Settings(**values, commit_redis=("redis://u:pass-word@h:1/0",))  # type: ignore[arg-type]
    assert sorted(settings.secrets()) == sorted(["pass-word", *(f"value of {n}" for n in fields)])
    assert Settings().secrets() == []
