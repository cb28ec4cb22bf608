"""`pyomid compact|sanitize|verify URL`: upkeep without Spark, for a terminal and for a scheduler."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from pyomid.cli.status import add_url, as_it_is


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compact = _command(
        commands,
        "compact",
        "drop versions that no snapshot needs",
        "Writes missing shadow cells, drops orphans and versions that no snapshot above W needs, and records how far "
        "each region is clean. It may run beside readers and writers. It says what holds W back, and until when.",
    )
    _add_tables(compact)
    compact.add_argument(
        "--grace-seconds",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="where Java clients share the store: clean by the W of so long ago, the longest Java transaction",
    )
    _command(
        commands,
        "sanitize",
        "delete commit-table entries that no reader needs",
        "Moves the horizon H as far as every table is compacted, and deletes the entries below it. It says which table "
        "holds H back, and when a further run helps.",
    )
    verify = _command(
        commands,
        "verify",
        "read everything and report what breaks an invariant",
        "Reads every cell and every commit-table entry. It writes nothing. The exit status is 1 where an invariant is "
        "broken.",
    )
    _add_tables(verify)


def _command(commands: Any, name: str, text: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=description)
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)
    return parser


def _add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", action="append", dest="tables", metavar="NAME", help="only this table; repeatable")


def run(arguments: argparse.Namespace) -> int:
    import pyomid

    with pyomid.connect(arguments.url, **as_it_is(arguments.url)) as database:
        report: Any
        match arguments.command:
            case "compact":
                report = database.compact(arguments.tables, grace_seconds=arguments.grace_seconds)
            case "sanitize":
                report = database.sanitize()
            case _:
                report = database.verify(arguments.tables)
    print(json.dumps(asdict(report), indent=2) if arguments.json else report)
    return 0 if getattr(report, "ok", True) else 1
