"""Spark over HBase: what snapshots and commits cost beside Spark's raw reads and writes over the same client.

Flights of 2013, 19 columns, two partitions, a real HBase. The peers are those of the embedded store: the same decoder
without visibility, the same writer without transaction.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks._report import Report
from benchmarks.hbase.run import our_tso
from benchmarks.spark._peers import Raw
from benchmarks.spark._setting import KEY, PARTS, Setting, setting
from benchmarks.spark.reads import aggregate, count, settle
from benchmarks.spark.reads import write as write_flights
from benchmarks.spark.writes import write, write_plainly

import pyomid
from pyomid.cli.hbase import HBaseServer
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.deployment import create_database
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.rows.schema import DEFAULT_FAMILY
from pyomid.spark.connections import connection
from pyomid.types import KeyRange

RUNS = 3
ACTIONS = {"count": count, "aggregate": aggregate}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--regions", default="3,300", help="tables of so many regions, read too; default: %(default)s")
    parser.add_argument("--only", default="writes,reads,regions", help="default: %(default)s")
    parser.add_argument("--actions", default="count,aggregate", help="of tables with regions; default: %(default)s")
    arguments = parser.parse_args()
    report = Report(f"Spark over HBase: {arguments.rows} rows of 19 columns, local[{PARTS}]")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, database(Path(name)) as url:
        with setting(url=url) as whole:
            flights = whole.flights.limit(arguments.rows).repartition(PARTS).cache()
            at = replace(whole, flights=flights, rows=flights.count())
            at.spark.dataSource.register(Raw)
            parts = arguments.only.split(",")
            if "writes" in parts:
                writes(report, at)
            if "reads" in parts or "regions" in parts:
                write_flights(at, at.flights)
            if "reads" in parts:
                reads(report, at, "unhealed")
                settle(at)
                reads(report, at, "healed")
            if "regions" in parts:
                for count in map(int, arguments.regions.split(",")):
                    reads(report, at, f"{count} regions", divided_table(at, count), arguments.actions.split(","))
    return report.finish()


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """A fresh one on a server of its own, with a TSO whose watermark follows closely."""
    server = HBaseServer(folder / "hbase", heap_mb=2048)
    server.start()
    try:
        cluster = Cluster(ZooKeeper(server.quorum))
        create_database(cluster)
        cluster.close()
        url = f"omid+hbase://{server.quorum}/hbase"
        url += "?maxTransactionAgeSeconds=1&leaseSeconds=60"
        with our_tso(url, folder / "tso.log"):
            yield url
    finally:
        server.kill()


def writes(report: Report, at: Setting) -> None:
    """Level table: no ids travel, so what is measured is branches, leases and the commit."""
    works = {
        "the same writer, no transaction": lambda: write_plainly(at),
        "transaction, level table": lambda: write(at, "table", "last"),
    }
    plain, ours = report.measure_together(works, items=at.rows, unit="rows", runs=RUNS)
    report.ratio("write: transaction ÷ raw", ours, plain, at_least=0.9)


def divided_table(at: Setting, regions: int) -> str:
    """The flights in a table of so many regions, each with as many rows."""
    name = f"flights_{regions}"
    store = connection(at.url).deployment.store
    keys = [batch.row_key(row) for batch in store.scan("flights", KeyRange()) for row in range(batch.rows)]
    with pyomid.connect(at.url) as db:
        cuts = [keys[len(keys) * cut // regions] for cut in range(1, regions)]
        db.create_table(name, [DEFAULT_FAMILY], split_keys=cuts)
    with at.db.begin(conflict_level="table") as tx:
        tx.write(at.flights, name, row_key=KEY, duplicates="last")
    assert len(store.regions(name)) == regions
    return name


def reads(
    report: Report, at: Setting, state: str, table: str = "flights", actions: Sequence[str] = tuple(ACTIONS)
) -> None:
    common = {"url": at.url, "table": table}
    raw = at.spark.read.format("bench_raw").options(**common, parts=PARTS).load()
    ours = at.spark.read.format("omid").options(**common, numPartitions=PARTS).load()
    for action in actions:
        work = ACTIONS[action]
        assert work(raw)() == work(ours)()
        works = {f"{state}, {action}: {name}": work(frame) for name, frame in (("raw", raw), ("snapshot", ours))}
        plain, snapshot = report.measure_together(works, items=at.rows, unit="rows", runs=RUNS)
        report.ratio(f"{state}, {action}: snapshot ÷ raw", snapshot, plain, at_least=0.9)


if __name__ == "__main__":
    sys.exit(main())
