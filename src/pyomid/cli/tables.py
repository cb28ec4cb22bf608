"""Commands for tables, and for the setup of a database in HBase.

pyomid init URL                      create the tables that a database in HBase needs before its first client
pyomid tables URL …                  list, create, register, alter and drop tables; find unregistered tables
pyomid adopt URL TABLE FAMILY…       make an HBase table that was written without transactions transactional
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyomid.cli.status import CLUSTER_URL_HELP, URL_HELP, open_existing, table_lines
from pyomid.config import HBaseAddress, parse_url
from pyomid.errors import Misuse
from pyomid.types import TABLES_UNCONFIRMED, TIMESTAMP_STEP, ConflictLevel, TableInfo, TableState

if TYPE_CHECKING:
    from pyomid.database.database import Database
    from pyomid.database.foreign_tables import Discovery, Refusals
    from pyomid.omid.hbase.catalog import HBaseCatalog
    from pyomid.omid.hbase.cluster import Cluster
    from pyomid.ports import Deployment
    from pyomid.protocol.import_table import RangeImported
    from pyomid.types import KeyRange


ANY_LEVEL: Final = "any"
TABLE_NAME_HELP: Final = "its name in HBase; ns:name in a namespace"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tables",
        help="list, create, register, alter and drop tables",
        description="Lists the tables, or does what the action says. The URL may also follow the action.",
    )
    parser.add_argument("url", help=URL_HELP)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    actions.add_parser("list", help="list tables with their families and conflict level (the default)")
    create = actions.add_parser("create", help="create a table")
    create.add_argument("name", help="a new name; over HBase also ns:name, in a namespace that exists")
    create.add_argument("families", nargs="*", help="its column families (default: d)")
    add_conflict_level(create)
    create.add_argument("--ttl", metavar="SECONDS", type=float, help="values expire this long after their commit")
    create.add_argument("--if-not-exists", action="store_true", help="do nothing if the table exists")
    create.add_argument("--no-create", action="store_true", help="fail if the folder holds no database")
    create.add_argument(
        "--split-key",
        action="append",
        default=[],
        dest="split_keys",
        metavar="KEY",
        help="over HBase: a row key at which a region begins; \\xNN is a byte; repeatable",
    )
    register = actions.add_parser(
        "register", help="register a table that a Java client created, so that it is compacted"
    )
    register.add_argument("name", help=TABLE_NAME_HELP)
    register.add_argument("families", nargs="+", help="its column families")
    add_conflict_level(
        register, "conflict level of the Java clients that write the table (their default: cell); required"
    )
    unregister = actions.add_parser(
        "unregister",
        help="undo a registration; the table and its rows stay",
        description="Sanitizing is refused until the table is registered again, or is dropped and forgotten: commits "
        "to it may need their entries in the commit table.",
    )
    unregister.add_argument("name")
    alter = actions.add_parser(
        "alter",
        help="change the conflict level, the time to live or the columns of a table in use",
        description="Transactions that write the table and began before the change abort and must be rerun. All "
        "options for columns are one change; they touch no data.",
    )
    alter.add_argument("name")
    add_conflict_level(alter, "the new level")
    alter.add_argument(
        "--ttl", metavar="SECONDS", type=float, help="values expire this long after their commit; 0: never"
    )
    alter.add_argument("--rename", metavar="NAME=NEW", action="append", default=[], help="rename a column; repeatable")
    alter.add_argument(
        "--drop", metavar="NAME", action="append", default=[], help="drop a column, irreversibly; repeatable"
    )
    alter.add_argument(
        "--widen",
        metavar="NAME=TYPE",
        action="append",
        default=[],
        help="widen a column, for example integer to long; repeatable",
    )
    alter.add_argument("--add", metavar="NAME=TYPE", action="append", default=[], help="add a column; repeatable")
    alter.add_argument("--order", metavar="NAME,…", help="columns to put first")
    drop = actions.add_parser("drop", help="drop a table and all its rows")
    drop.add_argument("name")
    drop.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    actions.add_parser(
        "discover", help="list unregistered HBase tables that transactions wrote, with the commands to register them"
    )
    confirm = actions.add_parser(
        "confirm", help="confirm that every table served by a Java TSO is registered, so that sanitize may continue"
    )
    confirm.add_argument("--yes", action="store_true", help="even if `discover` finds unregistered tables")
    forget = actions.add_parser(
        "forget", help="remove the mark of a table that HBase no longer has, so that sanitize may continue"
    )
    forget.add_argument("name", help="the table's former name")
    parser.set_defaults(run=run)
    _add_init(commands)
    _add_adopt(commands)


def add_conflict_level(
    parser: argparse.ArgumentParser,
    text: str = "transactions conflict if both write the same cell or row (default: the deployment's, else cell)",
) -> None:
    levels = [level.value for level in ConflictLevel]
    parser.add_argument("--conflict-level", choices=levels, help=text)


def run(arguments: argparse.Namespace) -> int:
    import pyomid
    from pyomid.database.foreign_tables import discover, forget
    from pyomid.database.table_admin import register_table, unregister_table
    from pyomid.database.upkeep.unfinished import unfinished_changes
    from pyomid.rows.schema import DEFAULT_FAMILY

    may_make = arguments.action == "create" and not arguments.no_create
    with pyomid.connect(arguments.url) if may_make else open_existing(arguments.url) as database:
        match arguments.action:
            case "create":
                database.create_table(
                    arguments.name,
                    arguments.families or [DEFAULT_FAMILY],
                    conflict_level=arguments.conflict_level,
                    if_not_exists=arguments.if_not_exists,
                    split_keys=[_key(text) for text in arguments.split_keys],
                    ttl_seconds=arguments.ttl,
                )
            case "register":
                level = arguments.conflict_level
                register_table(database._core.deployment, arguments.name, arguments.families, conflict_level=level)
            case "unregister":
                unregister_table(database._core.deployment, arguments.name)
            case "alter":
                _alter(database, arguments)
            case "drop":
                if arguments.name not in [info.name for info in _half_dropped(database._core.deployment)]:
                    database.table_info(arguments.name)
                if not arguments.yes and not _is_confirmed(arguments.name):
                    print("nothing was dropped")
                    return 1
                database.drop_table(arguments.name)
            case "discover":
                found = _found(database._core.deployment, discover(database._core.deployment), arguments.url)
                print("\n".join(found) or "every table is registered")
            case "confirm":
                return _confirm(database._core.deployment, arguments.url, anyway=arguments.yes)
            case "forget":
                forget(database._core.deployment, arguments.name)
            case _:
                lines = [
                    *table_lines(database.tables()),
                    *_half_dropped_lines(database._core.deployment, arguments.url),
                    *unfinished_changes(database._core.deployment, arguments.url),
                ]
                print("\n".join(lines) or "no tables")
    return 0


def _alter(database: Database, arguments: argparse.Namespace) -> None:
    pairs = {name: _pairs(name, getattr(arguments, name)) for name in ("rename", "widen", "add")}
    order = [name.strip() for name in (arguments.order or "").split(",") if name.strip()]
    columns = bool(any(pairs.values()) or arguments.drop or order)
    if not columns and arguments.conflict_level is None and arguments.ttl is None:
        raise Misuse(
            f"table {arguments.name!r}: no change was given; give --conflict-level, --ttl, --rename, --drop, …"
        )
    if columns:
        database.alter_columns(arguments.name, drop=arguments.drop, order=order, **pairs)
    if arguments.conflict_level is not None or arguments.ttl is not None:
        database.alter_table(arguments.name, conflict_level=arguments.conflict_level, ttl_seconds=arguments.ttl)


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for (name, equals, value), text in zip(pairs, texts, strict=True):
        if not (name and equals and value):
            raise Misuse(f"--{option} {text!r} is not NAME=…", option=option)
    return {name: value for name, _, value in pairs}


def _key(text: str) -> bytes:
    r"""Return a row key that is given in the format of HBase's shell, where `\xNN` is a byte."""
    return re.sub(rb"\\x([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), text.encode())


def _half_dropped(deployment: Deployment) -> list[TableInfo]:
    """Return the tables whose drop is unfinished; they block sanitizing."""
    return [entry.info for entry in deployment.catalog.entries() if entry.state is TableState.DROPPING]


def _half_dropped_lines(deployment: Deployment, url: str) -> Iterator[str]:
    for info in _half_dropped(deployment):
        finish = shlex.join(["pyomid", "tables", url, "drop", info.name])
        yield f"  {info.name}   its drop is unfinished and blocks sanitizing; to finish it: {finish}"


def _found(deployment: Deployment, discovery: Discovery, url: str) -> Iterator[str]:
    """Yield the commands that register the discovered tables, and a comment for each table id that a commit named but
    no table has."""
    known = deployment.catalog.tables_level()
    level = ["--conflict-level", "LEVEL" if known is None else known.value]
    if discovery.tables and known is None:
        yield "# LEVEL: cell (Apache Omid's default) or row, the same as in the programs that write the table"
    for table in discovery.tables:
        yield shlex.join(["pyomid", "tables", url, "register", table.name, *table.families, *level])
    for mark in discovery.unnamed:
        yield (
            f"# a commit named the table id {mark}, but no table has it. If the table was dropped: "
            f"{shlex.join(['pyomid', 'tables', url, 'forget'])} NAME"
        )


def _confirm(deployment: Deployment, url: str, *, anyway: bool) -> int:
    """Remove the mark "tables not confirmed". The mark's nonce is read before the tables are listed: if a Java TSO
    leads in between, the mark has another nonce and stays."""
    from pyomid.database.foreign_tables import Discovery, confirm, discover

    nonce = deployment.catalog.unknown_tables().get(TABLES_UNCONFIRMED)
    if nonce is None:
        print("nothing to confirm")
        return 0
    found = discover(deployment).tables
    if found and not anyway:
        print("\n".join(_found(deployment, Discovery(found, []), url)))
        print("# not confirmed: register these tables first, or give --yes")
        return 1
    confirm(deployment, nonce)
    print("confirmed")
    return 0


def _is_confirmed(name: str) -> bool:
    try:
        return input(f"Drop table {name} with all its rows? Type its name: ").strip() == name
    except EOFError:
        return False


_OF_SPARK = "of-spark"
"""Value of `--spark` without a master: use the master of spark-submit or of Spark's configuration."""


def _add_adopt(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "adopt",
        help="make an existing HBase table transactional",
        description="Gives every cell a shadow cell and registers the table. Stop its writers first. Before it changes "
        "anything, the command reads the whole table and reports all that must be fixed: cells that transactions "
        "wrote, families that keep too few versions, cells newer than the TSO's timestamps, and empty values, which "
        "transactions read as deletions. Rerunning it is safe.",
    )
    parser.add_argument("url", help=CLUSTER_URL_HELP)
    parser.add_argument("table", help=TABLE_NAME_HELP)
    parser.add_argument("families", nargs="+", help="column families that transactions will use")
    add_conflict_level(parser)
    parser.add_argument(
        "--spark",
        nargs="?",
        const=_OF_SPARK,
        metavar="MASTER",
        help="run as a Spark job with one task per region, on this master (local[4], yarn, spark://…) or on that of "
        "spark-submit; without this option, region by region in this process. Must follow the other arguments",
    )
    parser.set_defaults(run=_adopt)


def _adopt(arguments: argparse.Namespace) -> int:
    if arguments.spark is not None:
        return _adopt_on_spark(arguments, None if arguments.spark == _OF_SPARK else arguments.spark)
    from pyomid.database.driver import Driver
    from pyomid.database.foreign_tables import import_refusals, imported
    from pyomid.database.upkeep.jobs import number_text
    from pyomid.protocol.import_table import import_range

    with open_existing(arguments.url) as database:
        deployment, table = database._core.deployment, arguments.table
        regions: list[KeyRange] = []

        def check(newest_ts: int) -> Iterator[Refusals]:
            regions.extend(deployment.store.regions(table))
            for number, region in enumerate(regions, 1):
                yield import_refusals(deployment, Driver(deployment), table, region, newest_ts)
                print(f"region {number} of {len(regions)}: checked", flush=True)

        def load(newest_ts: int) -> Iterator[RangeImported]:
            for number, region in enumerate(regions, 1):
                done = Driver(deployment).run(import_range(table, region, newest_ts))
                yield done
                adopted = f"{number_text(done.imported)} of {number_text(done.records)} records adopted"
                print(f"region {number} of {len(regions)}: {adopted}", flush=True)

        done = imported(deployment, table, arguments.families, arguments.conflict_level, check, load)
    print(f"{table} is already transactional: nothing to do" if done is None else f"{table} is now transactional")
    return 0


def _adopt_on_spark(arguments: argparse.Namespace, master: str | None) -> int:
    from pyomid.spark import spark_extra

    with spark_extra():
        from pyspark.sql import SparkSession

        from pyomid.spark import connect

    builder = SparkSession.builder.appName(f"pyomid adopt {arguments.table}")
    spark = (builder.master(master) if master else builder).getOrCreate()
    db = connect(spark, arguments.url)
    print(db.adopt(arguments.table, arguments.families, conflict_level=arguments.conflict_level))
    db.close()
    spark.stop()
    return 0


def _add_init(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
        help="number of regions of a new commit table (default: %(default)s, like Apache Omid's)",
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
    parser.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> int:
    address, settings = parse_url(arguments.url)
    if not isinstance(address, HBaseAddress):
        if arguments.conflict_level is not None:
            raise Misuse(
                "--conflict-level is only for a database over HBase; in this database each table has its own level"
            )
        print("nothing to do: the first client creates this kind of database")
        return 0
    from pyomid.omid.hbase.catalog import HBaseCatalog
    from pyomid.omid.hbase.deployment import create_database, hbase_options, open_cluster
    from pyomid.omid.hbase.leader_state import chosen_ceiling

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
    """Move the epoch and the ceiling above the backup's timestamps, as a takeover does. This deposes a running TSO."""
    from pyomid.errors import Unavailable
    from pyomid.omid.hbase.backup import HBaseRestore
    from pyomid.omid.hbase.leader_state import HBaseLeaderState, chosen_ceiling

    newest_ts = HBaseRestore(cluster, backup).manifest.newest_ts
    epoch = newest_ts + -newest_ts % TIMESTAMP_STEP
    store, state = chosen_ceiling(cluster, ceiling), HBaseLeaderState(cluster)
    found, record = store.read(), state.read()
    if max(found, record.ceiling, record.epoch) >= epoch:
        print(f"timestamps are above those of the backup {backup}")
        return
    has_moved = state.take_over(expected=record.epoch, epoch=epoch, ceiling=epoch)
    if not has_moved or not store.compare_and_set(found, epoch):
        raise Unavailable("a TSO took over during this command: stop every TSO, then rerun this command")
    print(f"timestamps start above {epoch}, the newest of the backup {backup}")


def chosen_level(catalog: HBaseCatalog, wanted: str | None) -> str:
    """Set and return the conflict level of all tables. Without `wanted`, the level stays; a new database gets Apache
    Omid's level."""
    from pyomid.database.table_admin import choose_tables_level

    if wanted is None and not catalog.has_tables_level() and not catalog.entries():
        wanted = ConflictLevel.CELL.value
    if wanted is not None:
        choose_tables_level(catalog, None if wanted == ANY_LEVEL else ConflictLevel(wanted))
    level = catalog.tables_level()
    return ANY_LEVEL if level is None else level.value
