"""R7, R10: after a read W and the table are looked at once, behind all fetches of it."""

from __future__ import annotations

from typing import Any

import pytest

from pyomid.cells import CellBatch, batch_of
from pyomid.coroutines import Effect, Routine
from pyomid.errors import SnapshotTooOld, Unavailable, UnknownTable
from pyomid.protocol.effects import (
    Heal,
    LookupThenWatermarks,
    ReadNotedDrop,
    ReadRange,
    ReadRows,
    ReadSettled,
    ReadValidity,
    ReadWatermarks,
)
from pyomid.protocol.reading import (
    CommitCache,
    Snapshot,
    SnapshotScan,
    read_batch,
    read_rows,
    read_settled,
)
from pyomid.types import NOT_FOUND, Cell, KeyRange, LifeOf, TableLife

START, COMMIT = 100, 150
SNAPSHOT = Snapshot(start_ts=1000, epoch=50)
TABLE = LifeOf("t", 60)
SYSTEM = LifeOf("t")
"""A table that is never dropped."""
FORGOTTEN = None
"""The answer to `ForgetTable`."""


def cells(commit_ts: int = 0) -> list[Cell]:
    return [Cell(b"r", b"f", b"q", START, b"v", commit_ts)]


def batch(commit_ts: int = 0) -> CellBatch:
    return batch_of([cells(commit_ts)])


def asked(steps: Routine[object], *answers: object) -> list[type[Effect[Any]]]:
    """What the steps ask for, with these answers in turn; all of them are used."""
    effect = steps.send(None)
    kinds: list[type[Effect[Any]]] = [type(effect)]
    for answer in answers[:-1]:
        kinds.append(type(_resumed(steps, answer)))
    with pytest.raises(StopIteration):
        _resumed(steps, answers[-1])
    return kinds


def _resumed(steps: Routine[object], answer: object) -> Effect[Any]:
    return steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)


def rows(table: TableLife = TABLE, snapshot: Snapshot = SNAPSHOT) -> Routine[object]:
    return read_rows(table, [b"r"], None, snapshot, CommitCache())


def batch_steps(first: CellBatch, table: TableLife = TABLE) -> Routine[object]:
    return read_batch(table, first, None, SNAPSHOT, CommitCache())


def settled_steps(snapshot: Snapshot = SNAPSHOT) -> Routine[object]:
    return read_settled(TABLE, [b"r"], None, snapshot, CommitCache())


def scan_steps() -> Routine[object]:
    return SnapshotScan(TABLE, KeyRange(), None, SNAPSHOT, CommitCache(), rows_max=10).next()


def test_in_a_table_that_stays_a_lookup_behind_the_last_fetch_has_looked_at_w() -> None:
    assert asked(batch_steps(batch(), SYSTEM), ([COMMIT], 50, 0)) == [LookupThenWatermarks]
    assert asked(rows(SYSTEM), [cells()], ([COMMIT], 50, 0), None) == [ReadRows, LookupThenWatermarks, Heal]


def test_without_a_lookup_w_is_read() -> None:
    assert asked(batch_steps(batch(COMMIT), SYSTEM), (50, 0)) == [ReadWatermarks]
    assert asked(rows(SYSTEM), [cells(COMMIT)], (50, 0)) == [ReadRows, ReadWatermarks]
    assert asked(batch_steps(batch(COMMIT)), (50, 60)) == [ReadValidity]
    assert asked(rows(), [cells(COMMIT)], (50, 60)) == [ReadRows, ReadValidity]


def test_the_table_is_looked_at_behind_a_lookup() -> None:
    assert asked(batch_steps(batch()), ([COMMIT], 50, 0), (50, 60)) == [LookupThenWatermarks, ReadValidity]
    found = asked(rows(), [cells()], ([COMMIT], 50, 0), (50, 60), None)
    assert found == [ReadRows, LookupThenWatermarks, ReadValidity, Heal]


def test_a_fetch_behind_the_lookup_is_looked_at_anew() -> None:
    found = asked(batch_steps(batch()), ([NOT_FOUND], 50, 0), batch(), (50, 60))
    assert found == [LookupThenWatermarks, ReadRange, ReadValidity]
    found = asked(rows(), [cells()], ([NOT_FOUND], 50, 0), [cells()], (50, 60))
    assert found == [ReadRows, LookupThenWatermarks, ReadRows, ReadValidity]


@pytest.mark.parametrize("watermark", [1000, 1050])
def test_w_at_the_snapshot_ends_the_read_whoever_read_it(watermark: int) -> None:
    for steps, *answers in (
        (batch_steps(batch(), SYSTEM), ([COMMIT], watermark, 0)),
        (batch_steps(batch(COMMIT)), (watermark, 60)),
        (rows(), [cells(COMMIT)], (watermark, 60)),
        (settled_steps(), ([{}], watermark, 60)),
    ):
        with pytest.raises(SnapshotTooOld, match="at or below the published low watermark"):
            asked(steps, *answers)


@pytest.mark.parametrize("generation", [0, 40, 2000], ids=["dropped", "another", "created again"])
def test_r10_another_life_ends_the_read_whatever_was_found(generation: int) -> None:
    for steps, *answers in (
        (batch_steps(batch(COMMIT)), (50, generation)),
        (rows(), [[]], (50, generation)),
        (rows(), [cells()], ([COMMIT], 50, 0), (50, generation)),
        (settled_steps(), ([{}], 50, generation)),
        (scan_steps(), batch(COMMIT), (50, generation)),
        (scan_steps(), None, (50, generation)),
    ):
        with pytest.raises(SnapshotTooOld, match="the table was dropped") as refused:
            asked(steps, *answers, FORGOTTEN)
        assert refused.value.values == {"start_ts": 1000, "table": "t", "generation": 60}


@pytest.mark.parametrize("error", [UnknownTable("there is no table 't'"), Unavailable("no region of 't'")])
def test_r10_a_fetch_that_fails_because_the_table_is_gone_says_so(error: Exception) -> None:
    for steps in (rows(), settled_steps(), scan_steps()):
        with pytest.raises(SnapshotTooOld, match="the table was dropped") as refused:
            asked(steps, error, (50, 0), FORGOTTEN)
        assert refused.value.__cause__ is error


@pytest.mark.parametrize("answer", [(50, 60), Unavailable("no catalog")], ids=["it lives", "nobody knows"])
def test_r10_any_other_failure_of_a_fetch_stays_what_it_is(answer: object) -> None:
    error = Unavailable("no region of 't'")
    for steps in (rows(), settled_steps(), scan_steps()):
        with pytest.raises(Unavailable) as raised:
            asked(steps, error, answer)
        assert raised.value is error
    with pytest.raises(Unavailable):
        asked(rows(SYSTEM), error)


def test_r10_a_table_younger_than_the_snapshot_is_the_first_of_its_name() -> None:
    early = Snapshot(start_ts=55, epoch=50)
    assert asked(rows(snapshot=early), [[]], (50, 60), 0) == [ReadRows, ReadValidity, ReadNotedDrop]
    assert asked(settled_steps(early), ([{}], 50, 60), 54) == [ReadSettled, ReadNotedDrop]
    for steps, *answers in (
        (rows(snapshot=early), [[]], (50, 60), 55),
        (settled_steps(early), ([{}], 50, 60), 56),
    ):
        with pytest.raises(SnapshotTooOld, match="a former table"):
            asked(steps, *answers)
