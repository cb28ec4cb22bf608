"""The interleavings of hazards.md, step by step, on the core as it is: each one ends well."""

from __future__ import annotations

import pytest

from pyomid.errors import Misuse
from pyomid.testing.simulation.directed import SCHEDULES, run_directed

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    failure = run_directed(name)
    assert failure is None, f"{name} ({SCHEDULES[name].__doc__}): {failure}"


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(Misuse, match="no schedule"):
        run_directed("nothing of the kind")
