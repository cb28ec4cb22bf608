"""Counts how often a decoder refuses malformed bytes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from pyomid.errors import OmidError

INPUTS = 2_000


def outcomes_of(read: Callable[[random.Random], object], refusal: type[OmidError]) -> Counter[str]:
    """Count how many broken inputs `read` survived and how many it refused with `refusal`; raise any other error."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance, outcomes = random.Random(seed), Counter[str]()
    for _ in range(INPUTS):
        try:
            read(chance)
            outcomes["survived"] += 1
        except refusal:
            outcomes["refused"] += 1
    return outcomes
