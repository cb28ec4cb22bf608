"""How many examples Hypothesis tries: all in `make test-long`, a quarter of them elsewhere."""

from __future__ import annotations

import os

ALL = os.environ.get("PYOMID_TEST_EXAMPLES") == "all"


def examples(number: int) -> int:
    """`number`, where all examples are wanted; else a quarter of it, at least 25."""
    return number if ALL else min(number, max(25, number // 4))
