"""Running Q-IM: servers, topics, the local stack and the `qim` command.

This package imports every other one and is imported by none but `bench` and the tests. Nothing is
imported here, because `ops.bootstrap` runs before the environment exists.
"""

__all__: list[str] = []
