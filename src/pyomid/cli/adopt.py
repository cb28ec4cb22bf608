"""`pyomid adopt URL TABLE FAMILY…`: an HBase table that was written without transactions becomes transactional."""

from __future__ import annotations

import argparse

from pyomid.cli.status import as_it_is
from pyomid.cli.tables import add_conflict_level

_OF_SPARK = "of-spark"
"""`--spark` without a master: the one of spark-submit or Spark's own configuration."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "adopt",
        help="make an existing HBase table transactional",
        description="Gives every cell a shadow cell and registers the table. Stop its writers first. Repeatable: what "
        "was adopted before is only read. The table is read once before anything is changed, and all that is to be "
        "mended is told together: tables that transactions have touched, families that keep too few versions, cells "
        "newer than the TSO's timestamps, and empty values, which transactions take for deletions.",
    )
    parser.add_argument("url", help="omid+hbase://zk1:2181,zk2:2181/znode")
    parser.add_argument("table", help="its name in HBase; ns:name in a namespace")
    parser.add_argument("families", nargs="+", help="those that transactions will use")
    add_conflict_level(parser)
    parser.add_argument(
        "--spark",
        nargs="?",
        const=_OF_SPARK,
        metavar="MASTER",
        help="as a Spark job, one task a region: at this master (local[4], yarn, spark://…), or at that of "
        "spark-submit; without it, region by region in this process. Give it after the other arguments",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.spark is None:
        return _run_here(arguments)
    return _run_on_spark(arguments, None if arguments.spark == _OF_SPARK else arguments.spark)


def _run_here(arguments: argparse.Namespace) -> int:
    import pyomid
    from pyomid.client.admin.import_table import (
        add_refusals,
        import_refusals,
        import_timestamp,
        refuse,
        register_imported,
    )
    from pyomid.client.admin.table_admin import new_level
    from pyomid.client.drive import Driver
    from pyomid.protocol.import_table import import_range_steps

    with pyomid.connect(arguments.url, **as_it_is(arguments.url)) as database:
        deployment, table = database.deployment, arguments.table
        level = new_level(deployment, table, arguments.conflict_level)
        newest_ts, found = import_timestamp(deployment, table, [family.encode() for family in arguments.families])
        if not newest_ts:
            print(f"{table} was transactional already: nothing was done")
            return 0
        regions = deployment.store.regions(table)
        for number, region in enumerate(regions, 1):
            add_refusals(found, import_refusals(deployment, Driver(deployment), table, region, newest_ts))
            print(f"region {number} of {len(regions)}: looked at", flush=True)
        refuse(table, found)
        for number, region in enumerate(regions, 1):
            done = Driver(deployment).run(import_range_steps(table, region, newest_ts))
            print(f"region {number} of {len(regions)}: {done.imported} of {done.records} records adopted", flush=True)
        register_imported(deployment, table, arguments.families, level)
    print(f"{table} is transactional now")
    return 0


def _run_on_spark(arguments: argparse.Namespace, master: str | None) -> int:
    import pyomid.spark

    pyomid.spark.use_this_python()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"pyomid adopt {arguments.table}")
    spark = (builder.master(master) if master else builder).getOrCreate()
    done = pyomid.spark.adopt(
        spark, arguments.url, arguments.table, arguments.families, conflict_level=arguments.conflict_level
    )
    print(done)
    pyomid.spark.close_connections()
    spark.stop()
    return 0
