"""`pyomid backup URL DEST`, `pyomid restore BACKUP URL`: a copy of a database in use, and a database made of it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyomid.cli.status import as_it_is
from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyomid.types import Backup


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    backup = commands.add_parser(
        "backup",
        help="copy a database as of one moment, while it is in use",
        description="Copies the database, as of one moment, beside readers and writers: a folder into an absent or "
        "empty one, and what lies in HBase into snapshots of its tables. All that was committed before is in it, and "
        "of each later transaction all or nothing; over HBase nothing.",
    )
    backup.add_argument("url", help="omid:///folder or omid+hbase://zk1:2181,zk2:2181/znode")
    backup.add_argument(
        "destination", help="an absent or empty folder; over HBase a word, with which the snapshots' names begin"
    )
    backup.add_argument(
        "--since",
        metavar="BACKUP",
        help="an earlier back-up of it: keep what changed since then, to be restored together with that one",
    )
    backup.set_defaults(run=_back_up)
    restore = commands.add_parser(
        "restore",
        help="make a database of a back-up",
        description="Copies a back-up, with those that it goes on from, into an absent or empty folder. It is another "
        "database than the one that was backed up: who has that one open is refused in it. Over HBase it makes the "
        "back-up's tables tables of a database that serves, of the same cluster or of another one to which the "
        "snapshots were exported; none of them may be there.",
    )
    restore.add_argument("backup", help="what pyomid backup made: a folder, or over HBase the word")
    restore.add_argument("url", help="omid:///folder or omid+hbase://zk1:2181,zk2:2181/znode")
    restore.add_argument(
        "--table", action="append", dest="tables", metavar="NAME", help="over HBase: only this table; repeatable"
    )
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
        parser.add_argument("--json", action="store_true", help="for programs")


def _back_up(arguments: argparse.Namespace) -> int:
    import pyomid

    with pyomid.connect(arguments.url, **as_it_is(arguments.url)) as database:
        return _show(database.backup(arguments.destination, since=arguments.since), arguments)


def _restore(arguments: argparse.Namespace) -> int:
    import pyomid

    restored = pyomid.restore(arguments.backup, arguments.url, tables=_chosen(arguments))
    if not arguments.json:
        print(f"{arguments.url} is made of {arguments.backup}:")
    return _show(restored, arguments)


def _chosen(arguments: argparse.Namespace) -> dict[str, str] | None:
    """Name → new name, of the tables that were named. A table that gets another name is one of them."""
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
            print(f"what changed since {backup.since}: keep both")
        print(f"all commits below {backup.snapshot_ts} are in it")
        if backup.snapshots:
            print(f"tables     {' '.join(backup.tables)}\nsnapshots  {' '.join(backup.snapshots)}")
    return 0
