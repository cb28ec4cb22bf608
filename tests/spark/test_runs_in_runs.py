"""`run` and a stream's sink end by their own commit: what their function's other transactions told is not theirs."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

import pyomid.spark
from pyomid.client.idempotency import AlreadyDone
from pyomid.errors import AlreadyCommitted, ConflictError, Misuse
from pyomid.spark import transactions
from pyomid.spark.run_outcome import RunState, look_up_run

pytestmark = pytest.mark.fast

_numbers = itertools.count()
_PROPERTIES = {"sql.streaming.queryId": "q", "spark.jobGroup.id": "run"}
SPARK = cast(Any, SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=_PROPERTIES.get)))
"""What pyomid asks of a session where no frame is read or written."""


class Batch:
    sparkSession = SPARK


BATCH = cast(Any, Batch())


@pytest.fixture(autouse=True)
def _no_data_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "register", lambda spark: None)


@pytest.fixture
def url() -> str:
    return f"omid-memory:runs-{next(_numbers)}"


class NotesOnce:
    """A program's function: it notes in another database, at most once, and its first try loses."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tx: Any, *batch: Any) -> str:
        self.calls += 1
        with pyomid.spark.transaction(SPARK, "omid-memory:runs-notes", transaction_id=f"note of {id(self)}"):
            pass
        if self.calls == 1:
            raise ConflictError("another transaction won")
        return "done"


def test_a_sink_never_takes_anothers_commit_for_its_batch(url: str) -> None:
    function = NotesOnce()
    with pytest.raises(AlreadyCommitted, match="note of"):
        pyomid.spark.stream_sink(url, function)(BATCH, 7)
    assert function.calls == 2
    assert look_up_run(url, "stream q batch 7").state is not RunState.COMMITTED


@pytest.mark.parametrize("transaction_id", [None, "load"])
def test_a_run_never_takes_anothers_commit_for_its_own(url: str, transaction_id: str | None) -> None:
    with pytest.raises(AlreadyCommitted, match="note of"):
        pyomid.spark.run(SPARK, url, NotesOnce(), transaction_id=transaction_id)


def test_a_run_under_an_id_that_committed_calls_nothing(url: str) -> None:
    calls: list[int] = []
    for expected in (None, AlreadyDone):
        done = pyomid.spark.run(SPARK, url, lambda tx: calls.append(tx.start_ts), transaction_id="load")
        assert done is None if expected is None else isinstance(done, expected)
    assert len(calls) == 1
    assert done == AlreadyDone("load", calls[0])


def test_an_error_that_spark_shows_as_text_ends_a_run(url: str) -> None:
    """A task of the function told, in Spark's words, that a run under some id is committed."""

    def function(tx: Any) -> None:
        raise RuntimeError('PythonException: [OMID-ALREADY-COMMITTED {"transaction_id": "x", "start_ts": 50}] done')

    with pytest.raises(AlreadyCommitted):
        pyomid.spark.run(SPARK, url, function, transaction_id="load")
    assert look_up_run(url, "load").state is not RunState.COMMITTED


def test_a_sink_refuses_the_second_part_of_a_batch(url: str) -> None:
    calls: list[Any] = []
    sink = pyomid.spark.stream_sink(url, lambda tx, batch: calls.append(batch))
    sink(BATCH, 7)
    with pytest.raises(Misuse, match="two frames under one id"):
        sink(cast(Any, Batch()), 7)
    sink(BATCH, 7)
    assert calls == [BATCH]
