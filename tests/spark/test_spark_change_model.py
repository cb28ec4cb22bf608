"""`apply_changes` on random changes in random order, some of them again, compared with what a few lines of Python make
of the same: a table of rows and a history in one commit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import pyomid
import pyomid.spark
from portions import first
from pyomid.errors import Misuse
from pyomid.spark import kept_deletes, merge

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from pyomid.spark import SparkDatabase, SparkTransaction

pytestmark = pytest.mark.spark

COLUMNS = ("x", "y")
KEYS = ("a", "ä", "\0", "A", "x" * 400)
SEQUENCES: dict[str, Callable[[int], Any]] = {
    "BIGINT": lambda number: number - 20,
    "BINARY": lambda number: bytes([number * 3]),
    "DECIMAL(9, 2)": lambda number: Decimal(number) / 4 - 5,
}

Values = tuple[Any, ...]


class Change(NamedTuple):
    """`op`: c, d, t or r (of a snapshot). `kept`: names of the columns that it leaves out."""

    op: str
    key: int
    values: Values
    seq: int
    kept: frozenset[str]

    @property
    def told(self) -> object:
        """What two changes of one sequence must have in common."""
        given = tuple(None if name in self.kept else v for name, v in zip(COLUMNS, self.values, strict=True))
        return self.op == "d" or (given, self.kept)


class RefusedBatch(Exception):
    """By the model."""


def only(values: Iterable[Any]) -> Any:
    found = set(values)
    if len(found) > 1:
        raise RefusedBatch
    return found.pop()


def by_key(batch: Sequence[Change]) -> dict[int, list[Change]]:
    found: dict[int, list[Change]] = {}
    for change in batch:
        if change.op != "t":
            found.setdefault(change.key, []).append(change)
    return found


@dataclass(frozen=True)
class Rows:
    """`rows`: key → (sequence, values)."""

    rows: dict[int, tuple[int, Values]] = field(default_factory=dict)
    deletes: dict[int, int] = field(default_factory=dict)
    cut: int = -1

    def after(self, batch: Sequence[Change]) -> Rows:
        cut = max([self.cut, *(change.seq for change in batch if change.op == "t")])
        rows, deletes = {key: row for key, row in self.rows.items() if row[0] > cut}, dict(self.deletes)
        for key, changes in by_key(batch).items():
            base = rows[key][0] if key in rows else max(cut, deletes.get(key, -1))
            counting = [change for change in changes if change.seq > base]
            latest = max((change.seq for change in counting), default=None)
            if latest is None:
                continue
            only(change.told for change in counting if change.seq == latest)
            if any(change.op == "d" for change in counting if change.seq == latest):
                rows.pop(key, None)
                deletes[key] = latest
            else:
                before = rows[key][1] if key in rows else None
                values = [self._value(counting, place, before) for place in range(len(COLUMNS))]
                rows[key] = latest, tuple(values)
        return Rows(rows, deletes, cut)

    def _value(self, changes: Sequence[Change], place: int, before: Values | None) -> Any:
        """The value of the latest change that carries the column, or else that of the row before."""
        given = [change for change in changes if change.op == "d" or COLUMNS[place] not in change.kept]
        latest = max((change.seq for change in given), default=None)
        if latest is not None:
            at = [change for change in given if change.seq == latest]
            found = only(None if change.op == "d" else change.values[place : place + 1] for change in at)
        else:
            found = None if before is None else before[place : place + 1]
        if found is None:
            raise RefusedBatch
        return found[0]

    def shown(self) -> set[Any]:
        return {(key, seq, values) for key, (seq, values) in self.rows.items()}


@dataclass(frozen=True)
class History:
    """`points`: key → sequence → values of a version; None: a delete."""

    points: dict[int, dict[int, Values | None]] = field(default_factory=dict)
    cuts: frozenset[int] = frozenset()

    def after(self, batch: Sequence[Change]) -> History:
        cuts = self.cuts | {change.seq for change in batch if change.op == "t"}
        points = {key: dict(of_key) for key, of_key in self.points.items()}
        for key, changes in by_key(batch).items():
            self._add(points.setdefault(key, {}), changes, cuts)
        return History(points, cuts)

    def _add(self, points: dict[int, Values | None], changes: Sequence[Change], cuts: frozenset[int]) -> None:
        before: Values | None = None
        for seq in sorted({*points, *cuts, *(change.seq for change in changes)}):
            at = [change for change in changes if change.seq == seq]
            if seq in cuts:
                before = None
            elif seq in points:
                before = points[seq]
            elif at:
                only(change.told for change in at)
                new = None if at[0].op == "d" else self._values(at[0], before)
                if new is None or new != before or any(change.op != "r" for change in at):
                    points[seq] = new
                before = new

    def _values(self, change: Change, before: Values | None) -> Values:
        if change.kept and before is None:
            raise RefusedBatch
        return tuple(
            before[place] if name in change.kept and before is not None else change.values[place]
            for place, name in enumerate(COLUMNS)
        )

    def shown(self) -> set[Any]:
        found = set()
        for key, points in self.points.items():
            for seq, values in points.items():
                ends = [other for other in {*points, *self.cuts} if other > seq]
                if values is not None and seq not in self.cuts:
                    found.add((key, seq, values, min(ends, default=None), not ends))
        return found


def change(rng: random.Random, seq: int, cuts: set[int]) -> Change:
    """A change that leaves out columns has no sequence of a truncation, and a snapshot's has all columns."""
    op, kept = rng.choice("ccccdddrt"), frozenset[str]()
    if op == "c" and seq not in cuts and rng.random() < 0.3:
        kept = frozenset(rng.sample(COLUMNS, rng.randint(1, 2)))
    if op == "t":
        cuts.add(seq)
    return Change(op, rng.randrange(len(KEYS)), (rng.choice((None, 0, 1)), rng.choice((None, "", "p"))), seq, kept)


def batches(rng: random.Random) -> list[list[Change]]:
    """With ties in half of the cases; later batches have some changes again."""
    seqs = rng.choices(range(50), k=40) if rng.random() < 0.5 else rng.sample(range(50), 40)
    cuts: set[int] = set()
    changes = [change(rng, seq, cuts) for seq in seqs]
    changes = [each for each in changes if each.op == "t" or not each.kept or each.seq not in cuts]
    rng.shuffle(changes)
    found: list[list[Change]] = []
    while changes:
        again = rng.choices(changes[:1] + [each for batch in found for each in batch], k=3)
        taken = rng.choice((3, 8, 20))
        found.append([*changes[:taken], *again])
        changes = changes[taken:]
    return found


def apply(tx: SparkTransaction, seed: int, batch: Sequence[Change], sequence: str, *, snapshots: bool) -> None:
    of = SEQUENCES[sequence]
    rows = [(c.op, None if c.op == "t" else KEYS[c.key], *c.values, of(c.seq), sorted(c.kept)) for c in batch]
    frame = tx.session.createDataFrame(
        rows, f"op string, id string, x int, y string, seq {sequence}, kept array<string>"
    )
    given: Any = {"sequence_by": "seq", "deletes": "op = 'd'", "truncates": "op = 't'", "unchanged": "kept"}
    tx.apply_changes(frame, f"now_{seed}", **given)
    of_history: Any = {"stored_as": "history", "snapshots": "op = 'r'" if snapshots else None}
    tx.apply_changes(frame.repartition(2), f"past_{seed}", **given, **of_history)


def stored(db: SparkDatabase, seed: int, sequence: str) -> tuple[set[Any], set[Any]]:
    numbers = {SEQUENCES[sequence](number): number for number in range(50)}

    def number(value: Any) -> int | None:
        if value is None:
            return None
        return numbers[bytes(value) if sequence == "BINARY" else value]

    def key_and_values(row: Row) -> tuple[int, Values]:
        return KEYS.index(row["id"]), (row["x"], row["y"])

    now, past = (db.read(f"{name}_{seed}").collect() for name in ("now", "past"))
    rows = {(key, number(row["seq"]), values) for row in now for key, values in [key_and_values(row)]}
    versions = {
        (key, number(row["valid_from"]), values, number(row["valid_to"]), row["is_current"])
        for row in past
        for key, values in [key_and_values(row)]
    }
    return rows, versions


@pytest.mark.parametrize(
    "seed", [*first(0, range(3)), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 40))]
)
def test_changes_have_the_effect_of_their_sequences(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A batch that is refused changes nothing."""
    db = pyomid.spark.connect(spark, url)
    rng = random.Random(seed)
    sequence, snapshots = list(SEQUENCES)[seed % 3], rng.random() < 0.5
    for module in (merge, kept_deletes):
        monkeypatch.setattr(module, "LOOKED_UP_ROWS_MAX", (20_000, -1)[seed % 2])
    db.sql(f"CREATE TABLE now_{seed} (id STRING, x INT, y STRING, seq {sequence}, PRIMARY KEY (id))")
    of_version = f"valid_from {sequence}, valid_to {sequence}, is_current BOOLEAN, PRIMARY KEY (id, valid_from)"
    db.sql(f"CREATE TABLE past_{seed} (id STRING, x INT, y STRING, {of_version})")
    rows, history = Rows(), History()
    for batch in batches(rng):
        counted = batch if snapshots else [c._replace(op="c") if c.op == "r" else c for c in batch]
        told = f"{seed=}, {rows=}, {history=}, {batch=}"
        error = None
        try:
            with db.begin() as tx:
                apply(tx, seed, batch, sequence, snapshots=snapshots)
        except Misuse as refused:
            error = refused
        try:
            rows, history = rows.after(counted), history.after(counted)
        except RefusedBatch:
            assert error is not None, told
        else:
            assert error is None, f"{told}: {error}"
        assert stored(db, seed, sequence) == (rows.shown(), history.shown()), told
