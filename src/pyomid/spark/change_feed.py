"""The changes of a table as a DataFrame with the columns of Delta's change feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyomid.client.changes import place
from pyomid.row_codec.schema import names_text
from pyomid.spark.errors import original_errors
from pyomid.spark.registration import reader_of
from pyomid.spark.source.changes import place_text
from pyomid.spark.source.options import names_of
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
    columns: str | Sequence[str] | None = None,
) -> DataFrame:
    """Return the changes that commits after `starting`, up to and including `ending` (None: now), made to a table.

    Columns: the table's, then `_change_type` (insert, update_preimage, update_postimage, delete), `_commit_version`
    and `_commit_timestamp`. Both ends are exact, even if transactions ran at that time. `starting` and `ending` are
    bookmarks (`db.bookmark`) or timestamps. `SnapshotTooOld` if the changes are no longer kept.
    """
    reader = reader_of(spark, url, table).option("readChangeFeed", "true")
    reader = reader.option("starting", place_text(place(starting, "starting")))
    if ending is not None:
        reader = reader.option("ending", place_text(place(ending, "ending")))
    if columns is not None:
        reader = reader.option("columns", names_text(names_of(columns)))
    with original_errors():
        frame: DataFrame = reader.load()
    return frame
