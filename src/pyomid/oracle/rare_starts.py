"""Starts whose commits a compiled kernel must not decide, sorted for its search.

Every seal, retry or large commit adds a few, so adding one must not cost as much as sorting all of them. They are
removed seldom, and many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_NEWS_MAX: Final = 4096
"""Starts added since `as_array` was called last. Beyond this all are read anew, so that nothing grows if it is not."""


class RareStarts:
    """`read_all` gives all starts, in any order. A start may be there twice, or longer than it is needed."""

    def __init__(self, read_all: Callable[[], Iterable[int]]) -> None:
        self._read_all = read_all
        self._sorted: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._news: list[int] = []
        self._is_stale = True

    def add(self, starts: Collection[int]) -> None:
        """Adds starts that `read_all` gives too, from now on."""
        if self._is_stale:
            return
        self._news += starts
        if len(self._news) > _NEWS_MAX:
            self.forget_some()

    def forget_some(self) -> None:
        """`read_all` no longer gives some of them."""
        self._news.clear()
        self._is_stale = True

    def as_array(self) -> NDArray[np.int64]:
        """All starts, ascending. The same array as before if nothing changed."""
        if self._is_stale:
            self._sorted = np.fromiter(self._read_all(), dtype=np.int64)
            self._sorted.sort()
            self._is_stale = False
        elif self._news:
            news = np.array(sorted(self._news), dtype=np.int64)
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, news), news)
            self._news.clear()
        return self._sorted
