"""A streaming sink: each micro-batch is one transaction, and counts once however often Spark hands it out (S4).

    def count(tx, batch):
        tx.write(batch, "flights", row_key=["origin", "time_hour", "carrier", "flight"])
        tx.write(added(tx.read("totals"), batch), "totals")

    sink = pyomid.spark.stream_sink(url, count)
    stream.writeStream.foreachBatch(sink).option("checkpointLocation", folder).start()

Spark hands a batch out again, with the same number and the same rows, where it died before it noted in its checkpoint
that the batch was done. The batch's transaction is therefore made under a durable id: the query's, which lies in the
checkpoint, and the batch's number. Of all transactions under it one commits, also where two drivers run the same
query at once. A query with a new checkpoint is another query, and counts everything it reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyomid.client.marker import AlreadyDone, check_transaction_id
from pyomid.client.retry import check_function
from pyomid.errors import Misuse
from pyomid.spark.transactions import SparkTransaction, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's name for it, in the thread that runs the query and calls us."""


def stream_sink(
    url: str,
    function: Callable[[SparkTransaction, DataFrame], Any],
    *,
    query_id: str | None = None,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    retries: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: `function(tx, batch)` in one transaction a batch, committed behind it; again on conflict.

    What it raises ends the query, and nothing of the batch was written. It is not called for a batch that is
    committed already. A batch that it uses more than once is computed as often, unless it persists it. `query_id`:
    where the query's own must not count, such as for one whose checkpoint was lost and made anew by hand. The other
    options are those of `pyomid.spark.run`.
    """
    if query_id is not None:
        check_transaction_id(query_id)
    check_function(function)

    def write(batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        done = run(
            spark,
            url,
            lambda tx: function(tx, batch),
            transaction_id=f"stream {query_id or _running_query(spark)} batch {batch_id}",
            conflict_level=conflict_level,
            lease_seconds=lease_seconds,
            retries=retries,
        )
        if isinstance(done, AlreadyDone):
            logger.info("%s was committed before, by start %d", done.transaction_id, done.start_ts)

    return write


def _running_query(spark: SparkSession) -> str:
    found: str | None = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise Misuse("no streaming query runs in this thread: give the sink to foreachBatch, or name a query_id")
    return found
