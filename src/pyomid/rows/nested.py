"""Arrays, maps and structs as JSON: compact UTF-8 text that other programs can read.

    array            JSON array
    map              array of [key, value] pairs, in the map's order (JSON objects allow only string keys)
    struct           object by field name; a missing field is null
    boolean, string  themselves        integers          numbers
    float, double    numbers; "NaN", "Infinity", "-Infinity" as text
    decimal          text, "12.50"     binary            text, base64
    date             "2013-01-31"      timestamp         "2013-01-31T10:00:00.000000Z"
    timestamp_ntz    the same without Z   interval       number of microseconds

Years outside 1 … 9999 inside a nested value are refused: Python's calendar ends there.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from pyomid.errors import Corruption, Misuse

_MICROSECOND: Final = timedelta(microseconds=1)


Leaves = Mapping[str, Callable[[Any], Any]]


def _naive_from_json(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError(f"{text} has a time zone")
    return moment


STORED: Final[Leaves] = {
    "float": float,
    "double": float,
    "decimal": Decimal,
    "binary": lambda text: base64.b64decode(text, validate=True),
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": _naive_from_json,
    "interval": lambda count: timedelta(microseconds=count),
}
"""Parsers of stored values, by simple type."""


def _finest_microseconds(text: str) -> str:
    """Return the text of a time. Raise ValueError if it is finer than a microsecond, because Python would drop
    digits."""
    if re.search(r"[.,]\d{6}\d*[1-9]", text):
        raise ValueError("it is finer than a microsecond, Python's resolution")
    return text


def _of_number(plain: Any) -> Any:
    """Return a number as a float, but an int unchanged, because not every int is a float. The int is checked later, by
    the column's type."""
    return plain if isinstance(plain, int) else float(plain)


def _whole(plain: Any) -> int:
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise TypeError(f"an integer is needed, not {type(plain).__name__}")
    return plain


def _decimal(plain: Any) -> Decimal:
    return Decimal(_whole(plain) if isinstance(plain, bool) else plain)


OF_PROGRAMS: Final[Leaves] = {
    **STORED,
    "float": _of_number,
    "double": _of_number,
    "decimal": _decimal,
    "timestamp": lambda text: datetime.fromisoformat(_finest_microseconds(text)),
    "timestamp_ntz": lambda text: _naive_from_json(_finest_microseconds(text)),
    "interval": lambda count: timedelta(microseconds=_whole(count)),
}
"""Parsers of values that a program gives as JSON, which refuse a value that would lose digits."""


def to_json(value: Any, type_name: str) -> bytes:
    """Return a nested Python value (lists, dicts, lists of pairs) of Spark type `type_name` as stored bytes."""
    try:
        plain = json_value(value, json.loads(type_name))
    except (TypeError, KeyError, AttributeError) as error:
        raise Misuse(f"value {value!r} does not fit type {type_name}: {error}") from error
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def from_json(stored: bytes, type_name: str) -> Any:
    """Return the value of stored bytes. Raise `Corruption` if they are not JSON of that type."""
    try:
        return value_of_json(json.loads(stored), json.loads(type_name))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Corruption(f"stored value {stored[:80]!r} is not JSON of type {type_name}: {error}") from error


def json_value(value: Any, spark: Any) -> Any:
    """Return a value of a Spark type, simple or nested, in JSON form."""
    if value is None:
        return None
    if isinstance(spark, str):
        return _TO_JSON.get(_family(spark), _same)(value)
    if spark["type"] == "array":
        return [json_value(each, spark["elementType"]) for each in value]
    if spark["type"] == "map":
        pairs = value.items() if isinstance(value, dict) else value
        return [[json_value(key, spark["keyType"]), json_value(each, spark["valueType"])] for key, each in pairs]
    return {field["name"]: json_value(value[field["name"]], field["type"]) for field in spark["fields"]}


def value_of_json(plain: Any, spark: Any, leaves: Leaves = STORED) -> Any:
    """Return the value of a JSON form. Raise Python's own errors if the form is malformed. `leaves` are the parsers of
    simple types."""
    if plain is None:
        return None
    if isinstance(spark, str):
        return leaves.get(_family(spark), _same)(plain)
    if spark["type"] == "array":
        return [value_of_json(each, spark["elementType"], leaves) for each in plain]
    if spark["type"] == "map":
        key_type, value_type = spark["keyType"], spark["valueType"]
        return [(value_of_json(key, key_type, leaves), value_of_json(each, value_type, leaves)) for key, each in plain]
    return {field["name"]: value_of_json(plain.get(field["name"]), field["type"], leaves) for field in spark["fields"]}


def _family(name: str) -> str:
    return name.split("(")[0].split(" ")[0]


def _same(value: Any) -> Any:
    return value


def _float_to_json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _timestamp_to_json(value: datetime) -> str:
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def _naive_to_json(value: datetime) -> str:
    return value.isoformat(timespec="microseconds")


_TO_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "float": _float_to_json,
    "double": _float_to_json,
    "decimal": str,
    "binary": lambda value: base64.b64encode(value).decode(),
    "date": date.isoformat,
    "timestamp": _timestamp_to_json,
    "timestamp_ntz": _naive_to_json,
    "interval": lambda value: value // _MICROSECOND,
}
