"""ConnectionNode and the commit step: everything between a client socket and the outbox."""

__all__: list[str] = []
