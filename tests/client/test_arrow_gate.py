"""The gate for Arrow data: each pair of an Arrow type and a column's type, held against Python's own numbers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from pyomid.database.database import Database
from pyomid.errors import MisuseType
from pyomid.rows.arrow_gate import Gate, Misfit, conversion
from pyomid.rows.column_types import arrow_type

pytestmark = pytest.mark.fast

REFUSED = "refused"


@dataclass
class Given:
    """An Arrow type, the values that are tried, and what they are. `unit`: of which a value is so many, in
    microseconds; of a date in days."""

    type: pa.DataType
    kind: str
    values: list[Any]
    unit: Fraction = Fraction(1)
    make: Callable[[list[Any], pa.DataType], pa.Array] = field(default=lambda values, kind: pa.array(values, kind))

    def array(self, values: list[Any]) -> pa.Array:
        return self.make(values, self.type)


def _counts(values: list[Any], kind: pa.DataType) -> pa.Array:
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(values, width).view(kind)


def _storage(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def _union(values: list[Any], kind: pa.DataType) -> pa.Array:
    ids = pa.array([0] * len(values), pa.int8())
    child = pa.array(values, pa.int64())
    if kind.mode == "sparse":
        return pa.UnionArray.from_sparse(ids, [child])
    return pa.UnionArray.from_dense(ids, pa.array(range(len(values)), pa.int32()), [child])


def _integers(bits: int, *, signed: bool) -> list[int]:
    top = 2 ** (bits - signed)
    return [0, 1, top - 1, *([-1, -top] if signed else [])] + [each for each in EDGES if -top * signed <= each < top]


EDGES = [2**7, 2**15, 2**24, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**60, 100, 1000, -(2**7) - 1, -(2**24) - 1]
UNITS = {"s": Fraction(10**6), "ms": Fraction(10**3), "us": Fraction(1), "ns": Fraction(1, 10**3)}
MOMENTS = [0, 1000, 1001, -1000, -1, 2**62, -(2**62)]

GIVEN = [
    Given(pa.bool_(), "bool", [True, False]),
    *(Given(getattr(pa, f"int{bits}")(), "int", _integers(bits, signed=True)) for bits in (8, 16, 32, 64)),
    *(Given(getattr(pa, f"uint{bits}")(), "int", _integers(bits, signed=False)) for bits in (8, 16, 32, 64)),
    Given(pa.float16(), "half", [1.5, float("inf")]),
    Given(pa.float32(), "float", [0.5, 2.0**100, -0.0]),
    Given(pa.float64(), "double", [1.005, 2.0]),
    *(
        Given(kind, "decimal", [Decimal("1.25"), Decimal("-1.20"), Decimal("0.00"), Decimal("999.99"), Decimal("1e6")])
        for kind in (pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal128(20, 2), pa.decimal256(76, 2))
    ),
    Given(pa.decimal128(38, 0), "decimal", [Decimal(10**37), Decimal(2**63), Decimal(12)]),
    Given(pa.decimal128(10, -3), "decimal", [Decimal(5000), Decimal("5e12")]),
    *(Given(kind, "text", ["", "a", "é\0"]) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(Given(kind, "bytes", [b"", b"\xff\0"]) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    Given(pa.binary(2), "bytes", [b"\0\0", b"ab"]),
    Given(pa.date32(), "date", [0, -1, 2**31 - 1], make=_counts),
    Given(pa.date64(), "date", [0, 86_400_000, -86_400_000], Fraction(1, 86_400_000), make=_counts),
    Given(pa.date64(), "date", [1, 86_400_001, -1], Fraction(1, 86_400_000), make=_counts),
    *(Given(pa.timestamp(unit), "local", MOMENTS, UNITS[unit], make=_counts) for unit in UNITS),
    *(Given(pa.timestamp(unit, "UTC"), "moment", MOMENTS, UNITS[unit], make=_counts) for unit in UNITS),
    Given(pa.timestamp("us", "Europe/Berlin"), "moment", MOMENTS, make=_counts),
    *(Given(pa.duration(unit), "duration", MOMENTS, UNITS[unit], make=_counts) for unit in UNITS),
    Given(pa.time32("s"), "time", [1], make=_counts),
    Given(pa.time64("ns"), "time", [1000], make=_counts),
    Given(pa.month_day_nano_interval(), "months", [(1, 2, 3)]),
    Given(pa.uuid(), "extension", [b"0123456789abcdef"], make=_storage),
    Given(pa.json_(), "extension", ["1"], make=_storage),
    Given(pa.bool8(), "extension", [1], make=_storage),
    Given(pa.sparse_union([pa.field("0", pa.int64())]), "union", [1], make=_union),
    Given(pa.dense_union([pa.field("0", pa.int64())]), "union", [1], make=_union),
]

COLUMNS = [
    *("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp"),
    *("timestamp_ntz", "interval day to second", "decimal(5,2)", "decimal(10,0)", "decimal(38,30)", "decimal(38,38)"),
]

TAKEN_KINDS = {
    "bool": {"boolean"},
    "int": {"byte", "short", "integer", "long", "float", "double", "decimal"},
    "half": {"float", "double"},
    "float": {"float", "double"},
    "double": {"double"},
    "decimal": {"decimal"},
    "text": {"string"},
    "bytes": {"binary"},
    "date": {"date", "timestamp_ntz"},
    "local": {"timestamp_ntz"},
    "moment": {"timestamp"},
    "duration": {"interval day to second"},
}


def held(value: Any, given: Given, column: str) -> Any:
    """What the column has afterwards: the value's own number or text, or REFUSED."""
    family = column.split("(")[0]
    if family not in TAKEN_KINDS.get(given.kind, set()):
        return REFUSED
    if family == "decimal":
        precision, scale = map(int, column[len("decimal(") : -1].split(","))
        unscaled = Fraction(value) * 10**scale
        return Fraction(value) if unscaled.denominator == 1 and abs(unscaled) < 10**precision else REFUSED
    if family in ("float", "double"):
        return _held_float(value, family)
    if family in ("boolean", "string", "binary"):
        return value
    bits = {"byte": 8, "short": 16, "integer": 32, "date": 32}.get(family, 64)
    number = value * given.unit
    if given.kind == "date" and family == "timestamp_ntz" and number.denominator == 1:
        number *= 86_400 * UNITS["s"]
    return int(number) if number.denominator == 1 and -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else REFUSED


def _held_float(value: Any, family: str) -> Any:
    found = struct.unpack(*(("f", struct.pack("f", value)) if family == "float" else ("d", struct.pack("d", value))))[0]
    return found if not isinstance(value, int) or int(found) == value else REFUSED


def _read(array: pa.Array, column: str) -> list[Any]:
    kind = array.type
    if pa.types.is_temporal(kind):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    found = array.to_pylist()
    return [None if each is None else Fraction(each) for each in found] if column.startswith("decimal") else found


@dataclass
class Wrapped:
    """A way to have values inside others."""

    type: Callable[[str], str]
    wrap: Callable[[pa.Array], pa.Array]
    unwrap: Callable[[pa.Array], pa.Array] = lambda array: array
    has_nulls: bool = True


def _list_of(element: str) -> str:
    return f'{{"type":"array","elementType":{element},"containsNull":true}}'


def _struct_of(inner: str) -> str:
    return f'{{"type":"struct","fields":[{{"name":"a","type":{inner},"nullable":true,"metadata":{{}}}}]}}'


def _map_of(key: str, value: str) -> str:
    return f'{{"type":"map","keyType":{key},"valueType":{value},"valueContainsNull":true}}'


def _numbers(count: int, kind: pa.DataType) -> pa.Array:
    return pa.array(range(count), kind)


def _views(array: pa.Array, large: bool) -> pa.Array:
    kind = pa.int64() if large else pa.int32()
    made = pa.LargeListViewArray if large else pa.ListViewArray
    return made.from_arrays(_numbers(len(array), kind), pa.array([1] * len(array), kind), array)


def _flat(array: pa.Array) -> pa.Array:
    return array.flatten()


def _field(array: pa.Array) -> pa.Array:
    return array.flatten()[0]


def _runs(array: pa.Array) -> pa.Array:
    ends = pa.array(range(1, len(array) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, array)


WRAPPED = {
    "itself": Wrapped(lambda t: t, lambda a: a),
    "list": Wrapped(_list_of, lambda a: pa.ListArray.from_arrays(_numbers(len(a) + 1, pa.int32()), a), _flat),
    "large_list": Wrapped(
        _list_of, lambda a: pa.LargeListArray.from_arrays(_numbers(len(a) + 1, pa.int64()), a), _flat
    ),
    "list_view": Wrapped(_list_of, lambda a: _views(a, large=False), _flat),
    "large_list_view": Wrapped(_list_of, lambda a: _views(a, large=True), _flat),
    "fixed_size_list": Wrapped(_list_of, lambda a: pa.FixedSizeListArray.from_arrays(a, 1), _flat),
    "struct": Wrapped(_struct_of, lambda a: pa.StructArray.from_arrays([a], ["a"]), _field),
    "map's key": Wrapped(
        lambda t: _map_of(t, '"long"'),
        lambda a: pa.MapArray.from_arrays(_numbers(len(a) + 1, pa.int32()), a, _numbers(len(a), pa.int64())),
        lambda a: a.cast(pa.list_(pa.struct([a.type.key_field, a.type.item_field]))).flatten().flatten()[0],
        has_nulls=False,
    ),
    "map's value": Wrapped(
        lambda t: _map_of('"long"', t),
        lambda a: pa.MapArray.from_arrays(_numbers(len(a) + 1, pa.int32()), _numbers(len(a), pa.int64()), a),
        lambda a: a.cast(pa.list_(pa.struct([a.type.key_field, a.type.item_field]))).flatten().flatten()[1],
    ),
    "struct in a list": Wrapped(
        lambda t: _list_of(_struct_of(t)),
        lambda a: pa.FixedSizeListArray.from_arrays(pa.StructArray.from_arrays([a], ["a"]), 1),
        lambda a: a.flatten().flatten()[0],
    ),
    "list in a struct": Wrapped(
        lambda t: _struct_of(_list_of(t)),
        lambda a: pa.StructArray.from_arrays([_views(a, large=False)], ["a"]),
        lambda a: a.flatten()[0].flatten(),
    ),
    "dictionary": Wrapped(lambda t: t, lambda a: pa.DictionaryArray.from_arrays(_numbers(len(a), pa.uint16()), a)),
    "run-end encoded": Wrapped(lambda t: t, _runs),
}


def _verdict(array: pa.Array, wanted: pa.DataType) -> pa.Array | str:
    try:
        convert = conversion(array.type, wanted)
        found = array if convert is None else convert(array)
    except Misfit:
        return REFUSED
    found.validate(full=True)
    assert found.type == wanted
    assert len(found) == len(array)
    return found


@pytest.mark.parametrize("inside", WRAPPED)
@pytest.mark.parametrize("given", GIVEN, ids=lambda given: str(given.type))
def test_each_pair_of_types_keeps_values_or_refuses_them(given: Given, inside: str) -> None:
    """Sliced out of an array whose other values do not fit, and with nulls."""
    way = WRAPPED[inside]
    if inside == "dictionary" and given.kind in ("union", "extension"):
        pytest.skip("Arrow has no dictionaries of these")
    if inside == "run-end encoded" and given.type == pa.date64() and 1 in given.values:
        pytest.skip("Arrow makes none of parts of days")
    for column in COLUMNS:
        wanted = arrow_type(column if way.type("") == "" else way.type(f'"{column}"'))
        kinds_fit = column.split("(")[0] in TAKEN_KINDS.get(given.kind, set())
        no_rows = _verdict(way.wrap(given.array([])), wanted)
        assert (no_rows == REFUSED) is not kinds_fit if isinstance(no_rows, str) else kinds_fit
        for value in given.values:
            last = [None] if way.has_nulls and given.kind != "union" else []
            array = way.wrap(given.array([*given.values, value, *last]))[len(given.values) :]
            found = _verdict(array, wanted)
            expected = held(value, given, column)
            assert isinstance(found, str) is (expected == REFUSED), (column, value, expected)
            if not isinstance(found, str):
                assert _read(way.unwrap(found), column) == [expected, *last], (column, value)


def test_each_of_arrows_types_is_in_the_table() -> None:
    """One that a later Arrow has is a type without a verdict."""
    nested = {way.wrap(pa.array([1])).type.id for way in WRAPPED.values()}
    known = {getattr(pa.lib, name) for name in dir(pa.lib) if name.startswith("Type_")}
    not_made_by_python = {pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME}
    assert {given.type.id for given in GIVEN} | nested | {pa.null().id} >= known - not_made_by_python


@pytest.mark.parametrize("column", [*COLUMNS, _list_of('"long"'), _struct_of('"long"'), _map_of('"long"', '"long"')])
def test_nulls_without_a_type_fit_each_column(column: str) -> None:
    found = _verdict(pa.nulls(2), arrow_type(column))
    assert not isinstance(found, str)
    assert found.null_count == 2


NESTED = [_list_of('"long"'), _struct_of('"long"'), _map_of('"long"', '"long"')]


@pytest.mark.parametrize("column", [*COLUMNS, *NESTED])
def test_a_list_a_struct_and_a_map_fit_their_own_kind_alone(column: str) -> None:
    given = {
        NESTED[0]: pa.array([[1], None], pa.list_(pa.int8())),
        NESTED[1]: pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())])),
        NESTED[2]: pa.array([[(1, 1)], None], pa.map_(pa.int8(), pa.int8())),
    }
    for kind, array in given.items():
        found = _verdict(array, arrow_type(column))
        assert isinstance(found, str) is (kind != column)
        if not isinstance(found, str):
            assert found.to_pylist() == array.to_pylist()


def test_what_lies_under_a_null_is_not_looked_at() -> None:
    hidden = pa.array([1 << 40, 2])
    mask = pa.array([True, False])
    inner = '"integer"'
    for array, column, last in (
        (pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, mask=mask), _list_of(inner), [2]),
        (pa.FixedSizeListArray.from_arrays(hidden, 1, mask=mask), _list_of(inner), [2]),
        (pa.StructArray.from_arrays([hidden], ["a"], mask=mask), _struct_of(inner), {"a": 2}),
        (pa.DictionaryArray.from_arrays(pa.array([None, 1]), hidden), "integer", 2),
    ):
        found = _verdict(array, arrow_type(column))
        assert not isinstance(found, str)
        assert found.to_pylist() == [None, last]


def _struct_type(*fields: tuple[str, str, bool]) -> str:
    made = (f'{{"name":"{n}","type":"{t}","nullable":{str(null).lower()},"metadata":{{}}}}' for n, t, null in fields)
    return f'{{"type":"struct","fields":[{",".join(made)}]}}'


def test_a_structs_fields_go_by_name() -> None:
    column = _struct_type(("a", "long", True), ("b", "string", True))
    for data, expected in (
        (pa.array([{"b": "x", "a": 1}, None]), [{"a": 1, "b": "x"}, None]),
        (pa.array([{"b": "x"}]), [{"a": None, "b": "x"}]),
        (pa.array([{}], pa.struct([])), [{"a": None, "b": None}]),
        (pa.array([{"z": 1}]), "no field 'z', only 'a', 'b'"),
        (pa.array([{"A": 1}]), "no field 'A', only 'a', 'b'"),
        (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "two fields 'a'"),
        (pa.array([{"a": 1.5}]), "c.a: double is not converted to int64"),
    ):
        schema = pa.schema([("c", arrow_type(column))])
        batch = pa.record_batch([data], ["c"])
        if isinstance(expected, str):
            with pytest.raises(MisuseType, match=f"the data: column 'c'.*{expected}"):
                Gate(batch.schema, schema, "the data")
        else:
            assert Gate(batch.schema, schema, "the data").convert(batch).column(0).to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "fits", "wrong"),
    [
        ('{"type":"array","elementType":"long","containsNull":false}', [[1], None], [[1, None]]),
        ('{"type":"map","keyType":"long","valueType":"long","valueContainsNull":false}', [[(1, 1)]], [[(1, None)]]),
        (_struct_type(("a", "long", False)), [{"a": 1}, None], [{"a": 1}, {"a": None}]),
        (_struct_type(("a", "long", False), ("b", "long", True)), [{"a": 1, "b": 2}], [{"b": 2}]),
    ],
)
def test_a_null_inside_a_value_is_refused_where_the_type_allows_none(column: str, fits: Any, wrong: Any) -> None:
    for integer in (pa.int64(), pa.int8()):
        wanted = arrow_type(column)
        kind = {"map": pa.map_(integer, integer), "list": pa.list_(integer)}.get(str(wanted).split("<")[0])
        found = _verdict(pa.array(fits, kind), wanted)
        assert not isinstance(found, str)
        assert found.to_pylist() == pa.array(fits, kind).to_pylist()
        assert _verdict(pa.array(wrong, kind), wanted) == REFUSED
    for outer in (wanted, pa.struct([pa.field("s", wanted)])):  # its own type, as of `to_arrow`: Arrow looks at no null
        values = [{"s": each} for each in wrong] if outer != wanted else wrong
        assert _verdict(pa.array(values, outer), outer) == REFUSED


@pytest.mark.parametrize("has_list", [False, True])
def test_an_extension_type_is_refused_whether_arrow_knows_it_or_not(has_list: bool) -> None:
    """A period's number of months is no long."""
    known = pa.opaque(pa.int64(), "period", "a")
    unknown = pa.field("c", pa.int64(), metadata={"ARROW:extension:name": "some.period"})
    for each in (pa.field("c", known), unknown):
        given = pa.field("c", pa.list_(each)) if has_list else each
        wanted = pa.list_(pa.int64()) if has_list else pa.int64()
        with pytest.raises(MisuseType, match=r"column 'c'.*storage"):
            Gate(pa.schema([given]), pa.schema([("c", wanted)]), "the data")


SHAPES: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda table: table,
    "chunks": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1, 0), table.slice(1)]),
    "slices": lambda table: pa.concat_tables([table, table]).combine_chunks().slice(1, 1),
    "no rows": lambda table: table.slice(0, 0),
    "no chunks": lambda table: pa.Table.from_batches([], table.schema),
    "reader": lambda table: table.to_reader(max_chunksize=1),
    "reader of nothing": lambda table: pa.RecordBatchReader.from_batches(table.schema, []),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_way_in_gives_one_verdict(db: Database, shape: str, tmp_path: Any) -> None:
    """Of a key, a column, and what is inside of one: by `write_arrow`, and out of a Parquet file."""
    inner = _list_of('"decimal(4,2)"')
    db.set_schema("t", {"at": "timestamp", "c": "integer", "l": inner}, row_key="at")
    good = {
        "at": pa.array([1000, 2000], pa.timestamp("ns", "UTC")),
        "c": pa.array([1, None], pa.uint64()),
        "l": pa.array([[Decimal("1.50000"), None], None], pa.large_list(pa.decimal128(20, 5))),
    }
    wrong = {"at": pa.array([1, 2], pa.timestamp("us")), "c": pa.array(["1", "2"]), "l": pa.array([[1.5], [2.5]])}
    fine = {
        "at": pa.array([1001, 1001], pa.timestamp("ns", "UTC")),
        "c": pa.array([1 << 31] * 2),
        "l": pa.array([[Decimal("1.505")]] * 2),
    }

    def write(columns: dict[str, pa.Array]) -> None:
        with db.begin() as tx:
            tx.table("t").write_arrow(SHAPES[shape](pa.table(columns)))

    def write_by_parquet(columns: dict[str, pa.Array]) -> None:
        data = SHAPES[shape](pa.table(columns))
        whole = data.read_all() if isinstance(data, pa.RecordBatchReader) else data
        pyarrow.parquet.write_table(whole, tmp_path / "t.parquet")
        db.import_parquet(tmp_path, over=True)

    for way in (write, write_by_parquet):
        for name in good:
            with pytest.raises(MisuseType, match=f"column '{name}'"):
                way(good | {name: wrong[name]})
            if "no" not in shape:
                with pytest.raises(MisuseType, match=f"column '{name}'"):
                    way(good | {name: fine[name]})
        way(good)
        with db.snapshot() as tx:
            found = tx.table("t").to_arrow().read_all()
        rows = [(1, [Decimal("1.50"), None]), (None, None)]
        expected = {"slices": rows[1:]}.get(shape, [] if "no" in shape else rows)
        assert [(row["c"], row["l"]) for row in found.to_pylist()] == expected
