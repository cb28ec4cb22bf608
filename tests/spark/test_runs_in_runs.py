"""`run` and a stream's sink end by their own commit: what their function's other transactions told is not theirs."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

import pyomid
import pyomid.spark
from pyomid.database.idempotency import AlreadyDone
from pyomid.errors import AlreadyCommitted, ConflictError, Misuse
from pyomid.spark import database
from pyomid.spark.run_outcome import RunState

pytestmark = pytest.mark.fast

_numbers = itertools.count()
_PROPERTIES = {"sql.streaming.queryId": "q", "spark.jobGroup.id": "run"}
SPARK = cast(Any, SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=_PROPERTIES.get)))
"""What pyomid asks of a session where no frame is read or written."""


class Batch:
    def __init__(self, session: Any = SPARK) -> None:
        self.sparkSession = session


BATCH = cast(Any, Batch())


@pytest.fixture(autouse=True)
def _no_data_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "register", lambda spark: None)


@pytest.fixture
def url() -> str:
    return f"omid-memory:runs-{next(_numbers)}"


class NotesOnce:
    """A program's function: it notes in another database, at most once, and its first try loses."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tx: Any, *batch: Any) -> str:
        self.calls += 1
        with pyomid.spark.connect(SPARK, "omid-memory:runs-notes").begin(run_id=f"note of {id(self)}"):
            pass
        if self.calls == 1:
            raise ConflictError("another transaction won")
        return "done"


def test_a_sink_never_takes_anothers_commit_for_its_batch(url: str) -> None:
    function = NotesOnce()
    with pytest.raises(AlreadyCommitted, match="note of"):
        pyomid.spark.connect(SPARK, url).stream_sink(function)(BATCH, 7)
    assert function.calls == 2
    assert pyomid.spark.connect(SPARK, url).look_up_run("stream q batch 7").state is not RunState.COMMITTED


@pytest.mark.parametrize("run_id", [None, "load"])
def test_a_run_never_takes_anothers_commit_for_its_own(url: str, run_id: str | None) -> None:
    db = pyomid.spark.connect(SPARK, url)
    run = db.run if run_id is None else partial(db.run_once, run_id)
    with pytest.raises(AlreadyCommitted, match="note of"):
        run(NotesOnce())


def test_a_run_under_an_id_that_committed_calls_nothing(url: str) -> None:
    calls: list[int] = []
    for expected in (None, AlreadyDone):
        done = pyomid.spark.connect(SPARK, url).run_once("load", lambda tx: calls.append(tx.start_ts))
        assert done is None if expected is None else isinstance(done, expected)
    assert len(calls) == 1
    assert done == AlreadyDone("load", calls[0])


def test_a_runs_result_is_kept_with_its_key_as_the_client_keeps_it(url: str) -> None:
    """Also across the two; what cannot be kept, such as a frame, is returned once."""
    db, frame = pyomid.spark.connect(SPARK, url), object()
    results: list[Any] = [b"\0bytes", {"rows": [1, None]}, "paid", None, (1, 2), frame, b"x" * ((64 << 10) + 1)]
    with pyomid.connect(url) as client:
        for number, result in enumerate(results):
            kept = result if number < 4 else None
            assert db.run_once(f"spark {number}", lambda tx, result=result: result) is result
            assert client.run_once(f"client {number}", lambda tx, result=result: result) is result
            for run_id in (f"spark {number}", f"client {number}"):
                done = db.run_once(run_id, lambda tx: "again")
                assert isinstance(done, AlreadyDone)
                assert done.result == kept
                assert client.run_once(run_id, lambda tx: "again") == done
    assert db.look_up_run("spark 0").state is RunState.COMMITTED
    with pytest.raises(AlreadyCommitted, match="spark 0"):
        db.begin(run_id="spark 0")


def test_a_run_hands_arguments_to_its_function(url: str) -> None:
    with pyomid.spark.connect(SPARK, url) as db:
        assert db.run(lambda tx, *given: given, 1, "b") == (1, "b")
        assert db.run_once("x", lambda tx, given: given, 2) == 2
        assert db.run_once("x", lambda tx, given: given, 3).result == 2


def test_an_error_that_spark_shows_as_text_ends_a_run(url: str) -> None:
    """A task of the function told, in Spark's words, that a run under some id is committed."""

    def function(tx: Any) -> None:
        raise RuntimeError('PythonException: [OMID-ALREADY-COMMITTED {"run_id": "x", "start_ts": 50}] done')

    with pytest.raises(AlreadyCommitted):
        pyomid.spark.connect(SPARK, url).run_once("load", function)
    assert pyomid.spark.connect(SPARK, url).look_up_run("load").state is not RunState.COMMITTED


def test_a_sink_refuses_the_second_part_of_a_batch(url: str) -> None:
    calls: list[Any] = []
    sink = pyomid.spark.connect(SPARK, url).stream_sink(lambda tx, batch: calls.append(batch))
    sink(BATCH, 7)
    with pytest.raises(Misuse, match="two frames have the same run id"):
        sink(cast(Any, Batch()), 7)
    sink(BATCH, 7)
    assert calls == [BATCH]


@pytest.mark.parametrize(
    ("query_id", "name"), [("q" * 167, None), ("é" * 80, "n"), (None, "n" * 125), ("q" * 17, "n" * 144)]
)
def test_a_sink_whose_names_fit_takes_every_batch_and_longer_ones_are_refused_before_the_first(
    url: str, query_id: str | None, name: str | None
) -> None:
    db = pyomid.spark.connect(SPARK, url)
    calls: list[Any] = []
    sink = db.stream_sink(lambda tx, batch: calls.append(batch), query_id=query_id, name=name)
    for number in (0, 10, (1 << 63) - 1):
        sink(batch_of("0" * 36), number)
    assert len(calls) == 3
    if query_id is not None:
        query_id += "q"
    else:
        name = f"{name}n"
    with pytest.raises(Misuse, match="would make run ids of up to 201 bytes"):
        db.stream_sink(lambda tx, batch: None, query_id=query_id, name=name)


def batch_of(checkpoint: str) -> Any:
    """A frame of the query whose checkpoint that is."""
    properties = {"sql.streaming.queryId": checkpoint, "spark.jobGroup.id": f"run of {checkpoint}"}
    return Batch(SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=properties.get)))


class Counted(list[str]):
    """Whose batches were counted."""

    def __call__(self, tx: Any, batch: Any) -> None:
        self.append(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def test_a_query_id_belongs_to_the_checkpoint_that_commits_first(url: str) -> None:
    """Another one is refused whatever number its batch has, until it adopts the name; then the former one is."""
    counted = Counted()
    first, second, third = map(batch_of, ("first", "second", "third"))
    sink = pyomid.spark.connect(SPARK, url).stream_sink(counted, query_id="mine")
    for number in (0, 0, 1):
        sink(first, number)
    for number in (0, 2):
        with pytest.raises(
            Misuse,
            match="belongs to the checkpoint of Spark's query first, "
            "but this checkpoint belongs to Spark's query second",
        ):
            sink(second, number)
    pyomid.spark.connect(SPARK, url).stream_sink(counted, query_id="mine", name="another")(second, 0)
    adopting = pyomid.spark.connect(SPARK, url).stream_sink(counted, query_id="mine", adopt_checkpoint="first")
    for number in (0, 1, 2, 2):
        adopting(second, number)
    assert counted == ["first", "first", "second", "second"]
    for refused, batch in ((sink, first), (adopting, third)):
        with pytest.raises(Misuse, match="belongs to the checkpoint of Spark's query second"):
            refused(batch, 3)
    pyomid.spark.connect(SPARK, url).stream_sink(counted, query_id="another")(third, 0)
    assert counted[4:] == ["third"]


def test_of_two_checkpoints_that_begin_at_once_one_gets_the_query_id(url: str) -> None:
    counted = Counted()
    sink = pyomid.spark.connect(SPARK, url).stream_sink(counted, query_id="mine")

    def beaten(tx: Any, batch: Any) -> None:
        sink(batch_of("faster"), 5)

    with pytest.raises(Misuse, match="belongs to the checkpoint of Spark's query faster"):
        pyomid.spark.connect(SPARK, url).stream_sink(beaten, query_id="mine")(batch_of("slower"), 0)
    assert counted == ["faster"]
