"""Row keys keep the order of their values, and give them back."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_values import VALUES

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.rows.row_key import KeyLayout, key_layout
from pyomid.types import ColumnSchema, RowKeyPart, TableSchema

FIRST_EAST_OF_GREENWICH = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))

pytestmark = pytest.mark.fast


def layout_of(*parts: tuple[str, bool]) -> KeyLayout:
    columns = tuple(ColumnSchema(f"k{index}", name, None) for index, (name, _) in enumerate(parts))
    keys = tuple(RowKeyPart(f"k{index}", descending) for index, (_, descending) in enumerate(parts))
    return key_layout(TableSchema(columns, keys))


def in_order(left: Any, right: Any) -> bool:
    as_text = isinstance(left, str)
    return bool(left.encode() < right.encode() if as_text else left < right)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("descending", [False, True])
@given(data=st.data())
def test_keys_are_ordered_as_their_values_and_give_them_back(name: str, descending: bool, data: st.DataObject) -> None:
    layout = layout_of((name, descending), ("integer", False))
    left, right = data.draw(VALUES[name]), data.draw(VALUES[name])
    left_key, right_key = layout.encode([left, 7]), layout.encode([right, -7])
    assert layout.decode(left_key) == (left, 7)
    if left == right:
        assert left_key > right_key
    else:
        assert (left_key < right_key) == (in_order(left, right) != descending)


@given(left=VALUES["string"], right=VALUES["string"])
def test_a_last_text_is_stored_as_it_is(left: str, right: str) -> None:
    layout = layout_of(("long", False), ("string", False))
    left_key, right_key = layout.encode([1, left]), layout.encode([1, right])
    assert left_key[8:] == left.encode()
    assert (left_key < right_key) == (left.encode() < right.encode())
    assert layout.decode(left_key) == (1, left)


@given(prefix=VALUES["string"], other=VALUES["string"], number=VALUES["long"])
def test_a_prefix_finds_exactly_the_keys_with_these_values(prefix: str, other: str, number: int) -> None:
    layout = layout_of(("string", False), ("long", True))
    assert layout.encode([other, number]).startswith(layout.encode_prefix([prefix])) == (other == prefix)


def test_zero_and_nan_have_one_key_each() -> None:
    layout = layout_of(("double", False))
    assert layout.encode([-0.0]) == layout.encode([0.0])
    assert layout.encode([math.nan]) == layout.encode([-math.nan]) > layout.encode([math.inf])
    assert math.isnan(layout.decode(layout.encode([math.nan]))[0])


@pytest.mark.parametrize(
    ("parts", "values", "error", "words"),
    [
        ([("long", False)], [None], Misuse, "null"),
        ([("string", False)], [""], Misuse, "empty"),
        ([("byte", False)], [300], MisuseType, "k0"),
        ([("date", False)], ["2013"], MisuseType, "date is needed"),
        ([("long", False), ("long", False)], [1], Misuse, "needs 2 values"),
        ([("decimal(4,2)", False)], [Decimal("1.234")], MisuseType, "digits"),
        ([("decimal(4,2)", False)], [Decimal("-1E+999999")], MisuseType, "digits"),
        ([("decimal(4,2)", False)], [Decimal("sNaN")], MisuseType, "a decimal cannot be sNaN"),
        ([("timestamp", True)], [FIRST_EAST_OF_GREENWICH], MisuseType, "outside the years 1 to 9999"),
    ],
)
def test_what_has_no_key_is_refused_by_name(
    parts: list[tuple[str, bool]], values: list[Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        layout_of(*parts).encode(values)


@pytest.mark.parametrize("key", [b"", b"\x00" * 7, b"\x00" * 9])
def test_a_key_that_cannot_have_been_made_so_is_corruption(key: bytes) -> None:
    with pytest.raises(Corruption):
        layout_of(("long", False)).decode(key)


@pytest.mark.parametrize("key", [b"abc", b"abc\x00", b"abc\x00\x02", b"ab\xff\x00\x01"])
def test_a_text_without_ending_is_corruption(key: bytes) -> None:
    with pytest.raises(Corruption):
        layout_of(("string", False), ("boolean", False)).decode(key)


def test_nested_types_have_no_place_in_a_key() -> None:
    with pytest.raises(MisuseType, match="cannot be part of a row key"):
        layout_of(('{"type":"array","elementType":"long","containsNull":true}', False))
