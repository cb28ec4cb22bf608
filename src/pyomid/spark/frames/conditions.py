"""The range of row keys that a condition leaves, from what it says of the leading key columns:

    row key (origin, time_hour, flight)
    "origin = 'EWR' and time_hour >= '2013-01-02' and delay > 5"    →    keys from (EWR, 2013-01-02) to the end of EWR

The range is a help and never the answer: Spark applies the whole condition to the rows of the range. So a range may be
too wide, and must never be too narrow. A text is cut here at its ANDs, and parts of the form `column operator literal`
are read; everything else narrows nothing. Then Spark's analyser compares the condition with one that is built anew of
the parts that were read and the texts of the others: where it does not find the same, there is no range.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from pyomid.errors import Misuse
from pyomid.row_codec.row_key import KeyLayout, KeyPart
from pyomid.spark.frames.expressions import quoted
from pyomid.spark.source.read_task import intersection
from pyomid.types import KeyRange, prefix_range

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NAME: Final = r"(?:([A-Za-z_]\w*)|`([^`]+)`)"
_LITERAL: Final = r"((?:(?:date|timestamp|timestamp_ntz)\s*)?'[^'\\$]*'|-?\d{1,19})"
_COMPARED: Final = re.compile(rf"{_NAME}\s*(=|==|<=|>=|<|>)\s*{_LITERAL}", re.IGNORECASE)
_BETWEEN: Final = re.compile(rf"{_NAME}\s+between\s+{_LITERAL}\s+and\s+{_LITERAL}", re.IGNORECASE)
_TOKENS: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|\w+|.""", re.DOTALL)
_QUOTED: Final = re.compile(r"(?:(date|timestamp|timestamp_ntz)\s*)?'([^']*)'", re.IGNORECASE)

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?)?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE: Final = frozenset(("byte", "short", "integer", "long"))


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Of a key column with a literal, both as Spark has them in a text."""

    part: KeyPart
    operator: str
    literal: str

    def text(self) -> str:
        return f"{quoted(self.part.name)} {self.operator} {self.literal}"


def range_of(frame: DataFrame, layout: KeyLayout, condition: str) -> KeyRange:
    """A range that holds every row of the table for which the condition is true. `frame`: of the table's columns; it
    is not computed."""
    parts = list(_conjuncts(condition))
    read = [_comparisons(part, layout) for part in parts]
    found = [comparison for comparisons in read for comparison in comparisons or ()]
    if not any(comparison.part is layout.parts[0] for comparison in found):
        return KeyRange()
    try:
        if not _says_the_same(frame, condition, parts, read):
            return KeyRange()
        values = [(each.part, each.operator, _value(frame, each)) for each in found]
    except PySparkException:
        return KeyRange()
    return key_range_of(layout, [each for each in values if each[2] is not None])


def key_range_of(layout: KeyLayout, comparisons: Sequence[tuple[KeyPart, str, Any]]) -> KeyRange:
    """The keys that meet these comparisons, or more: equalities of leading parts, then bounds of the next one."""
    prefix, found = b"", KeyRange()
    for part in layout.parts:
        of_part = [
            (operator, encoded)
            for each, operator, value in comparisons
            if each is part
            for encoded in _encoded(layout, part, prefix, value)
        ]
        for operator, key in of_part:
            found = intersection(found, _bounded(part, operator, prefix, key)) or found
        equal = next((key for operator, key in of_part if operator == "="), None)
        if equal is None:
            return found
        prefix = equal
    return found


def _encoded(layout: KeyLayout, part: KeyPart, prefix: bytes, value: Any) -> Iterator[bytes]:
    """The key up to this value; nothing where it does not fit the column."""
    try:
        yield prefix + KeyLayout((part,)).encode_prefix([value])
    except Misuse:
        return


def _bounded(part: KeyPart, operator: str, prefix: bytes, key: bytes) -> KeyRange:
    """The keys that begin with `prefix` and whose next part is as the operator says; `key`: prefix and the value."""
    same = KeyRange(key, key + b"\0") if part.is_raw else prefix_range(key)
    whole = prefix_range(prefix) if prefix else KeyRange()
    if operator == "=":
        return same
    if (operator in (">", ">=")) is not part.descending:
        return KeyRange(key if operator in (">=", "<=") else same.stop or key, whole.stop)
    return KeyRange(whole.start, same.stop if operator in (">=", "<=") else key)


# Reading a text


def _conjuncts(condition: str) -> Iterator[str]:
    """The text between the ANDs that are in no bracket and no quotes; `x between a and b` is one."""
    part, depth, between = "", 0, False
    for token in _TOKENS.findall(condition):
        depth += (token == "(") - (token == ")")
        word = token.lower() if depth == 0 else ""
        if word == "and" and not between:
            yield part.strip()
            part = ""
            continue
        between = (between or word == "between") and word != "and"
        part += token
    yield part.strip()


def _comparisons(part: str, layout: KeyLayout) -> list[_Comparison] | None:
    """What a part says of one key column; None: something else."""
    while part.startswith("(") and part.endswith(")"):
        part = part[1:-1].strip()
    one, two = _COMPARED.fullmatch(part), _BETWEEN.fullmatch(part)
    found = one or two
    if found is None:
        return None
    name = (found[1] or found[2]).lower()
    column = next((each for each in layout.parts if each.name.lower() == name), None)
    if column is None:
        return None
    if one is not None:
        return [_Comparison(column, "=" if one[3] == "==" else one[3], one[4])]
    assert two is not None
    return [_Comparison(column, ">=", two[3]), _Comparison(column, "<=", two[4])]


def _says_the_same(
    frame: DataFrame, condition: str, parts: Sequence[str], read: Sequence[list[_Comparison] | None]
) -> bool:
    """Whether Spark takes the condition for what was read of it."""
    made = [_built(part, comparisons) for part, comparisons in zip(parts, read, strict=True)]
    return frame.where(condition).sameSemantics(frame.where(functools.reduce(lambda one, other: one & other, made)))


def _built(part: str, comparisons: list[_Comparison] | None) -> Column:
    if not comparisons:
        return f.expr(part)
    if len(comparisons) == 2:
        low, high = comparisons
        return f.expr(f"{quoted(low.part.name)} between {low.literal} and {high.literal}")
    return f.expr(comparisons[0].text())


def _value(frame: DataFrame, comparison: _Comparison) -> Any:
    """The literal as a value of its column; None where Spark would convert the column, or the value is in doubt."""
    kind, literal = comparison.part.type.name, comparison.literal
    if kind in _WHOLE:
        return int(literal) if literal.lstrip("-").isdigit() else None
    found = _QUOTED.fullmatch(literal)
    if found is None:
        return None
    of, text = (found[1] or "").lower(), found[2]
    if kind == "string" and not of:
        return text
    try:
        if kind == "date" and of in ("", "date") and _DAY.fullmatch(text):
            return date.fromisoformat(text)
        if kind == "timestamp_ntz" and of in ("", "timestamp_ntz") and _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
        if kind == "timestamp" and of in ("", "timestamp") and _TIME.fullmatch(text):
            return _moment(frame, text)
    except ValueError:
        return None
    return None


def _moment(frame: DataFrame, text: str) -> datetime | None:
    """Spark knows its zones and their history: it is asked."""
    (row,) = frame.sparkSession.sql(f"SELECT unix_micros(CAST('{text}' AS TIMESTAMP_LTZ))").collect()
    return moment_of(row[0])


def moment_of(micros: int | None) -> datetime | None:
    """None where Spark found no moment, or one that is in no year from 1 to 9999 by UTC."""
    try:
        return None if micros is None else _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
