"""Converts frames of other libraries to Spark frames, for `tx.write`, `tx.merge` and `tx.delete`.

    pandas, Polars, Arrow, DuckDB → Arrow table → gate (`pyomid.rows.arrow_gate`) → written here, or Spark frame

The client's rules make the Arrow table (`pyomid.database.tables.arrow`): NaN in a pandas frame becomes null, and a
named index level becomes a column. The gate converts each column to the type of the table's column, or refuses it; a
column that the table lacks gets a type that holds all values of its Arrow type. Spark sees the data only after that:
its own conversion truncates nanoseconds, and depends on the session's settings and on the types of other columns.

A time without a zone is taken in the session's zone if the table's column is a timestamp, or the table lacks the
column. A date becomes the first moment of its day in that zone, as in Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pyomid.database.tables.arrow import record_batches
from pyomid.errors import Misuse, MisuseType
from pyomid.rows.arrow_gate import Gate
from pyomid.rows.schema import type_name
from pyomid.spark.frame_schema import arrow_of, struct_of_types
from pyomid.spark.sessions import is_connect
from pyomid.types import is_loaded_instance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LocalFrame = Any
"""A frame that `rows_given` accepts besides a Spark frame."""


def rows_given(spark: SparkSession, given: Any, what: str) -> DataFrame | pa.Table:
    """Return a Spark frame unchanged, any other frame as an Arrow table. Raises `MisuseType` if `given` is not a frame
    or has values of mixed types."""
    if hasattr(given, "mapInArrow"):
        if is_connect(spark) and given.sparkSession is not spark:
            raise Misuse(
                f"{what}: the frame does not belong to the Spark Connect session of the transaction; create the frame "
                "in that session"
            )
        return given
    is_pandas = is_loaded_instance(given, "pandas", "DataFrame")
    if not is_pandas and not (hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")):
        raise MisuseType(
            f"{what} must be a Spark, pandas or Polars frame, or an Arrow table, not {type(given).__name__}; to make a "
            "frame from Python rows, call spark.createDataFrame(rows, schema)"
        )
    try:
        table = record_batches(given).read_all()
    except pa.ArrowException as error:
        raise Misuse(f"{what} cannot be read: {error}") from error
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise MisuseType(f"{what}: two columns are named {name!r}; rename or drop one of them", column=name)
    return table


@dataclass(frozen=True, slots=True)
class LocalRows:
    """Rows of this process that have passed the gate. `schema`: Spark's schema; `table` has the same types in Arrow."""

    schema: StructType
    table: pa.Table

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a Spark frame."""
        return spark.createDataFrame(self.table if self.table.num_rows else [], self.schema)


def local_rows(spark: SparkSession, rows: pa.Table, what: str, columns: Mapping[str, str]) -> LocalRows:
    """Return the rows in Spark's types. `columns`: the Spark types of the table's columns. A `MisuseType` names the
    column that does not fit."""
    kinds = {field.name: columns.get(field.name) or spark_type_of(field, what) for field in rows.schema}
    struct = struct_of_types(kinds)
    wanted = arrow_of(struct)
    for place, field in enumerate(wanted):
        if types.is_timestamp(field.type) and field.type.tz is not None:
            rows = _with_zone(spark, rows, place, what)
    gate = Gate(rows.schema, wanted, what)
    return LocalRows(struct, pa.Table.from_batches([gate.convert(batch) for batch in rows.to_batches()], gate.schema))


def _with_zone(spark: SparkSession, rows: pa.Table, place: int, what: str) -> pa.Table:
    """Return the rows in which times without a zone are taken in the session's zone. Raises `MisuseType` if a time is
    ambiguous or does not exist in that zone, because Spark would choose a time silently."""
    name, column = rows.column_names[place], rows.column(place)
    if types.is_dictionary(column.type) and types.is_timestamp(column.type.value_type):
        column = column.cast(column.type.value_type)
        rows = rows.set_column(place, name, column)
    is_date = types.is_date(column.type)
    if not is_date and (not types.is_timestamp(column.type) or column.type.tz is not None):
        return rows
    zone = spark.conf.get("spark.sql.session.timeZone")
    if is_date:
        days = column.cast(pa.date32()).cast(pa.timestamp("us"))
        first = pc.assume_timezone(days, zone, ambiguous="earliest", nonexistent="latest")
        return rows.set_column(place, name, first)
    try:
        return rows.set_column(place, name, pc.assume_timezone(column, zone))
    except pa.ArrowException as error:
        raise MisuseType(
            f"{what}: column {name!r} has type {column.type} without a time zone, and some times in it are ambiguous "
            f"or do not exist in the session's zone {zone!r} ({error}); add the time zone to the data",
            column=name,
        ) from error


# Types of columns that the table lacks

_Kind = Callable[[pa.DataType], bool]
_SPARK_TYPES: Final[dict[str, tuple[_Kind, ...]]] = {
    "void": (types.is_null,),
    "boolean": (types.is_boolean,),
    "byte": (types.is_int8,),
    "short": (types.is_int16, types.is_uint8),
    "integer": (types.is_int32, types.is_uint16),
    "long": (types.is_int64, types.is_uint32),
    "float": (types.is_float16, types.is_float32),
    "double": (types.is_float64,),
    "string": (types.is_string, types.is_large_string, types.is_string_view),
    "binary": (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary),
    "date": (types.is_date,),
    "interval day to second": (types.is_duration,),
}
"""Spark types by the Arrow types whose every value they hold; unsigned integers get the next longer type."""


def spark_type_of(field: pa.Field, what: str) -> str:
    """Return the Spark type of the column that a table gets for this field. Raises `MisuseType` if no type fits."""
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if types.is_timestamp(kind):
        return "timestamp"
    found = _spark_json(kind)
    if found is None:
        advice = "cast it to int64, or to decimal128(20, 0)" if types.is_uint64(kind) else "cast it"
        raise MisuseType(
            f"{what}: column {field.name!r} has type {kind}, and no column type holds all its values; {advice}",
            column=field.name,
            type=str(kind),
        )
    return type_name(found)


def _spark_json(kind: pa.DataType) -> Any:
    """Return the JSON value of the Spark type, or None."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _spark_json(kind.value_type)
    if types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})" if 0 <= kind.scale <= kind.precision <= 38 else None
    found: Any = next((name for name, kinds in _SPARK_TYPES.items() if any(is_kind(kind) for is_kind in kinds)), None)
    if types.is_map(kind):
        found = {"type": "map", "keyType": _spark_json(kind.key_type), "valueType": _spark_json(kind.item_type)}
        found["valueContainsNull"] = True
    elif types.is_struct(kind):
        fields = [{"name": f.name, "type": _spark_json(f.type), "nullable": True, "metadata": {}} for f in kind]
        found = {"type": "struct", "fields": fields}
    elif types.is_nested(kind) and hasattr(kind, "value_type"):
        found = {"type": "array", "elementType": _spark_json(kind.value_type), "containsNull": True}
    return None if found is None or ": null" in json.dumps(found) else found
