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

Two sinks in one `foreachBatch` are two transactions, and each needs an id of its own: a sink is named by `name`. With
one id for both the second would find the first one's key, and its rows would be left out as counted already; a
second function under one id is therefore refused, before it is skipped for the first time. So is a second frame: two
parts of one batch, given to one sink, are two sinks' work too.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyomid.client.idempotency import AlreadyDone, check_transaction_id
from pyomid.client.retry import check_function
from pyomid.errors import Misuse
from pyomid.spark.batch_id import QUERY_ID, batch_transaction_id
from pyomid.spark.sessions import is_connect
from pyomid.spark.transactions import SparkTransaction, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_RUN_ID: Final = "spark.jobGroup.id"
"""The query's run, from one start to its end, is the group of its jobs."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

SINKS_REMEMBERED_MAX: Final = 1_000
"""Sinks whose last batch is remembered: those of queries that run in this process, and more."""


def stream_sink(
    url: str,
    function: Callable[[SparkTransaction, DataFrame], Any],
    *,
    query_id: str | None = None,
    name: str | None = None,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    retries: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`: calls `function(tx, batch)` in one transaction a batch, and again on conflict.

    What `function` raises ends the query, and nothing of the batch was written. It is not called for a batch that is
    committed already. A batch that it uses more than once is computed as often, unless it persists it. `query_id`:
    where the query's own must not count, such as for one whose checkpoint was lost and made anew by hand, or is not
    told (Spark Connect). `name`: the
    sink's, where one query has several; it is a part of the durable id, so it stays what it is as long as the
    checkpoint. The other options are those of `pyomid.spark.run`.
    """
    if query_id is not None:
        check_transaction_id(query_id)
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise Misuse(f"sink name {name!r} is not made of letters, digits, '.', '_' and '-'", value=name)
    check_function(function)

    how = {"conflict_level": conflict_level, "lease_seconds": lease_seconds, "retries": retries}
    return _Sink(url, function, query_id, name, how)


@dataclass(frozen=True, slots=True)
class _Sink:
    """Spark Connect pickles it, and calls it in another process."""

    url: str
    function: Callable[[SparkTransaction, DataFrame], Any]
    query_id: str | None
    name: str | None
    how: Mapping[str, Any]

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        transaction_id = batch_transaction_id(self.query_id or _running_query(spark), batch_id, self.name)
        run_id = None if is_connect(spark) else spark.sparkContext.getLocalProperty(_RUN_ID)
        with _claims.claimed(self.url, transaction_id, run_id, self.function, batch):
            done = run(spark, self.url, lambda tx: self.function(tx, batch), transaction_id=transaction_id, **self.how)
        if isinstance(done, AlreadyDone):
            logger.info("%s was committed before, by start %d", done.transaction_id, done.start_ts)


@dataclass(slots=True)
class _Claim:
    """Who runs, or ran, under an id in one run of a query."""

    function: Callable[..., Any]
    batch: weakref.ref[Any]
    running: int = 0
    is_done: bool = False


class _Claims:
    """One function and one frame an id in one run of a query.

    In one run Spark hands a batch to `foreachBatch` once. A second function under the batch's id is therefore another
    sink, and never the same one in a newer form: that comes in a later run, when a batch is handed out again, and is
    the first there. A second frame is another part of the batch. What a failed function claimed is free again. Outside
    of a query's run it is unknown whether a batch is handed out again: there frames are not compared.
    """

    def __init__(self) -> None:
        self._claims: OrderedDict[tuple[str, str, str | None], _Claim] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def claimed(
        self, url: str, transaction_id: str, run_id: str | None, function: Callable[..., Any], batch: object
    ) -> Iterator[None]:
        key = (url, transaction_id, run_id)
        with self._lock:
            claim = self._claims.setdefault(key, _Claim(function, weakref.ref(batch)))
            if claim.function != function:
                raise Misuse(
                    f"two functions under one id, {transaction_id!r}: {_shown(claim.function)} has it, and "
                    f"{_shown(function)} would be left out as counted already; give each sink of the query its own "
                    "name: stream_sink(url, function, name=…)",
                    transaction_id=transaction_id,
                )
            if run_id is not None and claim.batch() is not batch:
                raise Misuse(
                    f"two frames under one id, {transaction_id!r}: the rows of the second would be left out as counted "
                    "already; write both in one function, or give each part of the batch a sink with a name of its "
                    "own: stream_sink(url, function, name=…)",
                    transaction_id=transaction_id,
                )
            claim.running += 1
        try:
            yield
            claim.is_done = True
        finally:
            with self._lock:
                claim.running -= 1
                self._forget(key, claim)

    def _forget(self, key: tuple[str, str, str | None], ended: _Claim) -> None:
        if not ended.running and not ended.is_done:
            self._claims.pop(key, None)
        while len(self._claims) > SINKS_REMEMBERED_MAX:
            oldest = next((each for each, claim in self._claims.items() if not claim.running), None)
            if oldest is None:
                return
            del self._claims[oldest]


_claims: Final = _Claims()


def _shown(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _running_query(spark: SparkSession) -> str:
    if is_connect(spark):
        raise Misuse(
            "over Spark Connect a batch does not tell of which query it is: name one that is the checkpoint's alone, "
            "stream_sink(url, function, query_id=…)"
        )
    found: str | None = spark.sparkContext.getLocalProperty(QUERY_ID)
    if not found:
        raise Misuse("no streaming query runs in this thread: give the sink to foreachBatch, or name a query_id")
    return found
