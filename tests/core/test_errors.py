"""Errors on their way to another process: nothing that a program put into one is lost."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pyomid import errors
from pyomid.errors import ConflictError, Misuse, MisuseType, OmidError, Unavailable

pytestmark = pytest.mark.fast


class Full(ConflictError):
    """Its parameters are none of `OmidError`'s."""

    def __init__(self, seats: int, *, row: str) -> None:
        super().__init__(f"only {seats} seats", seats=seats)
        self.seats, self.row = seats, row


class OfTwo(ConflictError):
    """It does not call the `__init__` of its base class."""

    def __init__(self, left: int, right: int) -> None:
        self.left, self.right = left, right


class Slotted(Misuse):
    __slots__ = ("place",)

    def __init__(self, place: int, text: str) -> None:
        super().__init__(text)
        self.place = place


class OfTheSystem(Unavailable, OSError):
    """Its second base class keeps its attributes in C."""

    def __init__(self, code: int, text: str, file: str) -> None:
        OSError.__init__(self, code, text, file)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
MADE = [
    *(
        kind("text", start_ts=7)
        for kind in vars(errors).values()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    ),
    Full(3, row="7"),
    OfTwo(1, 2),
    Slotted(4, "text"),
    OfTheSystem(2, "gone", "/file"),
]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_text_values_attributes_and_notes(error: OmidError, way: Callable[[Any], Any]) -> None:
    error.extra = [1, 2]  # type: ignore[attr-defined]
    if not hasattr(error, "__notes__"):
        error.add_note("while row 7 was loaded")
    other = way(error)
    assert type(other) is type(error)
    assert other is not error
    assert (str(other), repr(other), other.args) == (str(error), repr(error), error.args)
    assert vars(other) == vars(error)
    for name in ("place", "errno", "filename"):
        assert getattr(other, name, None) == getattr(error, name, None)


def test_a_value_that_cannot_be_pickled_goes_as_its_text() -> None:
    function = lambda: None  # noqa: E731
    error = MisuseType("not that function", value=function, row=b"k")
    assert pickle.loads(pickle.dumps(error)).values == {"value": repr(function), "row": b"k"}
    assert copy.copy(error).values == {"value": function, "row": b"k"}


def test_an_error_without_a_base_class_s_init_has_a_message_and_values() -> None:
    assert (str(OfTwo(1, 2)), OfTwo(1, 2).values) == ("1", {})


def fail() -> None:
    raise Full(3, row="7")


def test_a_pool_raises_a_subclass_s_error() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(Full, match="only 3 seats") as caught:
        pool.apply_async(fail).get(timeout=60)
    assert (caught.value.seats, caught.value.row) == (3, "7")
