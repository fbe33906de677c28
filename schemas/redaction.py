"""What may be said about a secret or a body without saying it (OBS-10).

Three words for log calls, and the net below them: `scrub` runs over every line that leaves a process, whoever wrote it, and
takes out what has the form of a secret or of a bytes literal. The net cannot recognise a body that somebody formatted as
plain text; that is what the helpers, and the test over all logging calls, are for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["Scrubber", "body_shape", "secret_digest", "text_shape"]

_DIGEST_HEX: Final = 8
_SHORT_LITERAL: Final = 4  # b'PONG' and error prefixes stay readable; nothing secret is this short


def secret_digest(secret: str | bytes) -> str:
    """A token, key or signature as a digest: two lines can be seen to mean the same one, neither tells it."""
    raw = secret.encode(errors="surrogatepass") if isinstance(secret, str) else bytes(secret)
    return f"<secret {hashlib.sha256(raw).hexdigest()[:_DIGEST_HEX]}>"


def body_shape(body: bytes | bytearray | memoryview | None) -> str:
    """Bytes of a user or of the wire: only how many."""
    return "<no bytes>" if body is None else f"<{len(body)} bytes>"


def text_shape(text: str | None) -> str:
    """Text of a user: only how long."""
    return "<no text>" if text is None else f"<text of {len(text)}>"


_JWT: Final = re.compile(r"eyJ[\w-]{4,}\.[\w-]{2,}\.[\w-]*")
_URL_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s/@'\"]+(?=@)")
_BYTES_LITERAL: Final = re.compile(
    r"""\bb(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")|\bb['"].*""",  # the last: cut off before its end
)
# Long unbroken runs of hex or of base64 in either alphabet: signatures, keys, tokens. Identifiers have 32 hex digits; names of
# topics and paths lack the mixture of cases.
_OPAQUE: Final = re.compile(
    r"\b[0-9a-fA-F]{40,}\b"
    r"|(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[A-Za-z0-9_-]{40,}(?![\w-])={0,2}"
    r"|[A-Za-z0-9+/]{40,}={1,2}"
)


class Scrubber:
    """Takes secrets out of finished lines; `secrets` are taken out wherever they occur, whatever their form."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(sorted({s for s in secrets if s}, key=len, reverse=True))

    def scrub(self, line: str) -> str:
        """The line without secrets."""
        for secret in self._secrets:
            if secret in line:
                line = line.replace(secret, secret_digest(secret))
        line = _BYTES_LITERAL.sub(_literal_shape, line)
        line = _JWT.sub(_digested, line)
        line = _URL_CREDENTIALS.sub("***", line)
        return _OPAQUE.sub(_digested, line)


def _digested(found: re.Match[str]) -> str:
    return secret_digest(found[0])


def _literal_shape(found: re.Match[str]) -> str:
    inside = len(found[0]) - 3
    return found[0] if inside <= _SHORT_LITERAL else f"<bytes literal of {inside}>"
