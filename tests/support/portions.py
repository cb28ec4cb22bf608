"""What `make test` takes of a test with many inputs; `make test-long` takes the rest."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

ALL_EXAMPLES = os.environ.get("PYOMID_TEST_EXAMPLES") == "all"


def examples(number: int) -> int:
    """How many examples Hypothesis tries: `number` in `make test-long`; else a quarter of it, at least 25."""
    return number if ALL_EXAMPLES else min(number, max(25, number // 4))


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters; those after the first `count` are marked `long`."""
    rest = iter(values)
    kept = list(islice(rest, count))
    return kept + [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long) for value in rest
    ]
