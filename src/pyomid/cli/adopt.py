"""`pyomid adopt URL TABLE FAMILY…`: make an HBase table that was written without transactions transactional."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyomid.cli.status import CLUSTER_URL_HELP, open_existing
from pyomid.cli.tables import TABLE_NAME_HELP, add_conflict_level

if TYPE_CHECKING:
    from pyomid.client.admin.import_table import Refusals
    from pyomid.protocol.import_table import RangeImported
    from pyomid.types import KeyRange

_OF_SPARK = "of-spark"
"""Value of `--spark` without a master: use the master of spark-submit or of Spark's configuration."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.spark is None:
        return _run_here(arguments)
    return _run_on_spark(arguments, None if arguments.spark == _OF_SPARK else arguments.spark)


def _run_here(arguments: argparse.Namespace) -> int:
    from pyomid.client.admin.import_table import import_refusals, imported
    from pyomid.client.drive import Driver
    from pyomid.protocol.import_table import import_range_steps

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
                done = Driver(deployment).run(import_range_steps(table, region, newest_ts))
                yield done
                print(
                    f"region {number} of {len(regions)}: {done.imported} of {done.records} records adopted", flush=True
                )

        done = imported(deployment, table, arguments.families, arguments.conflict_level, check, load)
    print(f"{table} is already transactional: nothing to do" if done is None else f"{table} is now transactional")
    return 0


def _run_on_spark(arguments: argparse.Namespace, master: str | None) -> int:
    from pyspark.sql import SparkSession

    from pyomid.spark import connect

    builder = SparkSession.builder.appName(f"pyomid adopt {arguments.table}")
    spark = (builder.master(master) if master else builder).getOrCreate()
    db = connect(spark, arguments.url)
    print(db.adopt(arguments.table, arguments.families, conflict_level=arguments.conflict_level))
    db.close()
    spark.stop()
    return 0
