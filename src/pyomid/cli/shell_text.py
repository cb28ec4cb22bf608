r"""Text of the shell: splits a line into words, and converts rows from and to text.

    put accounts alice f:city="New York" f:raw=\x00\xff f:note='it\'s'

Quotes protect spaces, a backslash begins an escape. `Word.text` still has its backslashes: the column's type decides
whether they mean characters, bytes, or JSON escapes.

| type                              | typed and shown as                                  |
| string                            | text                                                |
| binary, and tables without schema | text, with \xNN for other bytes                     |
| array, map, struct                | JSON (`rows.nested`)                           |
| boolean                           | true, false                                         |
| other types                       | as in JSON, without quotes: 12.50, 2026-02-28       |
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyomid.errors import Misuse, MisuseType
from pyomid.rows.nested import OF_PROGRAMS, value_of_json
from pyomid.rows.rows import RowCodec
from pyomid.rows.schema import near
from pyomid.types import TableInfo

if TYPE_CHECKING:
    from pyomid.database.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a line, without its quotes."""

    text: str
    is_quoted: bool = False

    @property
    def is_null(self) -> bool:
        """Whether the word is null without quotes; "null" in quotes is text."""
        return self.text == "null" and not self.is_quoted


_WORD: Final = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')+""", re.DOTALL)
_QUOTED: Final = re.compile(r"""\\.|"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)'""", re.DOTALL)


def words_of(line: str) -> list[Word]:
    """Return the words of a line. Raise `Misuse` if a quote is not closed."""
    found: list[Word] = []
    at = 0
    while rest := line[at:].lstrip():
        at = len(line) - len(rest)
        match = _WORD.match(line, at)
        if match is None:
            raise Misuse(f"unclosed quote or trailing backslash: {rest[:40]}")
        if match.end() < len(line) and not line[match.end()].isspace():
            raise Misuse(f"unclosed quote or trailing backslash: {line[match.end() :][:40]}")
        found.append(_word(match[0]))
        at = match.end()
    return found


def pair_of(word: Word, wanted: str = "column=value") -> tuple[str, Word]:
    """Return the name and value of a word name=value. If the word has another form, raise `Misuse`, which names the
    form `wanted`."""
    name, equals, value = word.text.partition("=")
    if not equals or not name:
        raise Misuse(f"{word.text!r} is not {wanted}")
    return name, Word(value, word.is_quoted)


def _word(raw: str) -> Word:
    is_quoted = False

    def unquoted(match: re.Match[str]) -> str:
        nonlocal is_quoted
        inside = match["double"] if match["double"] is not None else match["single"]
        if inside is None:
            return match[0]
        is_quoted = True
        return inside

    return Word(_QUOTED.sub(unquoted, raw), is_quoted)


_ESCAPE: Final = re.compile(rb"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^xu]|[xu])", re.DOTALL)
_SHORT: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}


def bytes_of(text: str) -> bytes:
    r"""Return the bytes of a text with the escapes \xNN (a byte), \uNNNN (a character), \n \t \r \0, and \ before any
    other character."""

    def byte(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if len(escape) > 1:
            return (
                bytes([int(escape[1:], 16)])
                if escape[:1] == b"x"
                else chr(int(escape[1:], 16)).encode("utf-8", "replace")
            )
        if escape in (b"x", b"u"):
            raise Misuse(f"{text!r}: \\x needs two hexadecimal digits, and \\u needs four")
        return _SHORT.get(escape, escape)

    return _ESCAPE.sub(byte, text.encode("utf-8", "surrogateescape"))


def text_of(data: bytes) -> str:
    """Return bytes as text on one line; `bytes_of` is the inverse."""
    shown = data.decode("utf-8", "surrogateescape")
    return "".join(_shown(character) for character in shown)


_NAMED: Final = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\"}


def _shown(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


Record = Mapping[str, Any]
"""A row in JSON form, by column name."""


class Rows(ABC):
    """One table in one transaction, with its rows as text. `key_parts` is the number of words in a key."""

    key_parts: int = 1

    @abstractmethod
    def get(self, key: Sequence[Word], columns: Sequence[Word]) -> Record | None: ...

    @abstractmethod
    def put(self, key: Sequence[Word], pairs: Sequence[Word]) -> None: ...

    @abstractmethod
    def delete(self, key: Sequence[Word], columns: Sequence[Word]) -> None: ...

    @abstractmethod
    def scan(self, bounds: Mapping[str, Word], limit: int | None, *, reverse: bool) -> Iterator[Record]: ...

    @abstractmethod
    def shown(self, record: Record) -> Sequence[tuple[str, str]]:
        """Return (column, text) pairs to display."""

    is_typed = False


def rows_of(transaction: Transaction, table: str) -> Rows:
    info = transaction.table(table).info
    return ByteRows(transaction, info) if info.schema is None else TypedRows(transaction, info)


class ByteRows(Rows):
    """Rows of a table without a schema."""

    def __init__(self, transaction: Transaction, info: TableInfo) -> None:
        self._table = transaction.table(info.name)

    def get(self, key: Sequence[Word], columns: Sequence[Word]) -> Record | None:
        stored = bytes_of(key[0].text)
        row = self._table.get(stored, [bytes_of(column.text) for column in columns] or None)
        return _record(stored, row) if row else None

    def put(self, key: Sequence[Word], pairs: Sequence[Word]) -> None:
        cells, gone = {}, []
        for name, value in map(pair_of, pairs):
            if value.is_null:
                gone.append(bytes_of(name))
            else:
                cells[bytes_of(name)] = bytes_of(value.text)
        if cells or not gone:
            self._table.put(bytes_of(key[0].text), cells)
        if gone:
            self._table.delete(bytes_of(key[0].text), gone)

    def delete(self, key: Sequence[Word], columns: Sequence[Word]) -> None:
        self._table.delete(bytes_of(key[0].text), [bytes_of(column.text) for column in columns] or None)

    def scan(self, bounds: Mapping[str, Word], limit: int | None, *, reverse: bool) -> Iterator[Record]:
        given = {name: bytes_of(word.text) for name, word in bounds.items()}
        for key, row in self._table.scan(
            given.get("start", b""), given.get("stop"), prefix=given.get("prefix"), limit=limit, reverse=reverse
        ):
            yield _record(key, row)

    def shown(self, record: Record) -> Sequence[tuple[str, str]]:
        return [*record.items()]


def _record(key: bytes, row: Mapping[bytes, bytes]) -> Record:
    return {"key": text_of(key), **{text_of(name): text_of(value) for name, value in sorted(row.items())}}


class TypedRows(Rows):
    """Rows of a table with a schema."""

    is_typed = True

    def __init__(self, transaction: Transaction, info: TableInfo) -> None:
        self._table = transaction.table(info.name, codec=dict)
        self._name = info.name
        self._codec = RowCodec(info)
        self._keys: Final = self._codec.layout.names
        self.key_parts = len(self._keys)

    def get(self, key: Sequence[Word], columns: Sequence[Word]) -> Record | None:
        wanted = [self._known(column.text) for column in columns]
        row = self._table.get(self._key(key))
        if row is None:
            return None
        return self._codec.to_json({name: row[name] for name in [*self._keys, *wanted]} if wanted else row)

    def put(self, key: Sequence[Word], pairs: Sequence[Word]) -> None:
        row = dict(zip(self._keys, self._key(key), strict=True))
        for name, value in map(pair_of, pairs):
            if name in self._keys:
                raise Misuse(
                    f"column {name!r} belongs to the row key of {self._name}: give it before the other columns"
                )
            row[self._known(name)] = self._value(name, value)
        self._table.put(row)

    def delete(self, key: Sequence[Word], columns: Sequence[Word]) -> None:
        if columns:
            self.put(key, [Word(f"{column.text}=null") for column in columns])
        else:
            self._table.delete(self._key(key))

    def scan(self, bounds: Mapping[str, Word], limit: int | None, *, reverse: bool) -> Iterator[Record]:
        given = {name: self._bound(word) for name, word in bounds.items()}
        for row in self._table.scan(
            given.get("start"), given.get("stop"), prefix=given.get("prefix"), limit=limit, reverse=reverse
        ):
            yield self._codec.to_json(row)

    def shown(self, record: Record) -> Sequence[tuple[str, str]]:
        return [(name, self._text(name, value)) for name, value in record.items()]

    def _key(self, words: Sequence[Word]) -> tuple[Any, ...]:
        return tuple(self._value(name, word) for name, word in zip(self._keys, words, strict=True))

    def _bound(self, word: Word) -> tuple[Any, ...]:
        """Return the values of the first key columns, separated by commas (a comma in a value: \\x2c)."""
        texts = word.text.split(",") if self.key_parts > 1 else [word.text]
        if len(texts) > self.key_parts:
            raise Misuse(f"{word.text!r} has more parts than the key of {self._name} ({', '.join(self._keys)})")
        pairs = zip(self._keys, texts, strict=False)
        return tuple(self._value(name, Word(text, word.is_quoted)) for name, text in pairs)

    def _known(self, name: str) -> str:
        if name not in self._codec.types:
            raise Misuse(f"table {self._name!r} has no column {name!r}{near(name, self._codec.types)}", column=name)
        return name

    def _value(self, name: str, word: Word) -> Any:
        spark_type = self._codec.types[name]
        if word.is_null:
            return None
        try:
            return _value_of(word.text, spark_type)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise MisuseType(
                f"table {self._name!r}, column {name!r}: {word.text!r} is not a valid {spark_type}", column=name
            ) from error

    def _text(self, name: str, value: Any) -> str:
        if value is None:
            return "null"
        spark_type = self._codec.types[name]
        if spark_type == "binary":
            return text_of(self._codec.from_json({name: value})[name])
        if spark_type == "string":
            return '"null"' if value == "null" else text_of(value.encode())
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_INT: Final = re.compile(r"\s*[+-]?\d+\s*")
_BOOLEANS: Final = {"true": True, "false": False}


def _value_of(text: str, spark_type: str) -> Any:
    if spark_type.startswith("{"):
        return value_of_json(json.loads(text), json.loads(spark_type), OF_PROGRAMS)
    if spark_type == "binary":
        return bytes_of(text)
    said = bytes_of(text).decode()
    match spark_type:
        case "string":
            return said
        case "boolean":
            return _BOOLEANS[said.lower()]
        case "byte" | "short" | "integer" | "long":
            return int(said)
        case "float" | "double" if _INT.fullmatch(said):
            return int(said)
    return value_of_json(int(said) if spark_type.startswith("interval") else said, spark_type, OF_PROGRAMS)
