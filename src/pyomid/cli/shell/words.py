r"""Splits a shell line into words: quotes protect spaces, a backslash begins an escape.

    put accounts alice f:city="New York" f:raw=\x00\xff f:note='it\'s'

`Word.text` still has its backslashes: the column's type decides whether they mean characters, bytes, or JSON escapes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyomid.errors import Misuse


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
    """Return the words of a line. `Misuse` if a quote is not closed."""
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
    """Return the name and value of a word name=value. `Misuse` if it has another form; the error names `wanted`."""
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
            raise Misuse(f"{text!r}: \\x needs two hexadecimal digits, \\u four")
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
