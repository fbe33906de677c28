"""`qim demo`: start a stack of its own, play the scripted conversation on it, stop it, tell the result.

The data folder belongs to the demo: an old one is removed before the start, a successful one after it; after a failure it
stays, with every log in it.
"""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.tokens import AccessTokens, Identity
from ops.conversation import Mismatch, Row, TokenOf, play
from ops.servers.process import ProcessFailedError
from ops.servers.provision import ProvisionError
from ops.stack import Stack, lock_folder
from schemas.errors import QimError

__all__ = ["main", "render", "tokens_of"]

_TOKEN_TTL_S = 3600


def _say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def render(row: Row) -> str:
    """Return one line of the timeline."""
    latency = "" if row.latency_ms is None else f"{row.latency_ms:8.1f} ms"
    conversation = (
        "" if row.conversation_seq is None else f"conversation_seq {row.conversation_seq}"
    )
    mailbox = "" if row.mailbox_seq is None else f"mailbox_seq {row.mailbox_seq:#x}"
    message = "" if row.message_id is None else f"message {row.message_id.hex()}"
    line = f"  {row.who:<13}{latency:>12}  {row.what:<52}{message}  {conversation}  {mailbox}"
    return line.rstrip()


def tokens_of(secret: str) -> TokenOf:
    """Return who signs access tokens for a stack with this secret."""
    tokens = AccessTokens(secret.encode())

    def token_of(user: int, device_id: bytes) -> str:
        identity = Identity(tenant=0, user=user, device_id=device_id, session_epoch=1)
        return tokens.mint(identity, int(time.time()) + _TOKEN_TTL_S)

    return token_of


def _fresh(folder: Path) -> None:
    """Make room for a new demo; raises StartRefused while another one runs there."""
    if folder.exists():
        lock = lock_folder(folder)
        shutil.rmtree(folder)
        lock.close()


async def _run(folder: Path) -> None:
    stack = Stack(folder, say=_say)
    async with stack:
        host, _, port = stack.addresses["gateway-0"].rpartition(":")
        secret = stack.settings.token_secret.get_secret_value()
        _say("everything serves; the conversation begins")
        await play((host, int(port)), tokens_of(secret), lambda row: print(render(row), flush=True))
        _say("the conversation came out as written; stopping")


def main(argv: Sequence[str]) -> int:
    """Run `qim demo`; returns 0 only if every step came out as the script says and everything stopped."""
    parser = argparse.ArgumentParser(prog="qim demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(".qim/demo"), help="folder of the demo")
    folder: Path = parser.parse_args(argv).data
    begun_s = time.monotonic()
    try:
        _fresh(folder)
        asyncio.run(_run(folder))
    except (Mismatch, QimError, ProcessFailedError, ProvisionError, OSError) as problem:
        print(f"demo: FAILED: {problem} (logs are in {folder})", file=sys.stderr, flush=True)
        return 1
    shutil.rmtree(folder)
    _say(f"done in {time.monotonic() - begun_s:.1f} s")
    return 0
