"""`pyomid shell URL`: tables and transactions by hand, and by scripts.

`words`: what a line says. `rows`: keys and values as text, by a table's schema. `session`: the commands, over one
database and at most one open transaction. `terminal`: where lines come from and rows go.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyomid.cli.status import add_url, as_it_is

if TYPE_CHECKING:
    from collections.abc import Iterable


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "shell",
        help="get, put, delete and scan rows, in transactions",
        description="Reads commands from the terminal, from -c, or from standard input, a line each; `help` lists "
        "them. A script ends at its first error with exit status 1, and a transaction that it left open is rolled "
        "back. With the extra pyomid[shell] a terminal has completion, history and tables that fit it.",
    )
    add_url(parser)
    parser.add_argument(
        "-c", "--command", action="append", metavar="LINE", help="this command and no others; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="rows as JSON, one a line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import pyomid
    from pyomid.cli.shell.session import Session
    from pyomid.cli.shell.terminal import is_interactive, output, reader, script_lines

    with pyomid.connect(arguments.url, **as_it_is(arguments.url)) as database:
        if arguments.command or not is_interactive():
            lines: Iterable[str] = arguments.command or script_lines()
            with Session(database, output(as_json=arguments.json, told=False)) as session:
                return session.run_script(lines)
        with Session(database, output(as_json=arguments.json, told=True)) as session:
            return session.talk(reader(session.words_to_complete))
