"""Ranges of row keys from what a person writes: values of the leading key columns, or raw bytes.

    tx.read("flights", prefix=["EWR"])                 all keys whose first column is EWR
    tx.read("flights", start=["EWR", day], stop=["JFK"])  from (EWR, day) up to, not including, JFK
    option("rowPrefix", '["EWR"]')  option("rowStart", "EWR")  option("rowPrefix", "0x455752")

In options values are JSON as in nested columns (dates "2013-01-31", timestamps "2013-01-31T10:00:00Z"); a text that
is no JSON array is the first column's value, and one that begins with 0x is raw bytes. A single ascending text
column is stored raw, so there a prefix is also one of the text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyomid.errors import Corruption, Misuse
from pyomid.spark.nested import from_json
from pyomid.spark.rowkey import KeyLayout, KeyPart
from pyomid.types import KeyRange, prefix_range

Bound = bytes | Sequence[Any] | Any


def key_range(layout: KeyLayout, start: Bound = None, stop: Bound = None, prefix: Bound = None) -> KeyRange:
    """The range of these bounds together; Misuse names a value that does not fit its column."""
    whole = KeyRange() if prefix is None else prefix_range(bound_bytes(layout, prefix))
    first = whole.start if start is None else max(whole.start, bound_bytes(layout, start))
    last = whole.stop
    if stop is not None:
        end = bound_bytes(layout, stop)
        last = end if last is None else min(last, end)
    return KeyRange(first, last)


def bound_bytes(layout: KeyLayout, bound: Bound) -> bytes:
    """Raw bytes as they are (unless the first column is binary and alone: then they are the same), values encoded."""
    if isinstance(bound, bytes | bytearray):
        return bytes(bound)
    values = list(bound) if isinstance(bound, list | tuple) else [bound]
    return layout.encode_prefix(values)


def parse_bound(layout: KeyLayout, text: str | None) -> Bound:
    """An option's text as a bound."""
    if text is None:
        return None
    if text.startswith("0x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise Misuse(f"row bound {text!r} is no hexadecimal number") from None
    try:
        values = json.loads(text)
    except ValueError:
        values = text
    if not isinstance(values, list):
        values = [text if layout.parts[0].type.is_text else values]
    if len(values) > len(layout.parts):
        raise Misuse(f"row bound {text!r} has {len(values)} values, the row key ({', '.join(layout.names)})")
    return [_typed(part, value, text) for part, value in zip(layout.parts, values, strict=False)]


def _typed(part: KeyPart, value: Any, text: str) -> Any:
    try:
        return from_json(json.dumps(value).encode(), json.dumps(part.type.name))
    except Corruption:
        raise Misuse(
            f"row bound {text!r}: {value!r} does not fit column {part.name!r} of type {part.type.name}",
            column=part.name,
        ) from None
