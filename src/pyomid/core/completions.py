"""Entries of the commit table that nobody needs any more: they go in one delete at a time, and nobody waits for it.

What is lost here, or found no room, is left to the sanitiser.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class Completions:
    """Starts whose entries may go, at most `starts_max` of them."""

    __slots__ = ("_starts_max", "is_deleting", "starts")

    def __init__(self, starts_max: int) -> None:
        self._starts_max = starts_max
        self.starts: list[int] = []
        self.is_deleting = False
        """A delete is under way."""

    def remember(self, starts: Sequence[int]) -> int:
        """How many of them found no room."""
        room = max(0, self._starts_max - len(self.starts))
        self.starts.extend(starts[:room])
        return len(starts[room:])

    def take(self, kept: Collection[int] = ()) -> tuple[int, ...]:
        """Those to delete now; who is `kept` stays for later."""
        taken = tuple(start for start in self.starts if start not in kept) if kept else tuple(self.starts)
        self.starts = [start for start in self.starts if start in kept] if kept else []
        return taken
