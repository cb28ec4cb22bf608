"""Frames of other libraries as Spark's: what `tx.write`, `tx.merge` and `tx.delete` take besides a Spark frame.

A pandas frame is what `createDataFrame` makes of it: NaN is null, the index no column, and a time without a zone one of
the session's. From others (pyarrow, Polars, DuckDB) Arrow data are taken, by `__arrow_c_stream__` or
`__arrow_c_array__`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pyomid.errors import Misuse, MisuseType
from pyomid.spark.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LocalFrame = Any
"""What `spark_frame` makes one of Spark's."""

_WIDER: Final = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_PLAIN: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def spark_frame(spark: SparkSession, given: Any, what: str) -> DataFrame:
    """The frame itself, or one of its rows. `MisuseType`: it is no frame."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(given, pandas.DataFrame):
        return spark.createDataFrame(given)
    if hasattr(given, "mapInArrow"):
        if is_connect(spark) and given.sparkSession is not spark:
            raise Misuse(f"{what} is a frame of another Spark Connect session than the transaction's")
        frame: DataFrame = given
        return frame
    if not (hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")):
        raise MisuseType(
            f"{what} is {type(given).__name__}, neither a frame of Spark, pandas or Polars nor an Arrow table; of rows "
            "make one by spark.createDataFrame(rows, schema)"
        )
    table = pa.table(given)
    columns = [
        _plain_column(column, name, what) for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return spark.createDataFrame(pa.table(columns, names=table.column_names))


def _plain_column(column: pa.ChunkedArray, name: str, what: str) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        values = [chunk.dictionary.cast(_plain(column.type)).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array(values, _plain(column.type))
    try:
        return column.cast(_plain(column.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MisuseType(f"{what}: column {name!r} is {column.type}, which Spark cannot take: {error}") from error


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type)).remove_metadata()


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type that Spark knows, for one that holds the same values in another layout."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    return (_WIDER | _PLAIN).get(kind, kind)
