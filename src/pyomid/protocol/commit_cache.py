"""The local cache start → commit. A hit is valid for ever, so all readers of a process may share it. A miss is never
kept (R6): a later snapshot that must see the commit would be told "not committed".
"""

from __future__ import annotations

from typing import Final

ENTRIES_MAX: Final = 100_000
"""About 10 MB of Python ints; more starts than one scan usually meets unresolved."""


class CommitCache:
    """Bounded: when it is full the oldest half is dropped. Threads of CPython may share it: it uses single dict
    operations only, and a lost entry costs one lookup."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = max(2, entries_max)
        self._commits: dict[int, int] = {}

    def get(self, start: int) -> int:
        """The commit timestamp, 0 if it is not known here."""
        return self._commits.get(start, 0)

    def put(self, start: int, commit_ts: int) -> None:
        if len(self._commits) >= self._entries_max:
            kept = list(self._commits.items())[len(self._commits) // 2 :]
            self._commits = dict(kept)
        self._commits[start] = commit_ts

    def __len__(self) -> int:
        return len(self._commits)
