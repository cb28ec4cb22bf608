"""How many steps of pyomid a piece of work takes: a measure of its cost that no clock and no load of the machine
change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pyomid

_FOLDER = str(Path(pyomid.__file__).parent)


def steps_of(work: Callable[[], object]) -> int:
    """How many lines of pyomid `work` ran in this thread; each turn of a comprehension counts as one."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_FOLDER):
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count
