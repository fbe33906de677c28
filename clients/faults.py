"""Planned damage between socket and session, for tests and the demo: frames that really arrived are really lost.

A link sits in the client's shell. It works on whole frames, so what passes is what the gateway sent; TCP itself loses
nothing inside a connection, so a dropped ACK stands for a gateway that died after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from schemas.frames import FrameDecoder, Message, Opcode, encode_slices

__all__ = ["Link", "LossyLink"]


class Link(Protocol):
    """What the shell puts every received byte through."""

    def connection_made(self) -> None:
        """A new connection begins; nothing of the former one may leak into it."""

    def receive(self, data: bytes) -> bytes:
        """Return the bytes the session shall see for `data`."""


class LossyLink:
    """Loses frames of one opcode while told to, and tells `on_loss` of each; otherwise passes everything."""

    __slots__ = ("_decoder", "_losing", "_on_loss")

    def __init__(self, on_loss: Callable[[Message], None] | None = None) -> None:
        self._decoder = FrameDecoder()
        self._losing: Opcode | None = None
        self._on_loss = on_loss

    def connection_made(self) -> None:
        """Begin with the first frame of a new connection."""
        self._decoder = FrameDecoder()

    def receive(self, data: bytes) -> bytes:
        """Pass whole messages on, except those to be lost; raises ProtocolError where the gateway sent damage."""
        kept: list[bytes] = []
        for message in self._decoder.feed(data):
            if message.opcode == self._losing:
                if self._on_loss is not None:
                    self._on_loss(message)
            else:
                kept += encode_slices(*message)
        return b"".join(kept)

    @contextmanager
    def losing(self, opcode: Opcode) -> Iterator[None]:
        """Lose every frame of `opcode` inside the block."""
        self._losing = opcode
        try:
            yield
        finally:
            self._losing = None
