"""Divides a SQL text into tokens where Spark's lexer divides it; and a cursor that consumes the tokens.

    DELETE FROM stock /* all /* of */ it */ WHERE note = 'it''s' -- done
    ^word  ^word^word                       ^word ^word ^symbol ^string

Comments and white space lie between tokens. `{name}` is one token: a frame. A character that Spark's lexer does not
know becomes a symbol, which no rule consumes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pyomid.errors import Misuse


class Kind(Enum):
    WORD = auto()
    QUOTED = auto()
    """A name in backquotes."""
    STRING = auto()
    NUMBER = auto()
    FRAME = auto()
    SYMBOL = auto()
    """A single character, or /*+ or */ of a hint."""


_SPACE: Final = re.compile(
    r"[ \t\n\f\r\x0b\xa0\u1680\u2000-\u200a\u2028\u202f\u205f\u3000]+|--(?:\\\n|[^\r\n])*(?:\r?\n|\r)?"
)
_TOKEN: Final = re.compile(
    r"""(?P<STRING>r'[^']*'|r"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<QUOTED>`(?:[^`]|``)*`)
    |(?P<NUMBER>(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?(?:bd|[dflsy])?(?!\w))
    |(?P<WORD>[^\W\d_]+://[\w/\-.?=&#%]+|\w+)
    |(?P<FRAME>(?<!\$)\{\s*\w+\s*\})
    |(?P<SYMBOL>/\*\+|\*/|.)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_COMMENT: Final = re.compile(r"/\*(?!\+)|\*/")
_CLOSED_BY: Final = {"(": ")", "[": "]", "<": ">"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token: the characters from `start` up to `end`."""

    kind: Kind
    start: int
    end: int
    text: str
    follows_dot: bool = False

    @property
    def is_name(self) -> bool:
        return self.kind in (Kind.WORD, Kind.QUOTED)

    @property
    def name(self) -> str:
        """Return the name without its quotes or braces."""
        if self.kind is Kind.QUOTED:
            return self.text[1:-1].replace("``", "`")
        return self.text[1:-1].strip() if self.kind is Kind.FRAME else self.text

    def is_(self, word: str) -> bool:
        """Whether this token is the keyword or symbol `word`, and neither a quoted name nor a name after a dot."""
        return self.kind in (Kind.WORD, Kind.SYMBOL) and self.text.upper() == word and not self.follows_dot


def tokens_of(text: str, what: str) -> list[Token]:
    """Return the tokens of a text. Raises `Misuse` if a string, a quoted name, a comment or a parenthesis is not
    closed. `what`: how errors name the statement."""
    found: list[Token] = []
    opened: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("/*", at) and not text.startswith("/*+", at):
            at = _after_comment(text, at, what)
            continue
        space = _SPACE.match(text, at)
        if space is not None:
            at = space.end()
            continue
        match = _TOKEN.match(text, at)
        assert match is not None
        assert match.lastgroup is not None
        kind, at = Kind[match.lastgroup], match.end()
        if kind is Kind.SYMBOL:
            _check_closed(match[0], opened, what)
        after_dot = bool(found) and found[-1].kind is Kind.SYMBOL and found[-1].text == "."
        found.append(Token(kind, match.start(), at, match[0], after_dot and kind is Kind.WORD))
    if opened:
        raise Misuse(f"{what} cannot be parsed: a closing {opened[-1]} is missing")
    return found


def _after_comment(text: str, at: int, what: str) -> int:
    """Return the position where a comment ends; comments nest."""
    depth = 0
    for mark in _COMMENT.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise Misuse(f"{what} cannot be parsed: a comment /* is not closed by */")


def _check_closed(symbol: str, opened: list[str], what: str) -> None:
    if symbol in "'\"`":
        raise Misuse(f"{what} cannot be parsed: the quotation mark {symbol} is not closed")
    if symbol in "([":
        opened.append(_CLOSED_BY[symbol])
    elif symbol in ")]" and (not opened or opened.pop() != symbol):
        raise Misuse(f"{what} cannot be parsed: {symbol} has no opening bracket")


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive tokens of a statement."""

    whole: str
    tokens: Sequence[Token]

    @property
    def start(self) -> int:
        return self.tokens[0].start

    @property
    def end(self) -> int:
        return self.tokens[-1].end

    @property
    def text(self) -> str:
        return self.whole[self.start : self.end] if self.tokens else ""

    def has(self, number: int, words: str) -> bool:
        """Whether these space-separated words begin at the token of this number."""
        wanted = words.split(" ")
        given = self.tokens[number : number + len(wanted)]
        return len(given) == len(wanted) and all(token.is_(word) for token, word in zip(given, wanted, strict=True))

    def top(self, *, of_names: bool = False) -> Iterator[int]:
        """Yield the numbers of the tokens outside of parentheses, brackets and CASE. An opening token counts as
        outside, a closing token as inside. `of_names`: the tokens are names and types, among which CASE is a name and
        < > are brackets."""
        opened: list[str] = []
        for number, token in enumerate(self.tokens):
            if not opened:
                yield number
            if token.kind is Kind.SYMBOL and token.text in ("([<" if of_names else "(["):
                opened.append(_CLOSED_BY[token.text])
            elif token.is_("CASE") and not of_names:
                opened.append("END")
            elif token.is_("END") and opened and opened[-1] == "END":
                opened.pop()
            elif token.kind is Kind.SYMBOL and token.text in opened:
                while opened.pop() != token.text:
                    pass

    def split(self, separator: str, *, of_names: bool = False) -> list[Part]:
        """Return the parts between top-level separators."""
        ends = [number for number in self.top(of_names=of_names) if self.has(number, separator)]
        starts = [0, *(end + 1 for end in ends)]
        return [Part(self.whole, self.tokens[a:b]) for a, b in zip(starts, [*ends, len(self.tokens)], strict=True)]


class Cursor:
    """Consumes the tokens of a part from left to right. A method that does not find the token which it needs raises
    `Misuse`."""

    def __init__(self, part: Part, what: str) -> None:
        self.part = part
        self.what = what
        self.at = 0

    @property
    def token(self) -> Token | None:
        """The next token; None at the end."""
        return self.part.tokens[self.at] if self.at < len(self.part.tokens) else None

    def sees(self, *choices: str) -> bool:
        return any(self.part.has(self.at, words) for words in choices)

    def take(self, *choices: str) -> bool:
        """Consume the first of these choices that comes next; return whether one came next."""
        for words in choices:
            if self.part.has(self.at, words):
                self.at += words.count(" ") + 1
                return True
        return False

    def need(self, *choices: str) -> None:
        if not self.take(*choices):
            raise Misuse(f"{self.what}: {' or '.join(choices)} is missing before {self.shown()}")

    def name(self, what: str) -> str:
        """Consume one name and return it. `what`: how errors name the thing."""
        token = self.token
        if token is not None and token.kind is Kind.STRING:
            raise Misuse(
                f"{self.what}: the string {token.text} is not a name; write the name without quotes, or in backquotes"
            )
        if token is None or not token.is_name:
            raise Misuse(f"{self.what}: {what} is missing before {self.shown()}")
        self.at += 1
        return token.name

    def path(self, what: str) -> list[str]:
        """Consume names that dots separate, and return them."""
        names = [self.name(what)]
        while self.take("."):
            names.append(self.name(what))
        return names

    def until(self, *stops: str, of_names: bool = False) -> Part:
        """Consume the tokens before the first top-level stop, or all tokens, and return them."""
        left = Part(self.part.whole, self.part.tokens[self.at :])
        numbers = left.top(of_names=of_names)
        stop = next((n for n in numbers if any(left.has(n, words) for words in stops)), len(left.tokens))
        self.at += stop
        return Part(left.whole, left.tokens[:stop])

    def group(self, what: str) -> Part:
        """Consume a pair of parentheses, and return the tokens inside."""
        if not self.sees("("):
            raise Misuse(f"{self.what}: parentheses with {what} are missing before {self.shown()}")
        left = Part(self.part.whole, self.part.tokens[self.at :])
        after = next((number for number in left.top() if number > 0), len(left.tokens))
        self.at += after
        return Part(left.whole, left.tokens[1 : after - 1])

    def end(self) -> None:
        """Raise a `Misuse` that names the clause if tokens are left."""
        if self.token is not None:
            raise Misuse(f"{self.what}: {self.shown()} is not supported here")

    def shown(self) -> str:
        """Return the next words for an error: up to two words, the longest name of a clause."""
        token = self.token
        if token is None:
            return "the end"
        following = self.part.tokens[self.at + 1 : self.at + 2]
        if token.kind is Kind.WORD and following and following[0].kind is Kind.WORD:
            return f"{token.text} {following[0].text}"
        return token.text
