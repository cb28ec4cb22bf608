"""`pyomid backup URL DEST`, `pyomid restore BACKUP URL`: copy a database in use, and make a database of the copy."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyomid.cli.status import URL_HELP, add_tables, open_existing
from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyomid.types import Backup


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    backup = commands.add_parser(
        "backup",
        help="copy a database as of one moment, while it is in use",
        description="Copies the database as of one moment, while others read and write it: a folder to an absent or "
        "empty folder, a database in HBase to snapshots of its tables. The copy has everything committed before, and "
        "each later transaction completely or not at all (over HBase: not at all).",
    )
    backup.add_argument("url", help=URL_HELP)
    backup.add_argument("destination", help="an absent or empty folder; over HBase a prefix of the snapshots' names")
    backup.add_argument(
        "--since",
        metavar="BACKUP",
        help="an earlier backup of the database: copy only what changed since; a restore needs both",
    )
    backup.set_defaults(run=_back_up)
    restore = commands.add_parser(
        "restore",
        help="make a database of a backup",
        description="Copies a backup, with the backups that it builds on, to an absent or empty folder. The result is "
        "another database: clients of the original one are refused. Over HBase, adds the backup's tables to a running "
        "database, in the same cluster or in one to which the snapshots were exported; none of the tables may exist.",
    )
    restore.add_argument("backup", help="destination of pyomid backup: a folder, or over HBase the prefix")
    restore.add_argument("url", help=URL_HELP)
    add_tables(restore, "over HBase: only this table; repeatable")
    restore.add_argument(
        "--as",
        action="append",
        default=[],
        dest="names",
        metavar="NAME=NEW",
        help="over HBase: restore this table under another name; repeatable",
    )
    restore.set_defaults(run=_restore)
    for parser in (backup, restore):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _back_up(arguments: argparse.Namespace) -> int:
    with open_existing(arguments.url) as database:
        return _show(database.backup(arguments.destination, since=arguments.since), arguments)


def _restore(arguments: argparse.Namespace) -> int:
    import pyomid

    restored = pyomid.restore(arguments.backup, arguments.url, tables=_chosen(arguments))
    if not arguments.json:
        print(f"restored {arguments.url} from {arguments.backup}:")
    return _show(restored, arguments)


def _chosen(arguments: argparse.Namespace) -> dict[str, str] | None:
    """Return table → its new name, for the chosen tables; --as chooses a table too. None: all tables."""
    if arguments.tables is None and not arguments.names:
        return None
    chosen = {name: name for name in arguments.tables or ()}
    for text in arguments.names:
        name, mark, new = text.partition("=")
        if not (name and mark and new):
            raise Misuse(f"--as {text!r} is not NAME=NEW")
        chosen[name] = new
    return chosen


def _show(backup: Backup, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(asdict(backup), indent=2))
    else:
        size = f"{backup.size_bytes / 1e6:,.1f} MB" if not backup.snapshots else f"{len(backup.tables)} tables"
        print(f"{backup.folder} as of {backup.taken}, {size}")
        if backup.since is not None:
            print(f"holds only changes since {backup.since}: keep both")
        print(f"contains all commits below {backup.snapshot_ts}")
        if backup.snapshots:
            print(f"tables     {' '.join(backup.tables)}\nsnapshots  {' '.join(backup.snapshots)}")
    return 0
