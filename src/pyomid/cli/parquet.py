"""`pyomid export URL DEST`, `pyomid import SOURCE URL`: tables as Parquet files, without Spark."""

from __future__ import annotations

import argparse
import sys

from pyomid.cli.status import URL_HELP, add_tables, open_existing


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = commands.add_parser(
        "export",
        help="write tables as Parquet files, of one snapshot",
        description="Writes each table to a Parquet file in an absent or empty folder: the columns of its schema, or, "
        "without a schema, key, column and value of each cell. Needs pyarrow (pyomid[arrow]).",
    )
    export.add_argument("url", help=URL_HELP)
    export.add_argument("destination", help="an absent or empty folder")
    export.set_defaults(run=_export)
    load = commands.add_parser(
        "import",
        help="write Parquet files into tables",
        description="Writes exported files, or one Parquet file whose columns fit the table, in transactions of a "
        "bounded number of rows. Missing tables are created as they were exported. An interrupted import reports how "
        "many rows were committed.",
    )
    load.add_argument("source", help="a folder that pyomid export wrote, or one Parquet file")
    load.add_argument("url", help=URL_HELP)
    load.add_argument(
        "--over", action="store_true", help="allow tables with rows; rows with equal keys are overwritten"
    )
    load.set_defaults(run=_import)
    for parser in (export, load):
        add_tables(parser)


def _export(arguments: argparse.Namespace) -> int:
    with open_existing(arguments.url) as database:
        return _show(database.export_parquet(arguments.destination, arguments.tables))


def _import(arguments: argparse.Namespace) -> int:
    import pyomid

    with pyomid.connect(arguments.url) as database:
        try:
            return _show(database.import_parquet(arguments.source, arguments.tables, over=arguments.over))
        except BaseException as error:
            print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
            raise


def _show(counts: dict[str, int]) -> int:
    for name, count in counts.items():
        print(f"{name:<30} {count:>12,} rows")
    return 0
