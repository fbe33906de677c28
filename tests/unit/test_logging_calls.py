"""OBS-10 over the source: no logging call, and no message of an error of ours, is given something secret.

A call's message is a constant; its values are named, and a name that may hold a secret or a user's words goes through one of the
helpers of schemas/redaction.py. Errors count as well, because causes are logged where they are caught (REG-48).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_architecture import modules, name_of

LOGGERS = {"_log", "_LOG", "log", "logger"}
LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}

# The last part of a name that may hold a secret, a body, or bytes of either.
SECRET = {
    *("access_token", "auth", "body", "common", "cursor", "cursor_token", "custom_type", "data"),
    *("entries", "entry", "event_bytes", "frame", "frames", "key", "key_bytes", "keys", "mac"),
    *("member", "members", "outbox_head", "outbox_meta", "password", "payload", "preview"),
    *("record", "records", "request", "secret", "secrets", "sign", "signature", "signed"),
    *("token", "tokens"),
}
# In errors these names are numbers out of range; in log calls nobody can know.
SECRET_IN_LOGS = SECRET | {"raw", "value", "values"}
# Calls whose result says nothing of what they were given.
SAFE_CALLS = {
    *("secret_digest", "body_shape", "text_shape", "redacted", "redacted_url"),
    *("len", "type", "sorted_names"),
}


def parts(node: ast.AST) -> Iterator[str]:
    """The last parts of all names in an expression, without what a safe call swallows."""
    if isinstance(node, ast.Call):
        called = node.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if name in SAFE_CALLS:
            return
    if isinstance(node, ast.Attribute):
        if node.attr == "__name__":  # type(x).__name__
            return
        yield node.attr
        # `record.offset` names an offset, `message.body.hex()` a body.
        if isinstance(node.value, ast.Call | ast.Subscript):
            yield from parts(node.value)
        return
    if isinstance(node, ast.Name):
        yield node.id
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from parts(node.func.value)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from parts(argument)
        return
    for child in ast.iter_child_nodes(node):
        yield from parts(child)


def is_logging(node: ast.Call) -> bool:
    called = node.func
    return (
        isinstance(called, ast.Attribute)
        and called.attr in LEVELS
        and (
            (isinstance(called.value, ast.Name) and called.value.id in LOGGERS)
            or (isinstance(called.value, ast.Attribute) and called.value.attr in LOGGERS)
        )
    )


def is_error(node: ast.Call) -> bool:
    called = node.func
    return isinstance(called, ast.Name) and called.id.endswith(
        ("Error", "Fault", "Refused", "UnknownOutcome", "Bug")
    )


def faults_of(tree: ast.AST) -> Iterator[str]:
    """What is wrong with the logging calls and error messages of a module."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not (is_logging(node) or is_error(node)):
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if is_logging(node) and not (
            isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
        ):
            yield f"line {node.lineno}: the message is not a constant"
        for argument in arguments:
            names = SECRET_IN_LOGS if is_logging(node) else SECRET
            named = names.intersection(parts(argument))
            if named:
                yield f"line {node.lineno}: {', '.join(sorted(named))} without a helper"


@pytest.mark.contract("OBS-10")
@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_obs_10_no_call_logs_a_secret_or_a_body(path: Path) -> None:
    assert list(faults_of(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("_log.error(f'token {token}')", "constant"),
        ("_log.error('body %r', message.body)", "body"),
        ("_log.warning('refused', extra={'cursor': request.cursor})", "cursor"),
        ("self.log.info('%s', access_token[:5])", "access_token"),
        ("_log.error('%s', body.hex())", "body"),
        ("_log.error('%s', repr(payload))", "payload"),
        ("raise RecordError(f'bad record {record!r}')", "record"),
        ("raise StartRefused('key ' + settings.secret)", "secret"),
        ("_log.error('%s', secret_digest(token))", ""),
        ("_log.error('%s %d', type(record).__name__, record.offset)", ""),
        ("raise RecordError(f'{len(body)} bytes')", ""),
        ("_log.error('shard %d', shard, extra={'owner': owner})", ""),
    ],
)
def test_the_check_itself_tells_good_calls_from_bad(source: str, fault: str) -> None:
    found = list(faults_of(ast.parse(source)))
    assert (fault in found[0]) if fault else not found


@pytest.mark.contract("OBS-10")
def test_obs_10_nothing_prints_or_logs_around_the_loggers() -> None:
    """Long-lived processes say nothing but by logging; commands print their result, a gateway its ready line."""
    printing = {
        name_of(path)
        for path in modules()
        if name_of(path).split("/")[0] in {"gateway", "streams", "stores", "tables", "schemas"}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
    commands = {"gateway/tokens.py", "gateway/diagram.py", "streams/topology.py"}
    assert printing <= {"gateway/main.py", *commands}
