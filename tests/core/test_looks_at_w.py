"""R7: after a read W is looked at once, by a look-up that came after all of it or by a read of its own."""

from __future__ import annotations

import pytest

from pyomid.cells import CellBatch, batch_of
from pyomid.errors import SnapshotTooOld
from pyomid.protocol.effects import Effect, Heal, LookupThenWatermarks, ReadRange, ReadRows, ReadWatermarks, Steps
from pyomid.protocol.reading import CommitCache, Snapshot, read_batch_steps, read_rows_steps
from pyomid.types import NOT_FOUND, Cell

START, COMMIT = 100, 150
SNAPSHOT = Snapshot(start_ts=1000, epoch=50)


def cells(commit_ts: int = 0) -> list[Cell]:
    return [Cell(b"r", b"f", b"q", START, b"v", commit_ts)]


def batch(commit_ts: int = 0) -> CellBatch:
    return batch_of([cells(commit_ts)])


def asked(steps: Steps[object], *answers: object) -> list[type[Effect]]:
    """What the steps ask for, with these answers in turn; all of them are used."""
    effect = next(steps)
    kinds: list[type[Effect]] = [type(effect)]
    for answer in answers[:-1]:
        kinds.append(type(steps.send(answer)))
    with pytest.raises(StopIteration):
        steps.send(answers[-1])
    return kinds


def rows_steps() -> Steps[object]:
    return read_rows_steps("t", [b"r"], None, SNAPSHOT, CommitCache())


def batch_steps(first: CellBatch) -> Steps[object]:
    return read_batch_steps("t", first, None, SNAPSHOT, CommitCache())


def test_a_lookup_behind_the_last_fetch_has_looked_at_w() -> None:
    assert asked(batch_steps(batch()), ([COMMIT], 50, 0)) == [LookupThenWatermarks]
    assert asked(rows_steps(), [cells()], ([COMMIT], 50, 0), None) == [ReadRows, LookupThenWatermarks, Heal]


def test_without_a_lookup_w_is_read() -> None:
    assert asked(batch_steps(batch(COMMIT)), (50, 0)) == [ReadWatermarks]
    assert asked(rows_steps(), [cells(COMMIT)], (50, 0)) == [ReadRows, ReadWatermarks]


def test_a_fetch_behind_the_lookup_is_looked_at_anew() -> None:
    found = asked(batch_steps(batch()), ([NOT_FOUND], 50, 0), batch(), (50, 0))
    assert found == [LookupThenWatermarks, ReadRange, ReadWatermarks]
    found = asked(rows_steps(), [cells()], ([NOT_FOUND], 50, 0), [cells()], (50, 0))
    assert found == [ReadRows, LookupThenWatermarks, ReadRows, ReadWatermarks]


@pytest.mark.parametrize("watermark", [1000, 1050])
def test_w_at_the_snapshot_ends_the_read_whoever_read_it(watermark: int) -> None:
    steps = batch_steps(batch())
    next(steps)
    with pytest.raises(SnapshotTooOld, match="at or below the published low watermark"):
        steps.send(([COMMIT], watermark, 0))
    steps = batch_steps(batch(COMMIT))
    next(steps)
    with pytest.raises(SnapshotTooOld, match="at or below the published low watermark"):
        steps.send((watermark, 0))
