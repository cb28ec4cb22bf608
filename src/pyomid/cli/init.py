"""`pyomid init URL`: create what a database needs before its first client."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from pyomid.cli.status import CLUSTER_URL_HELP
from pyomid.config import HBaseAddress, parse_url
from pyomid.errors import Misuse
from pyomid.types import TIMESTAMP_STEP, ConflictLevel

if TYPE_CHECKING:
    from pyomid.storage.hbase.catalog import HBaseCatalog
    from pyomid.storage.hbase.cluster import Cluster

ANY_LEVEL: Final = "any"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "init",
        help="create the tables of a database in HBase, once; other databases need no preparation",
        description="Idempotent. Tables that Apache Omid's own tool created are used unchanged. If the URL's option "
        "ceiling differs from before, the timestamp ceiling moves there: stop every TSO first.",
    )
    parser.add_argument("url", help=CLUSTER_URL_HELP)
    parser.add_argument(
        "--commit-table-regions",
        type=int,
        default=16,
        help="regions of a new commit table (default: %(default)s, as Apache Omid's)",
    )
    parser.add_argument(
        "--conflict-level",
        choices=[*(level.value for level in ConflictLevel), ANY_LEVEL],
        help="the level of all tables, which must be that of the Java clients that write them (their requests do not "
        "name it); any: each table has its own level, and no Java client may write (default: unchanged; for a new "
        "database cell, Apache Omid's default)",
    )
    parser.add_argument(
        "--above-backup",
        metavar="NAME",
        help="let timestamps begin above those of this backup, so that it can be restored here: stop every TSO first",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    address, settings = parse_url(arguments.url)
    if not isinstance(address, HBaseAddress):
        if arguments.conflict_level is not None:
            raise Misuse("--conflict-level is for a database in HBase: in this one each table has its own level")
        print("nothing to do: the first client creates this kind of database")
        return 0
    from pyomid.storage.hbase.catalog import HBaseCatalog
    from pyomid.storage.hbase.deployment import chosen_ceiling, create_database, hbase_options, open_cluster

    deadline_s = settings.store_retry_seconds
    cluster = open_cluster(address.quorum, address.znode, hbase_options(settings), deadline_s=deadline_s)
    try:
        made = create_database(cluster, commit_table_regions=arguments.commit_table_regions)
        chosen_ceiling(cluster, settings.ceiling).move_here()
        level = chosen_level(HBaseCatalog(cluster), arguments.conflict_level)
        if arguments.above_backup is not None:
            _go_above(cluster, settings.ceiling, arguments.above_backup)
    finally:
        cluster.close()
    print(f"created {', '.join(made)}" if made else "all tables exist already")
    print(f"conflict level of all tables: {level}")
    print(f"next: pyomid tso --listen HOST:24758 --store '{arguments.url}'")
    return 0


def _go_above(cluster: Cluster, ceiling: str, backup: str) -> None:
    """Move epoch and ceiling above the backup's timestamps, as a takeover does. That deposes a running TSO."""
    from pyomid.errors import Unavailable
    from pyomid.storage.hbase.backup import HBaseRestore
    from pyomid.storage.hbase.deployment import chosen_ceiling
    from pyomid.storage.hbase.leader_state import HBaseLeaderState

    newest_ts = HBaseRestore(cluster, backup).manifest.newest_ts
    epoch = newest_ts + -newest_ts % TIMESTAMP_STEP
    store, state = chosen_ceiling(cluster, ceiling), HBaseLeaderState(cluster)
    found, record = store.read(), state.read()
    if max(found, record.ceiling, record.epoch) >= epoch:
        print(f"timestamps are above those of the backup {backup}")
        return
    has_moved = state.take_over(expected=record.epoch, epoch=epoch, ceiling=epoch)
    if not has_moved or not store.compare_and_set(found, epoch):
        raise Unavailable("a TSO took over meanwhile: stop every TSO, then rerun this command")
    print(f"timestamps start above {epoch}, the newest of the backup {backup}")


def chosen_level(catalog: HBaseCatalog, wanted: str | None) -> str:
    """Set and return the level of all tables. Without `wanted` it stays; that of a new database is Apache Omid's."""
    from pyomid.client.table_admin import choose_tables_level

    if wanted is None and not catalog.has_tables_level() and not catalog.entries():
        wanted = ConflictLevel.CELL.value
    if wanted is not None:
        choose_tables_level(catalog, None if wanted == ANY_LEVEL else ConflictLevel(wanted))
    level = catalog.tables_level()
    return ANY_LEVEL if level is None else level.value
