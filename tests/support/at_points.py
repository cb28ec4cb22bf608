"""What happens to a program at one of its crash points, once: another one's work, or its death."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pyomid import crashpoints


class Died(BaseException):
    """What the caller's process was doing ends here."""


def once(act: Callable[[], object]) -> Callable[[], None]:
    def acted() -> None:
        crashpoints.disarm()
        act()

    return acted


@contextmanager
def meanwhile(point: str, by: Callable[[], object]) -> Iterator[None]:
    """Once, `by` happens at that point, while whoever passes it sleeps."""
    crashpoints.arm_action(point, once(by))
    try:
        yield
    finally:
        crashpoints.disarm()


@contextmanager
def dying_at(point: str) -> Iterator[None]:
    """What is done inside ends at that point, without any clean-up of its own."""

    def die() -> None:
        raise Died

    with pytest.raises(Died), meanwhile(point, die):
        yield
