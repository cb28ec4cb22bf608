"""`pyomid shell URL`: work with tables and transactions interactively and in scripts.

`text` splits a line, and converts keys and values to and from text, by a table's schema. `session` has the commands, on
one database and at most one open transaction. `terminal` reads lines and prints results.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyomid.cli.status import URL_HELP, open_existing

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    from pyomid.cli.shell.session import Session
    from pyomid.cli.shell.terminal import is_interactive, output, reader, script_lines

    with open_existing(arguments.url) as database:
        if arguments.command or not is_interactive():
            lines: Iterable[str] = arguments.command or script_lines()
            with Session(database, output(as_json=arguments.json, verbose=False)) as session:
                return session.run_script(lines)
        with Session(database, output(as_json=arguments.json, verbose=True)) as session:
            return session.run_interactively(reader(session.words_to_complete))
