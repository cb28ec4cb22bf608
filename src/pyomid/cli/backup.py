"""`pyomid backup URL DEST`, `pyomid restore BACKUP URL`: a copy of a folder in use, and a database made of it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyomid.cli.status import as_it_is

if TYPE_CHECKING:
    from pyomid.types import Backup


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    backup = commands.add_parser(
        "backup",
        help="copy a folder as of one moment, while it is in use",
        description="Copies the database, as of one moment, into an absent or empty folder, beside readers and "
        "writers. All that was committed before is in it, and of each later transaction all or nothing.",
    )
    backup.add_argument("url", help="omid:///folder")
    backup.add_argument("destination", help="an absent or empty folder")
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
        "database than the one that was backed up: who has that one open is refused in it.",
    )
    restore.add_argument("backup", help="what pyomid backup made")
    restore.add_argument("url", help="omid:///folder")
    restore.set_defaults(run=_restore)
    for parser in (backup, restore):
        parser.add_argument("--json", action="store_true", help="for programs")


def _back_up(arguments: argparse.Namespace) -> int:
    import pyomid

    with pyomid.connect(arguments.url, **as_it_is(arguments.url)) as database:
        return _show(database.backup(arguments.destination, since=arguments.since), arguments)


def _restore(arguments: argparse.Namespace) -> int:
    import pyomid

    return _show(pyomid.restore(arguments.backup, arguments.url), arguments)


def _show(backup: Backup, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(asdict(backup), indent=2))
    else:
        print(f"{backup.folder} as of {backup.taken}, {backup.size_bytes / 1e6:,.1f} MB")
        if backup.since is not None:
            print(f"what changed since {backup.since}: keep both")
        print(f"all commits below {backup.snapshot_ts} are in it")
    return 0
