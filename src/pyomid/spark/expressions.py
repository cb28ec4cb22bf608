"""Columns and SQL texts of a caller: resolved by Spark before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType

from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def expression(value: Any, what: str) -> Column:
    """A column as it is, a text as SQL, any other value as itself."""
    if isinstance(value, Column):
        return value
    try:
        return f.expr(value) if isinstance(value, str) else f.lit(value)
    except PySparkException as error:
        raise Misuse(f"{what}: {value!r} is no expression: {reason(error)}") from error


def resolved(frame: DataFrame, wanted: Mapping[str, Column], what: str) -> list[DataType]:
    """The types of these expressions over a frame's rows. `Misuse` names what Spark cannot resolve."""
    try:  # beside the rows themselves, so that an aggregate is refused
        fields = frame.select("*", *wanted.values()).schema.fields
        return [field.dataType for field in fields[len(fields) - len(wanted) :]]
    except AnalysisException:
        for name, column in wanted.items():
            try:
                _ = frame.select("*", column).schema
            except AnalysisException as error:
                raise Misuse(f"{what}, {name} cannot be resolved: {reason(error)}") from error
        raise


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def reason(error: PySparkException) -> str:
    """Spark's sentence, without the plan below it."""
    return str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]
