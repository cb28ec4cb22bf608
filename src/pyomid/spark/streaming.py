"""A streaming sink: each micro-batch is one transaction and takes effect once, however often Spark delivers it (S4).

    def count(tx, batch):
        tx.write(batch, "flights", row_key=["origin", "time_hour", "carrier", "flight"])
        tx.write(added(tx.read("totals"), batch), "totals")

    sink = db.stream_sink(count)
    stream.writeStream.foreachBatch(sink).option("checkpointLocation", folder).start()

If Spark dies before its checkpoint records a batch as done, it delivers the batch again, with the same number and the
same rows. The batch's transaction therefore has a run id, made of the query's id (which is in the checkpoint) and the
batch's number. At most one transaction under this id commits, even if two drivers run the same query at once. A query
with a new checkpoint is another query, and writes everything that it reads.

Two sinks in one `foreachBatch` are two transactions, and each needs its own run id: give each sink a `name`. With one
run id for both, the second sink would find the first sink's commit and skip its own rows. Before it skips anything,
pyomid refuses

    a second function under one run id
    a second frame under one run id      two parts of one batch, given to one sink
    a second checkpoint of a `query_id`  the id belongs to the checkpoint that commits first
    a batch whose successor committed    the checkpoint was reset, and may deliver other rows under that batch's number
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
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyomid.database.idempotency import RUN_ID_BYTES_MAX, AlreadyDone, check_run_id, checkpoint_row
from pyomid.database.retry import check_function, check_result
from pyomid.errors import Misuse
from pyomid.spark.run_outcome import QUERY_ID, batch_run_id, check_not_behind
from pyomid.spark.sessions import is_connect
from pyomid.spark.transactions import SparkTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyomid.spark.database import SparkDatabase

logger = logging.getLogger(__name__)

_RUN_ID: Final = "spark.jobGroup.id"
"""Local property that holds the job group of one run of a query, from start to stop."""

_QUERY_ID_OF_SPARK: Final = str(UUID(int=0))
_BATCH_ID_MAX: Final = (1 << 63) - 1

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

SINKS_REMEMBERED_MAX: Final = 1_000
"""Maximum number of remembered claims; larger than the number of sinks whose queries run in one process."""


def stream_sink(
    db: SparkDatabase,
    function: Callable[[SparkTransaction, DataFrame], Any],
    *,
    query_id: str | None = None,
    name: str | None = None,
    adopt_checkpoint: str | None = None,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    retries: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch`. The returned function calls `function(tx, batch)` in one transaction per
    batch, and calls `function` again on a conflict.

    If `function` raises an exception, the query ends and nothing of the batch is written. `function` is not called for
    a batch that has already committed. Spark computes the batch each time `function` uses it, unless `function`
    persists the batch.

    `query_id` replaces the query id that Spark stores in the checkpoint. A `query_id` belongs to the checkpoint that
    commits the first batch with this `query_id`. For a batch of another checkpoint, the sink raises `Misuse` instead of
    skipping the batch.
    `adopt_checkpoint` is Spark's id of the former query. Give `adopt_checkpoint` only if the new checkpoint delivers
    the same batches with the same numbers. The sink then skips committed batches, and `query_id` belongs to the new
    checkpoint from then on. Over Spark Connect, a batch does not carry the id of the checkpoint, so the sink does not
    compare checkpoints.
    `name` is the sink's name. If one query has several sinks, each sink needs its own name. The name is part of the run
    id, so do not change the name while the checkpoint is in use. The other options have the same meaning as in `run`.
    """
    if query_id is not None:
        check_run_id(query_id)
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise Misuse(f"invalid sink name {name!r}; use only letters, digits, '.', '_' and '-'", value=name)
    if adopt_checkpoint is not None and (query_id is None or not isinstance(adopt_checkpoint, str)):
        raise Misuse(
            f"invalid adopt_checkpoint {adopt_checkpoint!r}; give Spark's id of the former query, together with "
            "query_id. Without query_id, pyomid treats a new checkpoint as a new query",
            value=adopt_checkpoint,
        )
    _check_length(query_id, name)
    check_function(function)

    how = {"conflict_level": conflict_level, "lease_seconds": lease_seconds, "retries": retries}
    return _Sink(type(db), db.url, function, query_id, name, adopt_checkpoint, how)


def _check_length(query_id: str | None, name: str | None) -> None:
    """`Misuse` if the run id of a batch may get too long, which would end the query at that batch, because the number
    grows."""
    length = len(batch_run_id(query_id or _QUERY_ID_OF_SPARK, _BATCH_ID_MAX, name).encode())
    if length > RUN_ID_BYTES_MAX:
        given = " and ".join(f"{what} {text!r}" for what, text in (("query_id", query_id), ("name", name)) if text)
        raise Misuse(
            f"{given} would make run ids of up to {length} bytes, because a run id also contains the batch number; the "
            f"maximum is {RUN_ID_BYTES_MAX} bytes. Choose a shorter text",
            query_id=query_id,
            name=name,
        )


@dataclass(frozen=True, slots=True)
class _Sink:
    """The function given to `foreachBatch`; Spark Connect pickles it and calls it in another process."""

    database: type[SparkDatabase]
    url: str
    function: Callable[[SparkTransaction, DataFrame], Any]
    query_id: str | None
    name: str | None
    adopt_checkpoint: str | None
    how: Mapping[str, Any]

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        db = self.database(spark, self.url)
        query = self.query_id or _running_query(spark)
        run_id = batch_run_id(query, batch_id, self.name)
        query_run = None if is_connect(spark) else spark.sparkContext.getLocalProperty(_RUN_ID)
        checkpoint = "" if self.query_id is None else _checkpoint(spark)

        def count(tx: SparkTransaction) -> None:
            self._own(tx, checkpoint)
            check_result(self.function(tx, batch), self.function)

        with _claims.claimed(self.url, run_id, query_run, self.function, batch):
            done = db.run_once(run_id, count, **self.how)
        if isinstance(done, AlreadyDone):
            if checkpoint:
                db.run(partial(self._own, checkpoint=checkpoint, counted=run_id), **self.how)
            if self.adopt_checkpoint is None:
                own = checkpoint or query
                otherwise = (
                    ". If the committed batch has the same rows, skip the batch with "
                    f"query_id={query!r}, adopt_checkpoint={own!r}"
                )
                check_not_behind(db.opened(), query, batch_id, self.name, otherwise)
            logger.info("skipped run %s, because transaction %d has committed it already", done.run_id, done.start_ts)

    def _own(self, tx: SparkTransaction, checkpoint: str, *, counted: str = "") -> None:
        """Claim the sink for this checkpoint. Raises `Misuse` if the sink belongs to another checkpoint, whose batches
        have the same numbers but other rows (S4). `counted`: id of a batch that is about to be skipped."""
        if self.query_id is None or not checkpoint:
            return
        row = checkpoint_row(self.query_id, self.name)
        owner = tx.belong_to(checkpoint, row, adopts=self.adopt_checkpoint)
        if owner not in ("", checkpoint, self.adopt_checkpoint):
            raise Misuse(
                f"query_id {self.query_id!r} belongs to the checkpoint of Spark's query {owner}, but this checkpoint "
                f"belongs to Spark's query {checkpoint}, so pyomid would skip every batch whose number has committed. "
                "Give another query_id to write all batches. If this checkpoint delivers the same batches as the "
                f"former checkpoint, give adopt_checkpoint={owner!r} to skip the committed batches",
                query_id=self.query_id,
                checkpoint=checkpoint,
                owner=owner,
            )
        if not owner and counted:
            logger.warning(
                "skipped run %r, which has committed already under a checkpoint that was not recorded; from now on, "
                "query_id %r belongs to the checkpoint of Spark's query %s",
                counted,
                self.query_id,
                checkpoint,
            )


@dataclass(slots=True)
class _Claim:
    """The function and the frame that run, or ran, under one run id in one run of a query."""

    function: Callable[..., Any]
    batch: weakref.ref[Any]
    running: int = 0
    is_done: bool = False


class _Claims:
    """Allows one function and one frame per run id in one run of a query.

    In one run Spark calls `foreachBatch` once per batch. So a second function under the batch's id is another sink,
    never a changed version of the same sink: only a later run can bring a changed version. A second frame is another
    part of the batch. A failed function frees its claim. Outside a query's run, frames are not compared, because there
    a batch may be delivered again.
    """

    def __init__(self) -> None:
        self._claims: OrderedDict[tuple[str, str, str | None], _Claim] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def claimed(
        self, url: str, run_id: str, query_run: str | None, function: Callable[..., Any], batch: object
    ) -> Iterator[None]:
        key = (url, run_id, query_run)
        with self._lock:
            claim = self._claims.setdefault(key, _Claim(function, weakref.ref(batch)))
            if claim.function != function:
                raise Misuse(
                    f"two functions have the same run id {run_id!r}. The id belongs to {_shown(claim.function)}, so "
                    f"{_shown(function)} would be skipped as already committed; give each sink of the query its own "
                    "name: db.stream_sink(function, name=…)",
                    run_id=run_id,
                )
            if query_run is not None and claim.batch() is not batch:
                raise Misuse(
                    f"two frames have the same run id {run_id!r}: the rows of the second frame would be skipped as "
                    "already committed; write both frames in one function, or give each part of the batch a sink with "
                    "its own name: db.stream_sink(function, name=…)",
                    run_id=run_id,
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


def _checkpoint(spark: SparkSession) -> str:
    """Return Spark's id of the running query, which its checkpoint stores; empty if unknown."""
    return "" if is_connect(spark) else spark.sparkContext.getLocalProperty(QUERY_ID) or ""


def _running_query(spark: SparkSession) -> str:
    if is_connect(spark):
        raise Misuse(
            "over Spark Connect a batch does not carry the id of its query; give an id that no other checkpoint uses: "
            "db.stream_sink(function, query_id=…)"
        )
    found: str | None = spark.sparkContext.getLocalProperty(QUERY_ID)
    if not found:
        raise Misuse("no streaming query runs in this thread; pass the sink to foreachBatch, or give a query_id")
    return found
