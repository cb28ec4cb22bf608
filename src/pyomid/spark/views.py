"""Tables as temporary views, for SQL:

    pyomid.spark.register_views(spark, url)
    spark.sql("SELECT dest, count(*) FROM flights JOIN planes USING (tailnum) GROUP BY dest")
    spark.sql("INSERT INTO totals VALUES ('2013-01-01', 842)")

Spark plans a view's source once, so a view has one snapshot; all views of one call share it. An INSERT is a separate
transaction; the views do not show it until they are registered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyomid.client.upkeep.partitions import chosen_tables
from pyomid.errors import Misuse
from pyomid.spark.errors import original_errors
from pyomid.spark.frames.expressions import quoted
from pyomid.spark.registration import opened, reader_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_views(
    spark: SparkSession, url: str, tables: str | Sequence[str] | None = None, *, prefix: str = ""
) -> list[str]:
    """Create or replace a temporary view for each of these tables (None: every table with a schema). Return the
    views' names: `prefix` and the table's name.

    Their snapshot is kept for `leaseSeconds` after the call and after the last task that read one of them; then they
    raise `SnapshotTooOld`, and must be registered again.
    """
    conn = opened(spark, url, create=False)
    infos = chosen_tables(conn.deployment.catalog, tables)
    views = {info.name: prefix + info.name for info in infos if tables is not None or info.schema is not None}
    _check_distinct(list(views.values()))
    begun = conn.deployment.tso.begin()
    if conn.has_leases:  # before the loads: they run in other processes, and may start late
        conn.hold_by_lease(begun, None)
    else:
        conn.end(begun)
    try:
        for table, view in views.items():
            reader = reader_of(spark, url, table).option("view", "true")
            reader = reader.option("snapshotTimestamp", str(begun.start_ts))
            reader = reader.option("snapshotDatabase", conn.database_id.hex())
            with original_errors():
                reader.load().createOrReplaceTempView(quoted(view))
    except BaseException:
        if conn.has_leases:
            conn.leases.end_of(begun.start_ts)
        raise
    return list(views.values())


def _check_distinct(views: Sequence[str]) -> None:
    """`Misuse` if two views differ only by case: Spark ignores case in names of views."""
    known: dict[str, str] = {}
    for view in views:
        other = known.setdefault(view.lower(), view)
        if other != view:
            raise Misuse(
                f"views {other!r} and {view!r} differ only by case, and Spark ignores case: choose tables by tables=[…]"
            )
