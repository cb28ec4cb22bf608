"""Starts whose commits a compiled kernel must not decide, sorted as it looks for them.

A few are added with every seal, retry or large commit, so one more must not cost what all of them do; they go seldom,
many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_NEWS_MAX: Final = 4096
"""Added since the array was asked for last; beyond it all are read anew, and nothing is kept where nobody asks."""


class RareStarts:
    """`read_all` gives every one of them, in any order; a start may be there twice, or a while longer than it need."""

    def __init__(self, read_all: Callable[[], Iterable[int]]) -> None:
        self._read_all = read_all
        self._sorted: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._news: list[int] = []
        self._is_stale = True

    def add(self, starts: Collection[int]) -> None:
        """`read_all` gives them too, from now on."""
        if self._is_stale:
            return
        self._news += starts
        if len(self._news) > _NEWS_MAX:
            self.forget_some()

    def forget_some(self) -> None:
        """Some of them are none any more."""
        self._news.clear()
        self._is_stale = True

    def as_array(self) -> NDArray[np.int64]:
        """Ascending. The same array as before where nothing changed."""
        if self._is_stale:
            self._sorted = np.fromiter(self._read_all(), dtype=np.int64)
            self._sorted.sort()
            self._is_stale = False
        elif self._news:
            news = np.array(sorted(self._news), dtype=np.int64)
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, news), news)
            self._news.clear()
        return self._sorted
