"""The range of row keys that a condition allows, derived from its comparisons of leading key columns:

    row key (origin, time_hour, flight)
    "origin = 'EWR' and time_hour >= '2013-01-02' and delay > 5"    →    keys from (EWR, 2013-01-02) to the end of EWR

Spark applies the whole condition to the rows of the range. So a range may be too wide, but must never be too narrow.
The text is split at its ANDs; parts of the form `column operator literal` narrow the range, all others do not. Then
Spark's analyser compares the condition with one rebuilt from the parsed parts and the texts of the others: if the two
differ, the range is not used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from pyomid.row_codec.row_key import KeyLayout, KeyPart
from pyomid.spark.frames.expressions import quoted
from pyomid.spark.source.comparisons import Comparison, comparisons_in, conjuncts, key_range_of, literal_value
from pyomid.types import KeyRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

OfKey = tuple[KeyPart, Comparison]


def range_of(frame: DataFrame, layout: KeyLayout, condition: str) -> KeyRange:
    """Return a range that holds every row of the table for which the condition is true. `frame`: has the table's
    columns; it is not computed."""
    parts = list(conjuncts(condition))
    read = [_of_key(part, layout) for part in parts]
    found = [each for comparisons in read for each in comparisons or ()]
    if not any(part is layout.parts[0] for part, _ in found):
        return KeyRange()
    try:
        if not _says_the_same(frame, condition, parts, read):
            return KeyRange()
        moment = functools.partial(_moment, frame)
        values = [(part, each.operator, literal_value(part.type.name, each.literal, moment)) for part, each in found]
    except PySparkException:
        return KeyRange()
    return key_range_of(layout, [each for each in values if each[2] is not None])


def _of_key(part: str, layout: KeyLayout) -> list[OfKey] | None:
    """Return the comparisons of one key column that a part of the text consists of; None if it is anything else."""
    found = comparisons_in(part)
    if found is None:
        return None
    name = found[0].column.lower()
    column = next((each for each in layout.parts if each.name.lower() == name), None)
    return None if column is None else [(column, each) for each in found]


def _says_the_same(frame: DataFrame, condition: str, parts: Sequence[str], read: Sequence[list[OfKey] | None]) -> bool:
    """Whether Spark resolves the condition to the same as the parts that were parsed."""
    made = [_built(part, comparisons) for part, comparisons in zip(parts, read, strict=True)]
    return frame.where(condition).sameSemantics(frame.where(functools.reduce(lambda one, other: one & other, made)))


def _built(text: str, comparisons: list[OfKey] | None) -> Column:
    if not comparisons:
        return f.expr(text)
    name = quoted(comparisons[0][0].name)
    if len(comparisons) == 2:
        (_, low), (_, high) = comparisons
        return f.expr(f"{name} between {low.literal} and {high.literal}")
    _, one = comparisons[0]
    return f.expr(f"{name} {one.operator} {one.literal}")


def _moment(frame: DataFrame, text: str) -> datetime | None:
    """Return the moment of a text. Spark computes it, because it knows its time zones and their history."""
    (row,) = frame.sparkSession.sql(f"SELECT unix_micros(CAST('{text}' AS TIMESTAMP_LTZ))").collect()
    return moment_of(row[0])


def moment_of(micros: int | None) -> datetime | None:
    """Return the moment; None if Spark found none, or one outside the years 1 to 9999 in UTC."""
    try:
        return None if micros is None else _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
