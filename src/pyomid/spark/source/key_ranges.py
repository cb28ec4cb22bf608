"""Ranges of row keys given by users: values of the leading key columns, or raw bytes.

    tx.read("flights", prefix=["EWR"])                 all keys whose first column is EWR
    tx.read("flights", start=["EWR", day], stop=["JFK"])  from (EWR, day) up to, not including, JFK
    option("rowPrefix", '["EWR"]')  option("rowStart", "EWR")  option("rowPrefix", "0x455752")

In options, values are JSON as in nested columns (dates "2013-01-31", timestamps "2013-01-31T10:00:00Z"). A text that is
not a JSON array is the first column's value; one that begins with 0x is raw bytes. A key of one ascending string column
is stored raw, so there a prefix also matches a prefix of the string.

All bounds apply together: start and stop are complete bounds, and a prefix with no key between them is an error.

A `timestamp` is a moment, so a `datetime` needs a zone. In a `transaction` a naive `datetime` is taken in the session's
zone, as in Spark; it is refused if this process's own zone, which `collect()` uses for its datetimes, gives another
moment. Options are parsed in a process without the session: there a timestamp must include its zone. A
`timestamp_ntz` has no zone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyomid.errors import Misuse, MisuseType
from pyomid.row_codec.nested import OF_PROGRAMS, value_of_json
from pyomid.row_codec.row_key import KeyLayout, KeyPart
from pyomid.spark.source.read_task import intersection
from pyomid.types import NO_KEYS, KeyRange, narrowed_range

Bound = bytes | Sequence[Any] | Any


_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
"""A zone given as an offset from UTC, in Spark's formats."""


def key_range(
    layout: KeyLayout | None,
    start: Bound = None,
    stop: Bound = None,
    prefix: Bound = None,
    *,
    session_zone: str | None = None,
) -> KeyRange:
    """Return the range that all these bounds allow; Misuse names a value that does not fit its column. `layout`: None
    for a table without a schema, whose bounds are raw bytes."""
    first, last, whole = (
        None if bound is None else bound_bytes(layout, bound, session_zone=session_zone)
        for bound in (start, stop, prefix)
    )
    found = narrowed_range(first, last, whole)
    if found is None:
        raise Misuse(
            f"row bounds start={start!r}, stop={stop!r} exclude every key with prefix={prefix!r}: give start and stop "
            "as complete bounds, prefix included"
        )
    return intersection(found, KeyRange()) or NO_KEYS


def bound_bytes(layout: KeyLayout | None, bound: Bound, *, session_zone: str | None = None) -> bytes:
    """Return a bound as key bytes: raw bytes unchanged, values encoded."""
    if isinstance(bound, bytes | bytearray):
        return bytes(bound)
    if layout is None:
        raise MisuseType(f"the table has no schema: row bound {bound!r} must be bytes")
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
            raise Misuse(f"row bound {text!r} is not a valid hexadecimal number") from None
    try:
        values = json.loads(text)
    except ValueError:
        values = text
    if not isinstance(values, list):
        values = [text if layout.parts[0].type.is_text else values]
    if len(values) > len(layout.parts):
        raise Misuse(
            f"row bound {text!r} has {len(values)} values, more than the row key's columns ({', '.join(layout.names)})"
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
    """Return the moment of a naive `datetime` in the session's zone; MisuseType if that is ambiguous."""
    if session_zone is None:
        raise MisuseType(
            f"row bound {naive.isoformat()!r} of column {column!r} has no time zone, and a timestamp needs one: append "
            "Z or an offset such as +02:00",
            column=column,
        )
    try:
        moment = naive.replace(tzinfo=_zone(session_zone)).astimezone(UTC)
        of_process = naive.astimezone(UTC)
    except (OverflowError, ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise MisuseType(
            f"row bound {naive!r} of column {column!r} cannot be converted from the session's zone {session_zone!r}: "
            f"{error}; give it a tzinfo",
            column=column,
        ) from error
    if moment != of_process:
        raise MisuseType(
            f"row bound {naive!r} of column {column!r} is {moment.isoformat()} in the session's zone {session_zone!r}, "
            f"but {of_process.isoformat()} in this process's zone, which collect() uses: give it a tzinfo",
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
