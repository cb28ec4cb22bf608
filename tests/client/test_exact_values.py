"""What Python values a typed column takes: the same value, or none and words that say why."""

from __future__ import annotations

import enum
import json
import math
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.database.tables.arrow import record_batches
from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.rows.column_types import Layout, column_type
from pyomid.rows.nested import OF_PROGRAMS, value_of_json
from pyomid.rows.row_key import KeyLayout, KeyPart
from pyomid.rows.values import decode_value, encode_value, exact_nested

pytestmark = pytest.mark.fast

NOON = datetime(2026, 2, 28, 12, 0, 0, 123456, UTC)
LOCAL = NOON.replace(tzinfo=None)


class Number(enum.IntEnum):
    SEVEN = 7


class Word(enum.StrEnum):
    SEVEN = "seven"


class Day(date):
    pass


class NoOffset(tzinfo):
    """A time zone that tells no offset: a datetime with it is as naive as one without."""

    def utcoffset(self, _: object) -> None:
        return None


TAKEN: list[tuple[str, Any, Any]] = [
    ("boolean", np.True_, True),
    ("byte", np.int8(-128), -128),
    ("short", np.uint8(255), 255),
    ("integer", Number.SEVEN, 7),
    ("long", np.uint64(2**63 - 1), 2**63 - 1),
    ("double", 2**53, 2.0**53),
    ("double", np.float32(0.1), float(np.float32(0.1))),
    ("double", np.int64(3), 3.0),
    ("double", -(2**1023), -(2.0**1023)),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", 1 << 24, float(1 << 24)),
    ("float", -math.inf, -math.inf),
    ("decimal(10,2)", Decimal("1.500"), Decimal("1.50")),
    ("decimal(10,2)", Decimal("-99999999.99"), Decimal("-99999999.99")),
    ("decimal(10,2)", Decimal("1E+7"), Decimal("10000000.00")),
    ("decimal(38,38)", Decimal("0E-999999"), Decimal(0)),
    ("string", np.str_("é"), "é"),
    ("string", Word.SEVEN, "seven"),
    ("binary", np.bytes_(b"a"), b"a"),
    ("binary", memoryview(b"abc")[::2], b"ac"),
    ("date", np.datetime64("2026-02-28"), date(2026, 2, 28)),
    ("date", Day(2026, 2, 28), date(2026, 2, 28)),
    ("timestamp", NOON.astimezone(timezone(timedelta(hours=-3))), NOON),
    ("timestamp", pd.Timestamp(NOON), NOON),
    ("timestamp_ntz", np.datetime64(LOCAL), LOCAL),
    ("timestamp_ntz", np.datetime64(LOCAL).astype("M8[ns]"), LOCAL),
    ("timestamp_ntz", pd.Timestamp(LOCAL), LOCAL),
    ("interval day to second", np.timedelta64(5, "s"), timedelta(seconds=5)),
    ("interval day to second", pd.Timedelta("-1us"), timedelta(microseconds=-1)),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("boolean", 1, "bool is needed, not int"),
    ("boolean", np.int8(1), r"bool is needed, not numpy\.int8"),
    ("byte", 128, "byte holds -128 to 127"),
    ("short", np.int64(-32769), "short holds -32768 to 32767"),
    ("integer", 2**31, "integer holds"),
    ("long", True, "int is needed, not bool"),
    ("long", np.True_, r"int is needed, not numpy\.bool"),
    ("long", 1.0, "int is needed, not float"),
    ("long", np.datetime64("2026-02-28T00:00:00.000000000"), r"int is needed, not numpy\.datetime64"),
    ("long", np.array(3), r"int is needed, not numpy\.ndarray"),
    ("double", 2**53 + 1, "double cannot hold this int exactly"),
    ("double", np.uint64(2**64 - 1), "double cannot hold this int exactly"),
    ("double", 10**400, "beyond the largest double"),
    ("double", np.longdouble(1), r"float is needed, not numpy\.(longdouble|float128)"),
    ("double", np.complex128(1), r"float is needed, not numpy\.complex128"),
    ("double", np.array(3.0), r"float is needed, not numpy\.ndarray"),
    ("double", Decimal("1.5"), r"float is needed, not decimal\.Decimal"),
    ("double", True, "float is needed, not bool"),
    ("float", (1 << 24) + 1, "float cannot hold this int exactly"),
    ("float", 1e39, "beyond the largest float"),
    ("decimal(10,2)", 1, r"decimal\.Decimal is needed, not int"),
    ("decimal(10,2)", Decimal("1.005"), r"it has 3 digits after the point, but decimal\(10,2\) allows 2"),
    ("decimal(10,2)", Decimal("123456789.5"), r"it has 9 digits before the point, but decimal\(10,2\) allows 8"),
    ("decimal(10,2)", Decimal("1E+999999"), "it has 1000000 digits before the point"),
    ("decimal(10,2)", Decimal("1E-999999"), "it has 999999 digits after the point"),
    ("decimal(10,2)", Decimal("NaN"), "a decimal cannot be NaN"),
    ("decimal(10,2)", Decimal("sNaN"), "a decimal cannot be sNaN"),
    ("decimal(10,2)", Decimal("-Infinity"), "a decimal cannot be -Infinity"),
    ("string", b"x", "str is needed, not bytes"),
    ("string", "a\udc80", "lone surrogate"),
    ("binary", "x", "bytes are needed, not str"),
    ("binary", [1], "bytes are needed, not list"),
    ("date", LOCAL, "a date is needed, not a datetime"),
    ("date", np.datetime64(LOCAL), "a date is needed, not a datetime"),
    ("date", np.datetime64("10000-01-01"), "equals no Python value"),
    ("date", np.datetime64("NaT"), "NaT is not a value: write None"),
    ("date", "2026-02-28", r"datetime\.date is needed, not str"),
    ("timestamp", LOCAL, "needs a datetime with a time zone"),
    ("timestamp", LOCAL.replace(tzinfo=NoOffset()), "needs a datetime with a time zone"),
    ("timestamp", pd.Timestamp(LOCAL), "needs a datetime with a time zone"),
    ("timestamp", date(2026, 2, 28), r"datetime\.datetime is needed, not datetime\.date"),
    ("timestamp", pd.Timestamp(NOON) + pd.Timedelta("1ns"), r"pandas\S*Timestamp .* finer than a microsecond"),
    ("timestamp", pd.NaT, "NaT is not a value: write None"),
    ("timestamp", datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "outside the years 1 to 9999"),
    ("timestamp_ntz", NOON, "needs a datetime without a time zone"),
    ("timestamp_ntz", np.datetime64(LOCAL).astype("M8[ns]") + 1, r"numpy\.datetime64\S* .*equals no Python value"),
    ("interval day to second", 5, r"datetime\.timedelta is needed, not int"),
    ("interval day to second", np.timedelta64(5), "equals no Python value"),
    ("interval day to second", np.timedelta64(1, "M"), "equals no Python value"),
    ("interval day to second", np.timedelta64(1, "ns"), "equals no Python value"),
    ("interval day to second", pd.Timedelta("1ns"), "finer than a microsecond"),
    ("interval day to second", timedelta.max, "microseconds"),
    ("string", pd.NA, r"str is needed, not pandas\S*NAType"),
]


def key_part(name: str) -> KeyLayout:
    return KeyLayout((KeyPart("k", column_type(name), descending=False, is_raw=False),))


def in_array(value: Any, name: str) -> Any:
    return {"type": "array", "elementType": name, "containsNull": True}, [value]


def in_map(value: Any, name: str) -> Any:
    return {"type": "map", "keyType": name, "valueType": name, "valueContainsNull": True}, [(value, value)]


def in_struct(value: Any, name: str) -> Any:
    field = {"name": "f", "type": name, "nullable": True, "metadata": {}}
    return {"type": "struct", "fields": [field]}, {"f": value}


NESTED: list[Callable[[Any, str], Any]] = [in_array, in_map, in_struct]


def shown(value: object) -> str:
    """Without an address, which each process has of its own."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(("name", "value", "plain"), TAKEN, ids=shown)
def test_a_value_is_taken_as_the_python_value_that_it_equals(name: str, value: Any, plain: Any) -> None:
    found = decode_value(encode_value(value, name), name)
    assert (found, type(found)) == (plain, type(plain))
    assert encode_value(value, name) == encode_value(plain, name)
    assert key_part(name).encode([value]) == key_part(name).encode([plain])
    assert key_part(name).decode(key_part(name).encode([value])) == (plain,)
    for nest in NESTED:
        spark, nested = nest(value, name)
        assert encode_value(nested, json.dumps(spark)) == encode_value(nest(plain, name)[1], json.dumps(spark))
        assert decode_value(encode_value(nested, json.dumps(spark)), json.dumps(spark)) == nest(plain, name)[1]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED, ids=shown)
def test_a_value_that_would_change_is_refused_in_every_place(name: str, value: Any, words: str) -> None:
    with pytest.raises(MisuseType, match=words):
        encode_value(value, name)
    with pytest.raises(MisuseType, match=words):
        key_part(name).encode([value])
    for nest in NESTED:
        spark, nested = nest(value, name)
        with pytest.raises(MisuseType, match=words):
            encode_value(nested, json.dumps(spark))


def pretend_that_another_thread_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module has no classes at the beginning of its import."""
    monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.mark.parametrize(("name", "value"), [("string", "a"), ("long", 7), ("date", date(2026, 2, 28))])
def test_a_value_is_taken_while_another_thread_imports_numpy(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_that_another_thread_imports("numpy", monkeypatch)
    assert decode_value(encode_value(value, name), name) == value


@pytest.mark.parametrize("module", ["pandas", "polars"])
def test_arrow_data_is_taken_while_another_thread_imports_a_module_of_frames(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pa.record_batch({"id": [1]})
    pretend_that_another_thread_imports(module, monkeypatch)
    assert record_batches(batch).read_all() == pa.table(batch.to_pydict())


def test_a_value_of_too_many_digits_to_be_shown_is_refused_as_any_other() -> None:
    for name in ("long", "double", "decimal(10,2)"):
        with pytest.raises(MisuseType, match="value of type int does not fit"):
            encode_value(10**5000, name)
        with pytest.raises(MisuseType, match="value of type int does not fit"):
            key_part(name).encode([10**5000])


@pytest.mark.parametrize(
    ("value", "spark", "words"),
    [
        (7, {"type": "array", "elementType": "long", "containsNull": True}, "a list is needed, not int"),
        (np.array([1]), {"type": "array", "elementType": "long", "containsNull": True}, r"not numpy\.ndarray"),
        ("ab", in_map(1, "long")[0], "a dict or a list of pairs is needed, not str"),
        ([(1, 2, 3)], in_map(1, "long")[0], "a pair of key and value is needed"),
        ({None: 1}, in_map(1, "long")[0], "a map cannot have the key None"),
        ({"g": 1}, in_struct(1, "long")[0], "a dict with f is needed"),
        ([1, None], {"type": "array", "elementType": "long", "containsNull": False}, "not allow None as array element"),
        ({1: None}, {**in_map(1, "long")[0], "valueContainsNull": False}, "not allow None as map value"),
        (
            {"f": None},
            {"type": "struct", "fields": [{"name": "f", "type": "long", "nullable": False, "metadata": {}}]},
            "not allow None as field 'f'",
        ),
    ],
)
def test_a_nested_value_has_the_shape_of_its_type(value: Any, spark: Any, words: str) -> None:
    with pytest.raises(MisuseType, match=words):
        encode_value(value, json.dumps(spark))


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("double", 2**53 + 1),
        ("double", True),
        ("float", (1 << 24) + 1),
        ("decimal(10,2)", True),
        ("decimal(10,2)", "NaN"),
        ("decimal(10,2)", 0.1),
        ("interval day to second", 1.5),
        ("timestamp", "2026-02-28T12:00:00.1234567Z"),
        ("timestamp", "2026-02-28T12:00:00"),
        ("timestamp_ntz", "2026-02-28T12:00:00.0000001"),
        ("date", "2026-02-28T12:00:00"),
        ("long", 1.0),
    ],
)
def test_json_of_a_program_loses_nothing(memory_db: Database, name: str, plain: Any) -> None:
    spark, nested = in_array(plain, name)
    memory_db.set_schema("t", {"id": str, "v": name, "list": json.dumps(spark)}, row_key="id")
    with memory_db.begin() as tx:
        table = tx.table("t", codec="json")
        for row in ({"id": "a", "v": plain}, {"id": "a", "list": nested}):
            with pytest.raises(MisuseType, match="table 't', column"):
                table.put(row)
        assert table.get("a") is None


def test_json_of_a_program_reads_as_stored_json_does() -> None:
    for name, plain in (("double", 1), ("double", "NaN"), ("decimal(10,2)", "1.50"), ("interval day to second", 7)):
        found = exact_nested(value_of_json(plain, name, OF_PROGRAMS), name)
        stored = value_of_json(plain, name)
        assert found == stored or math.isnan(found)
        assert type(found) is type(stored)


def test_a_counter_takes_whole_numbers_of_numpy(memory_db: Database) -> None:
    memory_db.set_schema("t", {"id": str, "n": int}, row_key="id")
    with memory_db.begin() as tx:
        assert tx.table("t", codec=dict).increment("a", "n", np.int64(2)) == 2  # type: ignore[arg-type]
        assert tx.table("t").increment(b"a", b"f:n", np.uint8(3)) == 5  # type: ignore[arg-type]
        for by in (np.float64(1), np.True_, True, 1.0):
            with pytest.raises(MisuseType, match=r"by .* int is needed, not"):
                tx.table("t").increment(b"a", b"f:n", by)  # type: ignore[arg-type]


def test_options_and_limits_take_whole_numbers_of_numpy(memory_db: Database, memory_url: str) -> None:
    with pyomid.connect(memory_url, scan_batch_rows=np.int64(7), flush_bytes=np.uint16(9)) as db:
        assert (db.settings.scan_batch_rows, db.settings.flush_bytes) == (7, 9)
    memory_db.set_schema("t", {"id": int, "n": int}, row_key="id")
    with memory_db.begin() as tx:
        for number in range(3):
            tx.table("t", codec=dict).put({"id": number})
        assert len(list(tx.table("t", codec=dict).scan(limit=np.int32(2)))) == 2  # type: ignore[arg-type]
        with pytest.raises(MisuseType, match=r"limit .* is float, not an int"):
            tx.table("t").scan(limit=np.float64(2))  # type: ignore[arg-type]
        with pytest.raises(MisuseType, match=r"row key .* is numpy\.datetime64, not bytes"):
            tx.table("t").get(np.datetime64("2026-02-28"))  # type: ignore[arg-type]


# Dates and moments that other programs store and Python does not have

BEFORE_YEAR_1 = -62_135_596_800_000_001
AFTER_YEAR_9999 = 253_402_300_800_000_000
BEYOND: dict[str, tuple[int, int, int]] = {
    "date": (4, -719_163, 2_932_897),
    "timestamp": (8, BEFORE_YEAR_1, AFTER_YEAR_9999),
    "timestamp_ntz": (8, BEFORE_YEAR_1, AFTER_YEAR_9999),
}


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_moment_that_python_does_not_have_is_no_corruption(memory_db: Database, name: str, is_late: bool) -> None:
    width, number = BEYOND[name][0], BEYOND[name][1 + is_late]
    stored = number.to_bytes(width, "big", signed=True)
    key = bytes([stored[0] ^ 0x80]) + stored[1:]
    for table in ("values", "keys"):
        memory_db.create_table(table, ["f"])
    memory_db.set_schema("values", {"id": str, "v": name, "n": int}, row_key="id")
    memory_db.set_schema("keys", {"k": name, "n": int}, row_key="k")
    memory_db.create_index("values", "by_v", ["v"])
    memory_db.create_index("values", "by_n_v", ["n", "v"])
    with memory_db.begin() as tx:
        tx.table("values").put(b"a", {b"f:v": stored, b"f:n": bytes(8)})
        tx.table("keys").put(key, {b"f:n": bytes(8)})
    said = r"outside the years 1 to 9999 \(UTC\), the range of Python's datetime"
    with memory_db.snapshot() as tx:
        values, keys = tx.table("values", codec=dict), tx.table("keys", codec="json")
        reads: list[Callable[[], object]] = [
            lambda: values.get("a"),
            lambda: values.rows(["a"]),
            lambda: list(values.scan()),
            lambda: values.page(),
            lambda: list(values.lookup("by_n_v", 0)),
            lambda: list(keys.scan(reverse=True)),
            lambda: keys.page(),
        ]
        for read in reads:
            with pytest.raises(Misuse, match=said) as caught:
                read()
            assert not isinstance(caught.value, Corruption)
        assert values.to_arrow().read_all().num_rows == 1
        assert keys.to_arrow().read_all().num_rows == 1
    assert memory_db.verify().ok


@pytest.mark.parametrize("name", [name for name in BEYOND if column_type(name).layout is Layout.INTEGER])
def test_an_index_that_is_built_has_moments_that_python_does_not_have(memory_db: Database, name: str) -> None:
    width, early, late = BEYOND[name]
    memory_db.set_schema("t", {"id": int, "v": name}, row_key="id")
    with memory_db.begin() as tx:
        for number in (early, 0, late):
            row = bytes([0x80]) + len(list(tx.table("t").scan())).to_bytes(7, "big")
            tx.table("t").put(row, {b"f:v": number.to_bytes(width, "big", signed=True)})
    memory_db.create_index("t", "by_v", ["v"])
    index = memory_db.table_info("t").indexes[0].table
    with memory_db.snapshot() as tx:
        assert len(list(tx.table(index).scan())) == 3
