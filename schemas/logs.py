"""The one way that processes of ours log: an event a line, with its context, and nothing secret in it (OBS-10).

    _log = logging.getLogger(__name__)
    _log.warning("shard %d is leased to another worker", shard, extra={"owner": owner, "ttl_ms": ttl_ms})

`QIM_LOG_FORMAT=text` gives `time level logger: message key=value`, `json` one object a line. Lines go to standard error.
Every line of every library passes the same formatter, which scrubs it (schemas/redaction.py). Rules for calls, held by a test:
the message is a constant, values are arguments or `extra`, and what may hold a secret or a body goes through a helper.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final

from schemas.config import Settings
from schemas.redaction import Scrubber

__all__ = ["LogFormatter", "configure_logging"]

# Libraries that tell at INFO what only their authors need.
_QUIET: Final = ("aiokafka", "aiohttp.access", "kafka")
# Attributes of a record that nobody passed as `extra`; the last two come from mode, which Faust logs through.
_NO_CONTEXT: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "data",
    "no_alert",
}


class LogFormatter(logging.Formatter):
    """One record as one line; line breaks, of tracebacks too, are escaped, so that a value cannot forge a line."""

    def __init__(self, scrubber: Scrubber, *, as_json: bool, process: str) -> None:
        super().__init__()
        self._scrub = scrubber.scrub
        self._as_json = as_json
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, scrubbed."""
        fields = self._fields(record)
        if self._as_json:
            safe = {name: self._safe(value) for name, value in fields.items()}
            return json.dumps(safe, ensure_ascii=False)
        head = "{time} {level:<8} {logger}: {message}".format_map(fields)
        known = ("time", "level", "process", "logger", "event", "message")
        rest = "".join(f" {k}={_quoted(v)}" for k, v in fields.items() if k not in known)
        return self._scrub((head + rest).replace("\r", "\\r").replace("\n", "\\n"))

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        fields = {
            "time": _utc(record.created),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "event": str(record.msg),  # constant in calls of ours: what equal events are found by
            "message": record.getMessage(),
        }
        fields |= {
            name: value for name, value in record.__dict__.items() if name not in _NO_CONTEXT
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return fields

    def _safe(self, value: object) -> object:
        return value if isinstance(value, int | float) else self._scrub(str(value))


def _utc(created_s: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created_s))
    return f"{whole}.{int(created_s * 1000) % 1000:03d}Z"


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if {" ", "=", '"', "\n"} & set(text) else text


def configure_logging(settings: Settings, process: str) -> logging.Handler:
    """Make the root logger write our lines only; returns its handler. `process` names the process in JSON lines.

    The secrets of `settings` never appear, whatever their form.
    """
    scrubber = Scrubber(settings.secrets())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        LogFormatter(scrubber, as_json=settings.log_format == "json", process=process)
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    logging.captureWarnings(capture=True)
    return handler
