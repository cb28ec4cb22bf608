"""What commits did to a table, as a DataFrame with Delta's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyomid.client.changes import place
from pyomid.spark.errors import original_errors
from pyomid.spark.registration import register
from pyomid.spark.source.changes import place_text
from pyomid.spark.source.datasource import FORMAT
from pyomid.types import Bookmark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def changes(
    spark: SparkSession,
    url: str,
    table: str,
    *,
    starting: Bookmark | int,
    ending: Bookmark | int | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """The changes of a table by commits after `starting`, and not after `ending` (None: now).

    The table's columns, and `_change_type` (insert, update_preimage, update_postimage, delete), `_commit_version`,
    `_commit_timestamp`. Exact at both ends, whatever ran there. Places are bookmarks (`db.bookmark`), or timestamps;
    `SnapshotTooOld` where the changes are not kept any more.
    """
    register(spark)
    reader = spark.read.format(FORMAT).option("url", url).option("table", table).option("readChangeFeed", "true")
    reader = reader.option("starting", place_text(place(starting, "starting")))
    if ending is not None:
        reader = reader.option("ending", place_text(place(ending, "ending")))
    if columns is not None:
        reader = reader.option("columns", ",".join(columns))
    with original_errors():
        frame: DataFrame = reader.load()
    return frame
