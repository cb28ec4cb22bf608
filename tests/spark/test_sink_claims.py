"""Who may run under the id of a stream's batch: one function in one run of a query (S4)."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from pyomid.errors import Misuse
from pyomid.spark import streaming
from pyomid.spark.run_outcome import batch_run_id
from pyomid.spark.streaming import _Claims

pytestmark = pytest.mark.fast

URL = "omid-memory:claims"


def one(tx: Any, batch: Any) -> None: ...


def other(tx: Any, batch: Any) -> None: ...


class Batch:
    """A frame."""


BATCH = Batch()


def runs(claims: _Claims, run_id: str, query_run: str | None, function: Any, batch: Any, url: str = URL) -> bool:
    """Whether a sink's function runs under this claim."""
    with claims.claimed(url, run_id, query_run, function, batch):
        return True


class Sink:
    def add(self, tx: Any, batch: Any) -> None: ...


def test_a_second_function_is_refused_while_and_after_the_first() -> None:
    claims = _Claims()
    with claims.claimed(URL, "id", "run", one, BATCH):
        with pytest.raises(Misuse, match=r"'id'\. The id belongs to one, so other would be skipped"):
            with claims.claimed(URL, "id", "run", other, BATCH):
                pytest.fail("both ran")
    with pytest.raises(Misuse, match="two functions"), claims.claimed(URL, "id", "run", other, BATCH):
        pytest.fail("both ran")
    assert runs(claims, "id 2", "run", other, BATCH)
    assert runs(claims, "id", "run 2", other, BATCH)
    assert runs(claims, "id", "run", other, BATCH, url="omid-memory:else")


def test_the_same_function_may_come_again() -> None:
    claims, sink = _Claims(), Sink()
    for function in (one, sink.add, sink.add):
        with claims.claimed(URL, repr(function), "run", function, BATCH):
            assert runs(claims, repr(function), "run", function, BATCH)
        assert runs(claims, repr(function), "run", function, BATCH)
    with claims.claimed(URL, "id", "run", functools.partial(one, batch=1), BATCH):
        with pytest.raises(Misuse), claims.claimed(URL, "id", "run", functools.partial(one, batch=2), BATCH):
            pytest.fail("two partial functions are two sinks")


def test_a_function_that_failed_gives_its_id_back() -> None:
    claims = _Claims()
    with pytest.raises(RuntimeError), claims.claimed(URL, "id", "run", one, BATCH):
        raise RuntimeError("on purpose")
    assert runs(claims, "id", "run", other, BATCH)


def test_a_second_frame_is_refused_while_and_after_the_first() -> None:
    """One sink, called for two parts of one batch: the second would be left out without a word."""
    claims, part = _Claims(), Batch()
    with claims.claimed(URL, "id", "run", one, BATCH):
        with (
            pytest.raises(Misuse, match="two frames have the same run id"),
            claims.claimed(URL, "id", "run", one, part),
        ):
            pytest.fail("both ran")
    with pytest.raises(Misuse, match="two frames"), claims.claimed(URL, "id", "run", one, part):
        pytest.fail("both ran")
    del part
    with pytest.raises(Misuse, match="two frames"), claims.claimed(URL, "id", "run", one, Batch()):
        pytest.fail("both ran")
    assert runs(claims, "id", "run", one, BATCH)
    assert runs(claims, "id", "run 2", one, Batch())


def test_outside_of_a_run_a_batch_may_be_handed_out_again() -> None:
    claims = _Claims()
    assert runs(claims, "id", None, one, Batch())
    assert runs(claims, "id", None, one, Batch())


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "SINKS_REMEMBERED_MAX", 3)
    claims = _Claims()
    with claims.claimed(URL, "running", "run", one, BATCH):
        for number in range(10):
            assert runs(claims, f"id {number}", "run", one, BATCH)
        assert len(claims._claims) == 3
        with pytest.raises(Misuse), claims.claimed(URL, "running", "run", other, BATCH):
            pytest.fail("the one that runs was forgotten")


def test_ids_of_named_and_unnamed_sinks_never_meet() -> None:
    ids = [
        batch_run_id(query, batch_id, name)
        for query in ("q", "q batch 1", "q batch 1 sink x")
        for batch_id in (1, 2)
        for name in (None, "x", "1", "batch")
    ]
    assert len(set(ids)) == len(ids)
