"""Ranges of row keys that users give, by bounds or by a condition.

A bound has values of the leading key columns, or raw bytes.

    tx.read("flights", prefix=["EWR"])                 all keys whose first column is EWR
    tx.read("flights", start=["EWR", day], stop=["JFK"])  from (EWR, day) up to, not including, JFK
    option("rowPrefix", '["EWR"]')  option("rowStart", "EWR")  option("rowPrefix", "0x455752")

In options, values are JSON as in nested columns (dates "2013-01-31", timestamps "2013-01-31T10:00:00Z"). A text that is
not a JSON array is the first column's value; a text that begins with 0x is raw bytes. A key of one ascending string
column is stored raw, so its prefix also matches a prefix of the string.

All bounds apply together: start and stop are complete bounds, and a prefix with no key between them is an error.

A `timestamp` is a moment, so a `datetime` needs a time zone. In a transaction a naive `datetime` is taken in the
session's zone, as in Spark; it is refused if this process's own zone, which `collect()` uses for its datetimes, gives
another moment. Options are parsed in a process without the session, so a timestamp in an option must include its zone.
A `timestamp_ntz` has no zone.

A condition of the form `column operator literal`, joined by AND, is parsed here:

    "origin = 'EWR' and time_hour >= '2013-01-02T00:00:00Z'"    →    two comparisons    →    the keys that may match

In a transaction a condition only bounds the keys, and Spark applies it (`pyomid.spark.expressions`). A data
source has no Spark session: its option `where` must consist of such comparisons, and `Where` applies them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from pyomid.errors import Misuse, MisuseType
from pyomid.rows.arrow_arrays import binary_array_of, int64_array
from pyomid.rows.column_types import column_type
from pyomid.rows.nested import OF_PROGRAMS, value_of_json
from pyomid.rows.row_key import KeyLayout, KeyPart
from pyomid.rows.schema import column_named, near
from pyomid.rows.values import exact, number_of
from pyomid.spark.source.read_task import intersection
from pyomid.types import NO_KEYS, KeyRange, TableSchema, narrowed_range, prefix_range

Bound = bytes | Sequence[Any] | Any


_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
"""A time zone written as an offset from UTC, in Spark's formats."""


def key_range(
    layout: KeyLayout | None,
    start: Bound = None,
    stop: Bound = None,
    prefix: Bound = None,
    *,
    session_zone: str | None = None,
) -> KeyRange:
    """Return the range that all these bounds allow. A `Misuse` names a value that does not fit its column. `layout`:
    None for a table without a schema, which needs bounds in raw bytes."""
    first, last, whole = (
        None if bound is None else bound_bytes(layout, bound, session_zone=session_zone)
        for bound in (start, stop, prefix)
    )
    found = narrowed_range(first, last, whole)
    if found is None:
        raise Misuse(
            f"row bounds start={start!r}, stop={stop!r} exclude every key with prefix={prefix!r}; start and stop must "
            "include the prefix"
        )
    return intersection(found, KeyRange()) or NO_KEYS


def bound_bytes(layout: KeyLayout | None, bound: Bound, *, session_zone: str | None = None) -> bytes:
    """Return a bound as key bytes: raw bytes unchanged, values encoded."""
    if isinstance(bound, bytes | bytearray):
        return bytes(bound)
    if layout is None:
        raise MisuseType(f"row bound {bound!r} must be bytes, because the table has no schema")
    values = list(bound) if isinstance(bound, list | tuple) else [bound]
    for index, (part, value) in enumerate(zip(layout.parts, values, strict=False)):
        if part.type.name == "timestamp" and isinstance(value, datetime) and value.tzinfo is None:
            values[index] = _moment(value, session_zone, part.name)
    return layout.encode_prefix(values)


def parse_bound(layout: KeyLayout, text: str | None) -> Bound:
    """Parse an option's text into a bound."""
    if text is None:
        return None
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise Misuse(f"row bound {text!r} is not a valid hexadecimal number; give two digits per byte") from None
    try:
        values = json.loads(text)
    except ValueError:
        values = text
    if not isinstance(values, list):
        values = [text if layout.parts[0].type.is_text else values]
    if len(values) > len(layout.parts):
        raise Misuse(
            f"row bound {text!r} has {len(values)} values, but the row key has only the columns "
            f"{', '.join(layout.names)}"
        )
    return [_typed(part, value, text) for part, value in zip(layout.parts, values, strict=False)]


def _typed(part: KeyPart, value: Any, text: str) -> Any:
    try:
        return value_of_json(value, part.type.name, OF_PROGRAMS)
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        raise Misuse(
            f"row bound {text!r}: {value!r} does not fit column {part.name!r} of type {part.type.name}",
            column=part.name,
        ) from None


def _moment(naive: datetime, session_zone: str | None, column: str) -> datetime:
    """Return the moment of a naive `datetime` in the session's zone. Raises `MisuseType` if it is ambiguous."""
    if session_zone is None:
        raise MisuseType(
            f"row bound {naive.isoformat()!r} of column {column!r} has no time zone, but a timestamp needs one; append "
            "Z or an offset such as +02:00",
            column=column,
        )
    try:
        moment = naive.replace(tzinfo=_zone(session_zone)).astimezone(UTC)
        of_process = naive.astimezone(UTC)
    except (OverflowError, ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise MisuseType(
            f"row bound {naive!r} of column {column!r} cannot be converted from the session's zone {session_zone!r} "
            f"({error}); give a datetime with a tzinfo",
            column=column,
        ) from error
    if moment != of_process:
        raise MisuseType(
            f"row bound {naive!r} of column {column!r} means {moment.isoformat()} in the session's zone "
            f"{session_zone!r}, but {of_process.isoformat()} in this process's zone, which collect() uses; give a "
            "datetime with a tzinfo",
            column=column,
        )
    return moment


def _zone(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT"):
        return UTC
    found = _OFFSET.fullmatch(name)
    if found is None:
        return ZoneInfo(name)
    sign, hours, minutes, seconds = found.groups()
    distance = timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
    return timezone(distance if sign == "+" else -distance)


# Conditions

_NAME: Final = r"(?:([A-Za-z_]\w*)|`([^`]+)`)"
_LITERAL: Final = r"((?:(?:date|timestamp|timestamp_ntz)\s*)?'[^'\\$]*'|-?\d{1,19})"
_COMPARED: Final = re.compile(rf"{_NAME}\s*(=|==|<=|>=|<|>)\s*{_LITERAL}", re.IGNORECASE)
_BETWEEN: Final = re.compile(rf"{_NAME}\s+between\s+{_LITERAL}\s+and\s+{_LITERAL}", re.IGNORECASE)
_TOKENS: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|\w+|.""", re.DOTALL)
_QUOTED: Final = re.compile(r"(?:(date|timestamp|timestamp_ntz)\s*)?'([^']*)'", re.IGNORECASE)

_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?)?")
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})?)?")
_WHOLE: Final = frozenset(("byte", "short", "integer", "long"))
_LONG_MAX: Final = 2**63 - 1

_COMPARE: Final[dict[str, Callable[..., pa.BooleanArray]]] = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

FORM: Final = (
    "column = literal (also <, <=, >, >=, between), joined by and, over columns of the types string, date, timestamp, "
    "timestamp_ntz and whole numbers"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with a literal, both written as in the text."""

    column: str
    operator: str
    literal: str


def conjuncts(condition: str) -> Iterator[str]:
    """Yield the parts of the text between ANDs outside brackets and quotes; `x between a and b` is one part."""
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


def comparisons_in(part: str) -> list[Comparison] | None:
    """Return the comparisons of one column of which this part consists; None if the part is anything else."""
    while part.startswith("(") and part.endswith(")"):
        part = part[1:-1].strip()
    one, two = _COMPARED.fullmatch(part), _BETWEEN.fullmatch(part)
    found = one or two
    if found is None:
        return None
    name = found[1] or found[2]
    if one is not None:
        return [Comparison(name, "=" if one[3] == "==" else one[3], one[4])]
    assert two is not None
    return [Comparison(name, ">=", two[3]), Comparison(name, "<=", two[4])]


def literal_value(kind: str, literal: str, moment: Callable[[str], datetime | None]) -> Any:
    """Return the literal as a value of a column of this type; None if Spark would convert the column instead, or if the
    value is ambiguous. `moment` converts the text of a timestamp."""
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
        if kind == "timestamp" and of in ("", "timestamp") and _MOMENT.fullmatch(text):
            return moment(text)
    except Misuse:  # Misuse is a ValueError too
        raise
    except ValueError:
        return None
    return None


# The keys that comparisons allow


def key_range_of(layout: KeyLayout, comparisons: Sequence[tuple[KeyPart, str, Any]]) -> tuple[KeyRange, bool]:
    """Return a range that holds all keys which meet these comparisons, and whether it holds no other keys. Equalities
    of leading key columns and bounds of the next column narrow the range."""
    prefix, found, used = b"", KeyRange(), 0
    for part in layout.parts:
        of_part = [
            (operator, encoded)
            for each, operator, value in comparisons
            if each is part
            for encoded in _encoded(part, prefix, value)
        ]
        for operator, key in of_part:
            found = intersection(found, _bounded(part, operator, prefix, key)) or NO_KEYS
        used += len(of_part)
        equal = next((key for operator, key in of_part if operator == "="), None)
        if equal is None:
            break
        prefix = equal
    return found, used == len(comparisons)


def _encoded(part: KeyPart, prefix: bytes, value: Any) -> Iterator[bytes]:
    """Yield the encoded key up to this value; yield nothing if the value does not fit the column."""
    try:
        yield prefix + KeyLayout((part,)).encode_prefix([value])
    except Misuse:
        return


def _bounded(part: KeyPart, operator: str, prefix: bytes, key: bytes) -> KeyRange:
    """Return the keys that begin with `prefix` and whose next part meets the comparison. `key`: prefix and value."""
    same = KeyRange(key, key + b"\0") if part.is_raw else prefix_range(key)
    whole = prefix_range(prefix) if prefix else KeyRange()
    if operator == "=":
        return same
    if (operator in (">", ">=")) is not part.descending:
        first = key if operator in (">=", "<=") else same.stop
        return NO_KEYS if first is None else KeyRange(first, whole.stop)
    return KeyRange(whole.start, same.stop if operator in (">=", "<=") else key)


# The option `where`


@dataclass(frozen=True, slots=True)
class Where:
    """Comparisons of columns with values that select the rows of a load. A null meets no comparison."""

    comparisons: tuple[tuple[str, str, Any], ...]

    @classmethod
    def of(cls, text: str, table: str, schema: TableSchema) -> Where:
        """Return the parsed option. Raises `Misuse` if the text holds anything but comparisons, or names a column that
        the table lacks."""
        kinds = {column.name: column.spark_type for column in schema.columns}
        found: list[tuple[str, str, Any]] = []
        for part in conjuncts(text):
            comparisons = comparisons_in(part)
            if comparisons is None:
                raise _not_understood(text, part)
            for each in comparisons:
                name = _column(each.column, table, list(kinds))
                value = literal_value(kinds[name], each.literal, functools.partial(_moment_of_option, name))
                if value is None or (isinstance(value, int) and abs(value) > _LONG_MAX):
                    raise _not_understood(text, part)
                found.append((name, each.operator, value))
        return cls(tuple(found))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _, _ in self.comparisons))

    def keys(self, layout: KeyLayout) -> KeyRange:
        """Return a key range that holds all rows which meet the comparisons."""
        parts = {part.name: part for part in layout.parts}
        of_key = [(parts[name], operator, value) for name, operator, value in self.comparisons if name in parts]
        return key_range_of(layout, of_key)[0]

    def met(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that meet every comparison; the batch must have `columns`."""
        holds = [
            _COMPARE[operator](rows[name], _scalar(value, rows[name].type))
            for name, operator, value in self.comparisons
        ]
        return rows.filter(functools.reduce(pc.and_, holds))


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return the value as an Arrow scalar. An integer is not cast, because it may exceed the column's range."""
    if isinstance(value, str):
        return binary_array_of([value.encode()]).cast(kind)[0]
    if isinstance(value, datetime):
        spark = column_type("timestamp" if kind.tz else "timestamp_ntz")
        return int64_array([number_of(exact(value, spark), spark)]).cast(kind)[0]
    if isinstance(value, date):
        return int64_array([number_of(value, column_type("date"))]).cast(pa.int32()).cast(kind)[0]
    return int64_array([value])[0]


def _column(name: str, table: str, known: Sequence[str]) -> str:
    """Return the column with exactly this name, or else the column whose name differs only by case, as in Spark."""
    found = column_named(name, known, f"option where: table {table!r}", any_case=True)
    if found is None:
        raise Misuse(f"option where: table {table!r} has no column {name!r}{near(name, known)}", option="where")
    return found


def _moment_of_option(column: str, text: str) -> datetime | None:
    found = datetime.fromisoformat(text)
    if found.tzinfo is not None:
        try:
            return found.astimezone(UTC)
        except OverflowError:
            return None
    raise Misuse(
        f"option where: {text!r} of column {column!r} has no time zone, but a timestamp needs one; append Z or an "
        "offset such as +02:00",
        option="where",
    )


def _not_understood(text: str, part: str) -> Misuse:
    return Misuse(
        f"option where={text!r}: {part!r} is not of the form {FORM}; for other conditions call .where(…) on the loaded "
        "frame, or use tx.read(where=…)",
        option="where",
    )
