"""Stored values: HBase's conventions, and nothing that is not empty looks empty."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_values import VALUES

from pyomid.errors import Corruption, MisuseType
from pyomid.rows.column_types import column_type
from pyomid.rows.schema import type_name
from pyomid.rows.values import decode_value, encode_value
from pyomid.spark.frame_schema import arrow_of, struct_of
from pyomid.types import ColumnSchema, TableSchema

pytestmark = pytest.mark.fast

ARRAY = json.dumps({"type": "array", "elementType": "decimal(5,1)", "containsNull": True})
MAP = json.dumps({"type": "map", "keyType": "date", "valueType": "binary", "valueContainsNull": True})
STRUCT = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
            {"name": "how_long", "type": "interval day to second", "nullable": True, "metadata": {}},
            {"name": "share", "type": "double", "nullable": True, "metadata": {}},
        ],
    }
)


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_a_value_comes_back_as_it_was_and_is_never_stored_empty(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name])
    stored = encode_value(value, name)
    assert stored != b""
    assert decode_value(stored, name) == value


@pytest.mark.parametrize(
    ("value", "name", "stored"),
    [
        (True, "boolean", "ff"),
        (False, "boolean", "00"),
        (-2, "short", "fffe"),
        (1, "integer", "00000001"),
        (491, "long", "00000000000001eb"),
        (1.5, "double", "3ff8000000000000"),
        (Decimal("12.50"), "decimal(10,2)", "0000000204e2"),
        (Decimal("-1.28"), "decimal(10,2)", "0000000280"),
        ("é", "string", "c3a9"),
        ("", "string", "00"),
        ("\x00", "string", "0000"),
        (b"\x00a", "binary", "0061"),
        (date(1970, 1, 2), "date", "00000001"),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "timestamp", "00000000000f4240"),
        (timedelta(microseconds=-1), "interval day to second", "ffffffffffffffff"),
    ],
)
def test_bytes_are_what_other_programs_expect(value: Any, name: str, stored: str) -> None:
    assert encode_value(value, name).hex() == stored
    assert decode_value(bytes.fromhex(stored), name) == value


@pytest.mark.parametrize(
    ("value", "name", "stored"),
    [
        ([Decimal("1.5"), None], ARRAY, b'["1.5",null]'),
        ([(date(2013, 1, 31), b"\x00\xff")], MAP, b'[["2013-01-31","AP8="]]'),
        (
            {"at": datetime(2013, 1, 1, 5, tzinfo=UTC), "how_long": timedelta(seconds=1), "share": math.inf},
            STRUCT,
            b'{"at":"2013-01-01T05:00:00.000000Z","how_long":1000000,"share":"Infinity"}',
        ),
    ],
)
def test_nested_values_are_plain_json(value: Any, name: str, stored: bytes) -> None:
    assert encode_value(value, name) == stored
    assert decode_value(stored, name) == value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "long"),
        (1, "boolean"),
        (2**63, "long"),
        ("1", "double"),
        (1, "string"),
        (Decimal("0.001"), "decimal(9,2)"),
        (Decimal("1E+999999"), "decimal(9,2)"),
        (Decimal("sNaN"), "decimal(9,2)"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "timestamp"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "timestamp"),
    ],
)
def test_a_value_of_another_type_is_refused(value: Any, name: str) -> None:
    with pytest.raises(MisuseType, match="does not fit"):
        encode_value(value, name)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (b"1", "long"),
        (b"\xff", "string"),
        (b"\0\0\0\2", "decimal(9,2)"),
        (b"\0\0\0\3\1", "decimal(9,2)"),
        (b"{", ARRAY),
    ],
)
def test_bytes_that_cannot_be_of_the_type_are_corruption(stored: bytes, name: str) -> None:
    with pytest.raises(Corruption):
        decode_value(stored, name)


@pytest.mark.parametrize("name", ["interval year to month", "void", "variant", "char(5)", "time(6)", "interval month"])
def test_other_types_are_refused_by_name(name: str) -> None:
    with pytest.raises(MisuseType, match=name.replace("(", r"\(").replace(")", r"\)")):
        column_type(name, "c")


def test_our_arrow_schema_of_a_frame_is_sparks_own() -> None:
    """Spark compares the two, down to what may be null, and refuses batches of another one."""
    from inspect import signature

    from pyspark.sql import types as spark
    from pyspark.sql.pandas.types import to_arrow_schema

    simple = [spark.BooleanType(), spark.ByteType(), spark.ShortType(), spark.IntegerType(), spark.LongType()]
    simple += [spark.FloatType(), spark.DoubleType(), spark.DecimalType(38, 10), spark.StringType(), spark.BinaryType()]
    simple += [spark.DateType(), spark.TimestampType(), spark.TimestampNTZType(), spark.DayTimeIntervalType()]
    nested = [spark.ArrayType(kind, can_be_null) for kind in simple for can_be_null in (True, False)]
    nested += [spark.MapType(spark.StringType(), kind, can_be_null) for kind in nested for can_be_null in (True, False)]
    inside = [spark.StructField(f"x{n}", kind, n % 2 == 0) for n, kind in enumerate([*simple, *nested])]
    kinds = [*simple, *nested, spark.StructType(inside)]
    struct = spark.StructType([spark.StructField(f"c{n}", kind, n % 3 > 0) for n, kind in enumerate(kinds)])
    how = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    assert arrow_of(struct).equals(to_arrow_schema(struct, **how))

    def stored(of: spark.StructType) -> list[str]:
        return [type_name(field.dataType.jsonValue()) for field in of.fields]

    columns = zip(struct.names, stored(struct), strict=True)
    again = struct_of(TableSchema(tuple(ColumnSchema(name, kind, None) for name, kind in columns), ()), struct.names)
    assert stored(again) == stored(struct)
    assert all(field.nullable for field in again.fields)
