"""`pyomid adopt URL TABLE FAMILY…`: an HBase table that was written without transactions becomes transactional."""

from __future__ import annotations

import argparse

from pyomid.errors import Misuse
from pyomid.types import ConflictLevel


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "adopt",
        help="make an existing HBase table transactional",
        description="Gives every cell a shadow cell and registers the table. Stop its writers first. Repeatable.",
    )
    parser.add_argument("url", help="omid+hbase://zk1:2181,zk2:2181/znode")
    parser.add_argument("table")
    parser.add_argument("families", nargs="+")
    parser.add_argument(
        "--conflict-level", choices=[level.value for level in ConflictLevel], default=ConflictLevel.CELL.value
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    import pyomid
    from pyomid.storage.hbase.adopt import adopt_range, check_adoptable
    from pyomid.storage.hbase.store import HBaseStore

    with pyomid.connect(arguments.url) as database:
        store = database.parts.store
        if not isinstance(store, HBaseStore):
            raise Misuse(f"{arguments.url} is not a database in HBase: there is nothing to adopt")
        check_adoptable(store, arguments.table, [family.encode() for family in arguments.families])
        newest_ts = database.parts.tso.begin().start_ts
        regions = store.regions(arguments.table)
        for number, region in enumerate(regions, 1):
            adopted = adopt_range(store, arguments.table, region, newest_ts)
            print(f"region {number} of {len(regions)}: {adopted} records adopted", flush=True)
        database.create_table(arguments.table, arguments.families, arguments.conflict_level, if_not_exists=True)
    print(f"{arguments.table} is transactional now")
    return 0
