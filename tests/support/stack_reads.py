"""What the stores of a running stack hold."""

from __future__ import annotations

from ops.stack import Stack
from stores.redis_link import RedisLink

__all__ = ["entries"]


async def entries(stack: Stack) -> dict[tuple[bytes, bytes], bytes]:
    """(mailbox key, entry) -> score of everything in all mailboxes."""
    found: dict[tuple[bytes, bytes], bytes] = {}
    for url in stack.settings.mailbox_redis:
        link = RedisLink(url)
        try:
            for name in await link.command("KEYS", f"{stack.settings.app_id}:mailbox:*"):
                flat = await link.command("ZRANGE", name.decode(), 0, -1, "WITHSCORES")
                found |= {
                    (name, member): score
                    for member, score in zip(flat[::2], flat[1::2], strict=True)
                }
        finally:
            await link.close()
    return found
