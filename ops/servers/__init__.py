"""The servers that Q-IM stands on, started and stopped as child processes.

`provision` finds or installs them, `redis` and `kafka` run them, `docker` runs them as containers
where a Docker engine answers. Nothing is imported here, because `provision` uses the standard
library alone and runs before the environment exists.
"""

__all__: list[str] = []
