"""The asyncio client core that demo, tests and load generator share; everything it knows it keeps in memory.

`protocol.py` speaks one connection, `session.py` speaks for one device across connections; both are sans-I/O (bytes in,
events out; calls in, bytes out; time as a value). `client.py` is the asyncio shell around them.
"""
