"""Input and output of the shell. A terminal uses prompt_toolkit and rich if they are installed (extra pyomid[shell]);
otherwise, and for files and pipes, `input` and `print`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyomid.client.upkeep.partitions import table_text

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document

ReadLine = Callable[[str], str]
"""Shows a prompt and returns the line; EOFError at the end of input, KeyboardInterrupt after Ctrl-C."""

Completions = Callable[[Sequence[str]], Sequence[str]]
"""Returns the words that may follow the words of a line."""


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def script_lines() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    yield from sys.stdin


class Output:
    """Prints results to standard output and errors to standard error. `is_verbose`: also confirms each action, for
    interactive use."""

    def __init__(self, *, as_json: bool, verbose: bool) -> None:
        self.as_json: Final = as_json
        self.is_verbose: Final = verbose

    def line(self, text: str) -> None:
        print(text)

    def json(self, value: object) -> None:
        print(json.dumps(value, ensure_ascii=False))

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if self.as_json:
            for row in rows:
                self.json(dict(zip(headings, row, strict=True)))
        elif rows:
            self.aligned(headings, rows)

    def aligned(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        print(table_text(headings, rows))

    def note(self, text: str) -> None:
        if self.is_verbose:
            print(text, flush=True)

    def error(self, text: str) -> None:
        sys.stdout.flush()
        print(f"pyomid: {text}", file=sys.stderr, flush=True)


class RichOutput(Output):
    """Prints tables that fit the terminal."""

    def aligned(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in headings:
            table.add_column(Text(heading), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)


def output(*, as_json: bool, verbose: bool) -> Output:
    kind = RichOutput if is_interactive() and _is_installed("rich") else Output
    return kind(as_json=as_json, verbose=verbose)


def reader(completions: Completions) -> ReadLine:
    """Return a function that reads lines from a terminal."""
    if _is_installed("prompt_toolkit"):
        return _by_prompt_toolkit(completions)
    _is_installed("readline")  # its import gives input() line editing and history
    return input


def _is_installed(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def _by_prompt_toolkit(completions: Completions) -> ReadLine:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion

    class Words(Completer):  # type: ignore[misc, unused-ignore]  # Any if prompt_toolkit is not installed
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            typed = document.text_before_cursor
            words = typed.split()
            last = "" if not words or typed[-1:].isspace() else words.pop()
            for word in completions(words):
                if word.startswith(last):
                    yield Completion(word, start_position=-len(last))

    session: PromptSession[Any] = PromptSession(completer=Words(), complete_while_typing=False)

    def read_line(prompt: str) -> str:
        line: str = session.prompt(prompt)
        return line

    return read_line
