"""Every directed schedule of the front ends ends well on the product as it is."""

from __future__ import annotations

import pytest
from front_end_schedules import SCHEDULES, play_schedule


@pytest.mark.fast
@pytest.mark.parametrize("name", SCHEDULES)
def test_front_end_schedule(name: str) -> None:
    play_schedule(name)
