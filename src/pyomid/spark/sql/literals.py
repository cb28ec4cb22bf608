"""Puts the values of parameters `:name` into a SQL text as Spark's literals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from pyomid.errors import Misuse, MisuseType
from pyomid.rows.schema import near
from pyomid.spark.sql.tokens import Kind, Token, tokens_of
from pyomid.types import python_scalar


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the characters from `start` up to `end`."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit], start: int = 0, end: int | None = None, *, escape: bool = False) -> str:
    """Return the text between these positions with the edits applied. `escape`: double the braces of the text, for
    Spark's formatter."""

    def kept(part: str) -> str:
        return part.replace("{", "{{").replace("}", "}}") if escape else part

    pieces, at, end = [], start, len(text) if end is None else end
    for edit in sorted(edits, key=lambda each: each.start):
        if start <= edit.start and edit.end <= end:
            pieces += [kept(text[at : edit.start]), edit.text]
            at = edit.end
    return "".join([*pieces, kept(text[at:end])])


def filled(text: str, args: Mapping[str, Any], what: str) -> str:
    """Return the text with the values of its parameters."""
    edits, used = list[Edit](), set[str]()
    tokens = tokens_of(text, what)
    for number, colon in enumerate(tokens[:-1]):
        follows = tokens[number + 1]
        before = tokens[number - 1] if number else None
        if colon.text != ":" or follows.kind is not Kind.WORD or follows.start != colon.end:
            continue
        if before is not None and before.end == colon.start and _is_value(before):
            continue  # a path into a variant, or a cast
        name = follows.text
        if name not in args:
            raise Misuse(f"the SQL statement has a parameter :{name}, but args has no key {name!r}{near(name, args)}")
        used.add(name)
        is_interval = before is not None and before.is_("INTERVAL")
        literal = _literal(name, args[name], is_interval=is_interval)
        if before is not None and before.is_("ESCAPE") and not literal.startswith("'"):
            raise Misuse(
                f"the value of :{name} is {args[name]!r}, but a parameter after ESCAPE must be one character other "
                "than backslash, ' and $; choose another character, such as '!', or write it in the statement"
            )
        edits.append(Edit(colon.start, follows.end, f" {literal} "))
    unused = next((name for name in args if name not in used), None)
    if unused is not None:
        raise Misuse(f"args has the key {unused!r}, but the SQL statement has no parameter :{unused}")
    return edited(text, edits)


_BEFORE_VALUE: Final = (
    "SELECT", "DISTINCT", "VALUES", "WHERE", "HAVING", "ON", "AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "INTERVAL",
    "CASE", "WHEN", "THEN", "ELSE", "BY", "LIMIT", "OFFSET",
)  # fmt: skip
"""Words after which a colon begins a parameter; after any other name a colon begins a path into a variant."""


def _is_value(token: Token) -> bool:
    if token.is_name:
        return not any(map(token.is_, _BEFORE_VALUE))
    return token.kind is Kind.STRING or token.text in (")", "]", ":")


def _literal(name: str, given: Any, *, is_interval: bool) -> str:
    """Return a value as a Spark literal. Raises `MisuseType` for a value that has no literal."""
    match value := python_scalar(given):
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return _integer(name, int(value), is_interval=is_interval)
        case float():
            return f"CAST('{float(value)!r}' AS DOUBLE)"
        case Decimal():
            if value.is_finite():
                digits, exponent = len(value.as_tuple().digits), int(value.as_tuple().exponent)
                scale = max(0, -exponent)
                return f"CAST('{value:f}' AS DECIMAL({max(digits + max(0, exponent), scale)}, {scale}))"
        case str() if any(each in value for each in "\\'$"):  # sessions differ in how they read these in a literal
            return f"CAST(X'{value.encode().hex()}' AS STRING)"
        case str():
            return "'" + value + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case date() if value != value:
            pass  # pandas.NaT
        case datetime() if getattr(value, "nanosecond", 0):
            raise Misuse(
                f"the value of :{name} is {value!r}, but Spark's timestamps have no nanoseconds; round the value, for "
                "example by value.floor('us')",
                value=value,
            )
        case datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind} '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
    raise MisuseType(
        f"the value of :{name} is {value!r}, of type {type(value).__name__}; a parameter must be None, a bool, int, "
        "float, Decimal, str, bytes, date or datetime. To pass rows, give a frame and write {name} in the statement",
        value=value,
    )


def _integer(name: str, value: int, *, is_interval: bool) -> str:
    if is_interval:  # its grammar takes digits only
        return str(value)
    if -(1 << 31) <= value < 1 << 31:
        return f"({value})" if value < 0 else str(value)
    if -(1 << 63) <= value < 1 << 63:
        return f"CAST('{value}' AS BIGINT)"
    if abs(value) < 10**38:
        return f"CAST('{value}' AS DECIMAL(38, 0))"
    raise Misuse(f"the value of :{name} is {value}, which no integer type of Spark can hold", value=value)
