"""The range of row keys that a condition leaves: never narrower than the condition."""

from __future__ import annotations

import operator
import random
from itertools import product
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyomid.errors import Misuse
from pyomid.rows.row_key import KeyLayout, key_layout
from pyomid.spark.expressions import moment_of
from pyomid.spark.source.key_ranges import Where, key_range_of
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
        found, _ = key_range_of(layout, compared)
        for row, key in keys.items():
            values = dict(zip(VALUES, row, strict=True))
            meets = all(OPERATORS[how](values[part.name], value) for part, how, value in compared)
            assert key in found or not meets, (compared, row, found)
    for row, key in keys.items():
        equal = [(part, "=", value) for part, value in zip(layout.parts, row, strict=True)]
        assert [other for other in keys.values() if other in key_range_of(layout, equal)[0]] == [key]


@pytest.mark.parametrize("micros", [None, 253_402_318_799_000_000, -62_135_629_200_000_000])
def test_a_moment_outside_of_pythons_calendar_is_no_bound(micros: int | None) -> None:
    """The last second of 9999 in New York is in 10000 by UTC; a text that is no timestamp is null to Spark."""
    assert moment_of(micros) is None


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("origin = 'a' or number = 1", "not of the form column = literal"),
        ("number = 1 and", "not of the form"),
        ("number = '1'", "not of the form"),
        ("number = 9999999999999999999", "not of the form"),
        ("origin = 'it''s'", "not of the form"),
        ("origin = 'a' -- or true", "not of the form"),
        ("(origin = 'a' and number = 1)", "not of the form"),
        ("ratio > 1", "not of the form"),
        ("orign = 'a'", "no column 'orign'; did you mean 'origin'"),
        ("TEXT = 'a'", "several names that differ from 'TEXT' only by case"),
        ("at = '2024-01-01 10:00:00'", "has no time zone"),
        ("at = '0001-01-01 00:00:00+02:00'", "not of the form"),
        ("", "not of the form"),
    ],
)
def test_the_option_where_refuses_what_it_cannot_apply(where: str, words: str) -> None:
    """Nothing of a text is left out: what is given are the rows that it is about, or an error."""
    types = {"origin": "string", "number": "integer", "text": "string", "Text": "string", "ratio": "double"}
    columns = (ColumnSchema(name, kind, None) for name, kind in {**types, "at": "timestamp"}.items())
    with pytest.raises(Misuse, match=words):
        Where.of(where, "t", TableSchema(tuple(columns), (RowKeyPart("origin"),)))
