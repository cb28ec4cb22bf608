"""`pyomid tables URL …`: list, create, register and drop tables."""

from __future__ import annotations

import argparse

from pyomid.cli.status import table_lines
from pyomid.types import ConflictLevel


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("tables", help="list, create, register and drop tables")
    parser.add_argument("url", help="omid:///folder or omid+hbase://zk1:2181,zk2:2181/znode")
    actions = parser.add_subparsers(dest="action", metavar="list | create | register | drop")
    actions.add_parser("list", help="every table with its families and conflict level (the default)")
    create = actions.add_parser("create", help="a new table")
    create.add_argument("name", help="a new name")
    create.add_argument("families", nargs="+", help="its column families")
    create.add_argument(
        "--conflict-level",
        choices=[level.value for level in ConflictLevel],
        default=ConflictLevel.CELL.value,
        help="transactions conflict where they both write this (default: cell)",
    )
    create.add_argument("--if-not-exists", action="store_true", help="a table that is there already is no error")
    register = actions.add_parser("register", help="a table that a Java client made: from now on it is cleaned too")
    register.add_argument("name", help="its name in HBase; ns:name in a namespace")
    register.add_argument("families", nargs="+", help="its column families")
    register.add_argument(
        "--conflict-level",
        choices=[level.value for level in ConflictLevel],
        default=ConflictLevel.CELL.value,
        help="that of the Java clients that write it (default: cell, as theirs)",
    )
    drop = actions.add_parser("drop", help="a table and all its rows")
    drop.add_argument("name")
    drop.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import pyomid

    with pyomid.connect(arguments.url) as database:
        match arguments.action:
            case "create":
                database.create_table(
                    arguments.name,
                    arguments.families,
                    arguments.conflict_level,
                    if_not_exists=arguments.if_not_exists,
                )
            case "register":
                database.create_table(arguments.name, arguments.families, arguments.conflict_level, if_not_exists=True)
            case "drop":
                database.table_info(arguments.name)
                if not arguments.yes and not _agreed(arguments.name):
                    print("nothing was dropped")
                    return 1
                database.drop_table(arguments.name)
            case _:
                print("\n".join(table_lines(database.tables())) or "no tables")
    return 0


def _agreed(name: str) -> bool:
    try:
        return input(f"Drop table {name} with all its rows? Type its name: ").strip() == name
    except EOFError:
        return False
