"""Copies of a database, taken while it is in use.

`pyomid backup URL DEST` and `pyomid restore BACKUP URL` copy the whole database, with its versions.
`pyomid export URL DEST` and `pyomid import SOURCE URL` copy tables as Parquet files, without Spark.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from pyomid.cli.progress import progress_bar
from pyomid.cli.status import URL_HELP, add_tables, open_existing
from pyomid.errors import Misuse
from pyomid.protocol.timestamps import dated

if TYPE_CHECKING:
    from pyomid.types import Backup


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    backup = commands.add_parser(
        "backup",
        help="copy a database as of one moment, while it is in use",
        description="Copies the database as of one moment, while others read and write it: a folder to an absent or "
        "empty folder, a database in HBase to snapshots of its tables. The copy has everything committed before that "
        "moment, and each later transaction completely or not at all (over HBase: not at all).",
    )
    backup.add_argument("url", help=URL_HELP)
    backup.add_argument("destination", help="an absent or empty folder; over HBase a prefix of the snapshots' names")
    backup.add_argument(
        "--since",
        metavar="BACKUP",
        help="an earlier backup of the database: copy only the changes since that backup; a restore needs both",
    )
    backup.set_defaults(run=_back_up)
    restore = commands.add_parser(
        "restore",
        help="create a database from a backup",
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
    _add_parquet_commands(commands)


def _add_parquet_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = commands.add_parser(
        "export",
        help="write one snapshot of tables to Parquet files",
        description="Writes each table to a Parquet file in an absent or empty folder: the columns of its schema, or, "
        "without a schema, key, column and value of each cell. Needs pyarrow (pyomid[arrow]).",
    )
    export.add_argument("url", help=URL_HELP)
    export.add_argument("destination", help="an absent or empty folder")
    export.add_argument("--at", help="a past snapshot: a timestamp, a bookmark or a time (2030-01-31T10:00:00Z)")
    export.set_defaults(run=_export)
    load = commands.add_parser(
        "import",
        help="write Parquet files into tables",
        description="Writes exported files, or one Parquet file whose columns fit the table, in transactions of a "
        "bounded number of rows. Missing tables are created with their families, conflict level and schema, without "
        "indexes and times to live. An interrupted import reports how many rows were committed.",
    )
    load.add_argument("source", help="a folder that pyomid export wrote, or one Parquet file")
    load.add_argument("url", help=URL_HELP)
    load.add_argument(
        "--over", action="store_true", help="allow tables that have rows; rows with equal keys are overwritten"
    )
    load.set_defaults(run=_import)
    for parser in (export, load):
        add_tables(parser)


def _back_up(arguments: argparse.Namespace) -> int:
    with open_existing(arguments.url) as database:
        return _print_backup(database.backup(arguments.destination, since=arguments.since), arguments)


def _restore(arguments: argparse.Namespace) -> int:
    import pyomid

    with progress_bar("B") as bar:
        restored = pyomid.restore(arguments.backup, arguments.url, tables=_chosen(arguments), progress=bar)
    if not arguments.json:
        print(f"restored {arguments.url} from {arguments.backup}:")
    return _print_backup(restored, arguments)


def _chosen(arguments: argparse.Namespace) -> dict[str, str] | None:
    """Return a dict from each chosen table to its new name; --as chooses a table too. None means all tables."""
    if arguments.tables is None and not arguments.names:
        return None
    chosen = {name: name for name in arguments.tables or ()}
    for text in arguments.names:
        name, mark, new = text.partition("=")
        if not (name and mark and new):
            raise Misuse(f"--as {text!r} is not NAME=NEW")
        chosen[name] = new
    return chosen


def _print_backup(backup: Backup, arguments: argparse.Namespace) -> int:
    from pyomid.database.upkeep.jobs import count_text, number_text

    if arguments.json:
        print(json.dumps(asdict(backup), indent=2))
    else:
        megabytes = f"{number_text(backup.size_bytes / 1e6)} MB"
        size = count_text(len(backup.tables), "table") if backup.snapshots else megabytes
        print(f"{backup.folder} as of {backup.taken}, {size}")
        if backup.since is not None:
            print(f"holds only the changes since {backup.since}; keep both backups")
        print(f"contains all commits below {dated(backup.snapshot_ts)}")
        if backup.snapshots:
            print(f"tables     {' '.join(backup.tables)}\nsnapshots  {' '.join(backup.snapshots)}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    with open_existing(arguments.url) as database:
        return _print_rows(database.export_parquet(arguments.destination, arguments.tables, at=arguments.at))


def _import(arguments: argparse.Namespace) -> int:
    import pyomid

    with pyomid.connect(arguments.url) as database:
        try:
            with progress_bar("rows") as bar:
                counts = database.import_parquet(arguments.source, arguments.tables, over=arguments.over, progress=bar)
            return _print_rows(counts)
        except BaseException as error:
            print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
            raise


def _print_rows(counts: dict[str, int]) -> int:
    from pyomid.database.upkeep.jobs import table_text

    print(table_text(("table", "rows"), list(counts.items())))
    return 0
