"""The range of row keys that a condition leaves: never narrower than the condition."""

from __future__ import annotations

import operator
import random
from itertools import product
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyomid.row_codec.row_key import KeyLayout, key_layout
from pyomid.spark.frames.conditions import key_range_of, moment_of
from pyomid.types import ColumnSchema, RowKeyPart, TableSchema

pytestmark = pytest.mark.fast

OPERATORS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
VALUES: dict[str, list[Any]] = {
    "origin": ["", "a", "a\0", "aa", "\uffff"],
    "number": [-(2**31), -1, 0, 3, 2**31 - 1],
    "text": ["", "x", "x\0", "xy", "\uffff"],
}


def layout_of(*, descending: bool) -> KeyLayout:
    types = {"origin": "string", "number": "integer", "text": "string"}
    columns = tuple(ColumnSchema(name, kind, None) for name, kind in types.items())
    return key_layout(TableSchema(columns, tuple(RowKeyPart(name, descending) for name in types)))


@pytest.mark.parametrize("descending", [False, True])
def test_every_row_that_meets_the_condition_is_in_range(descending: bool) -> None:
    """And of a key that is given whole nothing but its row is."""
    layout, chosen = layout_of(descending=descending), random.Random(7)
    keys = {row: layout.encode(row) for row in product(*VALUES.values())}
    for _ in range(500):
        parts = chosen.choices(layout.parts, k=chosen.randrange(5))
        compared = [(part, chosen.choice([*OPERATORS]), chosen.choice(VALUES[part.name])) for part in parts]
        found = key_range_of(layout, compared)
        for row, key in keys.items():
            values = dict(zip(VALUES, row, strict=True))
            meets = all(OPERATORS[how](values[part.name], value) for part, how, value in compared)
            assert key in found or not meets, (compared, row, found)
    for row, key in keys.items():
        equal = [(part, "=", value) for part, value in zip(layout.parts, row, strict=True)]
        assert [other for other in keys.values() if other in key_range_of(layout, equal)] == [key]


@pytest.mark.parametrize("micros", [None, 253_402_318_799_000_000, -62_135_629_200_000_000])
def test_a_moment_outside_of_pythons_calendar_is_no_bound(micros: int | None) -> None:
    """The last second of 9999 in New York is in 10000 by UTC; a text that is no timestamp is null to Spark."""
    assert moment_of(micros) is None
