"""The cache of known commits: bounded, whoever fills it, and no commit pays for what others put there."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from pyomid.protocol.reading import CommitCache

pytestmark = pytest.mark.fast


def test_it_holds_the_newest_half_at_least_and_no_more_than_it_may() -> None:
    cache = CommitCache(1_000)
    for start in range(1, 10_000):
        cache.put(start, start + 1)
        assert len(cache) <= 1_000
        assert cache.get(start) == start + 1
    assert all(cache.get(start) == start + 1 for start in range(9_500, 10_000))
    assert cache.get(1) == 0


def test_forgetting_copies_nothing() -> None:
    cache = CommitCache(20_000)
    for start in range(1, 40_000):
        cache.put(start, start + 1)
    peaks = []
    for start in range(40_000, 60_001):
        if start % 1_000 < 2:
            tracemalloc.start()
            cache.put(start, start + 1)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        else:
            cache.put(start, start + 1)
    assert max(peaks) < 10_000


def test_threads_that_fill_it_together_keep_its_bound() -> None:
    cache = CommitCache(500)

    def fill(first: int) -> None:
        for start in range(first, first + 20_000):
            cache.put(start, start + 1)

    threads = [threading.Thread(target=fill, args=(20_000 * number + 1,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) <= 500 + len(threads)
    for start in range(1, 251):
        cache.put(start, start + 1)
    assert all(cache.get(start) == start + 1 for start in range(1, 251))
