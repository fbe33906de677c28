"""Everything the parts of Q-IM agree on: identifiers, records, frames, topics, errors, settings.

Imports nothing of the project; every other package imports from here.
"""

__all__: list[str] = []
