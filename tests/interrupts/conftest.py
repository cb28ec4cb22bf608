"""What may come into a thread by itself, and a thread that looks on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(params=[KeyboardInterrupt, MemoryError])
def error(request: pytest.FixtureRequest) -> Callable[[], BaseException]:
    made: Callable[[], BaseException] = request.param
    return made


@pytest.fixture(scope="module")
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool
