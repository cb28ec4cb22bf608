"""Tables as temporary views, for SQL:

    pyomid.spark.register_views(spark, url)
    spark.sql("SELECT dest, count(*) FROM flights JOIN planes USING (tailnum) GROUP BY dest")
    spark.sql("INSERT INTO totals VALUES ('2013-01-01', 842)")

Spark plans a view's source once, so a view has one snapshot; all that are made by one call have the same. An INSERT is
a transaction of its own, which the views do not show until they are registered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyomid.client.upkeep.partitions import chosen_tables
from pyomid.errors import Misuse
from pyomid.spark.databases import connection
from pyomid.spark.errors import original_errors
from pyomid.spark.frames.expressions import quoted
from pyomid.spark.registration import register
from pyomid.spark.sessions import check_same_machine
from pyomid.spark.source.datasource import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_views(
    spark: SparkSession, url: str, tables: str | Sequence[str] | None = None, *, prefix: str = ""
) -> list[str]:
    """Makes, or replaces, a temporary view for each of these tables; None: for all that have a schema. Returns the
    views' names, which are `prefix` and the table's.

    What they show is kept for `leaseSeconds` from the call and from the last task that read one of them;
    `SnapshotTooOld` after that: register them again.
    """
    check_same_machine(spark, url)
    register(spark)
    conn = connection(url, create=False)
    infos = chosen_tables(conn.deployment.catalog, tables)
    views = {info.name: prefix + info.name for info in infos if tables is not None or info.schema is not None}
    _check_distinct(list(views.values()))
    begun = conn.deployment.tso.begin()
    if conn.has_leases:  # at once: what loads them begins in other processes, and takes its time
        conn.hold_by_lease(begun.start_ts, None)
    else:
        conn.note_ended(begun.start_ts)
    for table, view in views.items():
        reader = spark.read.format(FORMAT).option("url", url).option("table", table).option("view", "true")
        reader = reader.option("snapshotTimestamp", str(begun.start_ts))
        reader = reader.option("snapshotDatabase", conn.database_id.hex())
        with original_errors():
            reader.load().createOrReplaceTempView(quoted(view))
    return list(views.values())


def _check_distinct(views: Sequence[str]) -> None:
    """Spark knows no case in the names of views."""
    known: dict[str, str] = {}
    for view in views:
        other = known.setdefault(view.lower(), view)
        if other != view:
            raise Misuse(
                f"views {other!r} and {view!r} differ by case only, and Spark takes them for one: name tables=[…]"
            )
