"""`pyomid shell URL`: work with tables and transactions interactively and in scripts.

This module reads lines and prints results. On a terminal it uses prompt_toolkit and rich, if they are installed (extra
pyomid[shell]); otherwise, and for files and pipes, it uses `input` and `print`. `shell_text` splits a line, and
converts keys and values to and from text. `shell_session` has the commands, on one database and at most one open
transaction.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyomid.cli.status import URL_HELP, open_existing

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document

ReadLine = Callable[[str], str]
"""A function that shows a prompt and returns the line. It raises EOFError at the end of input, and KeyboardInterrupt
after Ctrl-C."""

Completions = Callable[[Sequence[str]], Sequence[str]]
"""A function that returns the words that may follow the words of a line."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "shell",
        help="get, put, delete and scan rows, in transactions",
        description="Reads commands, one per line, from the terminal, from -c, or from standard input; `help` lists "
        "them. A script stops at its first error with exit status 1, and its open transaction is rolled back. The "
        "extra pyomid[shell] adds completion, history and tables that fit the terminal.",
    )
    parser.add_argument("url", help=URL_HELP)
    parser.add_argument(
        "-c", "--command", action="append", metavar="LINE", help="run this command and exit; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print rows as JSON, one per line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyomid.cli.shell_session import Session

    with open_existing(arguments.url) as database:
        if arguments.command or not is_interactive():
            lines: Iterable[str] = arguments.command or script_lines()
            with Session(database, output(as_json=arguments.json, verbose=False)) as session:
                return session.run_script(lines)
        with Session(database, output(as_json=arguments.json, verbose=True)) as session:
            return session.run_interactively(reader(session.words_to_complete))


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def script_lines() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    yield from sys.stdin


class Output:
    """Prints results to standard output and errors to standard error. If `is_verbose`, it also confirms each action,
    for interactive use."""

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
        from pyomid.database.upkeep.jobs import table_text

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
