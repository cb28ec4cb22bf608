"""Merges of random tables, sources and clauses, compared with what a few lines of Python make of the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import pyomid
import pyomid.spark
from portions import first
from pyomid.errors import Misuse
from pyomid.spark import merge
from pyomid.spark.merge import Merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DDL = "a string, b int, n long, t string"
COLUMNS = ("a", "b", "n", "t")
KEY = ("a", "b")
VALUES: dict[str, tuple[Any, ...]] = {"a": ("x", "y", ""), "b": (0, 1, -1), "n": (None, 0, 1, 2), "t": (None, "p", "")}
ON = (KEY, KEY, ("b", "a"), ("a",), ("t",), ("a", "b", "n"))

Row = dict[str, Any]
Table = dict[tuple[Any, ...], Row]
Told = Callable[[Row, Row], Any]
"""Of source and target; the row that is missing is empty."""


def null_safe(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: None if one is None or other is None else function(one, other)


above, same, added = (null_safe(f) for f in (lambda x, y: x > y, lambda x, y: x == y, lambda x, y: x + y))

OF_SOURCE: dict[str, Told] = {
    "source.n > 1": lambda s, t: above(s["n"], 1),
    "source.t is not null": lambda s, t: s["t"] is not None,
    "cast(null as boolean)": lambda s, t: None,
}
OF_TARGET: dict[str, Told] = {
    "target.n > 1": lambda s, t: above(t["n"], 1),
    "target.t is null": lambda s, t: t["t"] is None,
    "target.a >= 'y' and target.b = 1": lambda s, t: t["a"] >= "y" and t["b"] == 1,
}
OF_BOTH: dict[str, Told] = {
    "source.n > target.n": lambda s, t: above(s["n"], t["n"]),
    "source.t = target.t": lambda s, t: same(s["t"], t["t"]),
    "source.t <=> target.t": lambda s, t: s["t"] == t["t"],
}
CONDITIONS = {
    "whenMatched": OF_SOURCE | OF_TARGET | OF_BOTH,
    "whenNotMatched": OF_SOURCE,
    "whenNotMatchedBySource": OF_TARGET,
}
OWN_VALUES: dict[str, dict[str, Told]] = {
    "n": {"target.n + 1": lambda s, t: added(t["n"], 1), "target.b": lambda s, t: t["b"], "null": lambda s, t: None},
    "t": {"'gone'": lambda s, t: "gone", "target.a": lambda s, t: t["a"]},
}
PAIR_VALUES: dict[str, dict[str, Told]] = {
    "n": {"source.n": lambda s, t: s["n"], "source.n + target.n": lambda s, t: added(s["n"], t["n"])},
    "t": {"source.t": lambda s, t: s["t"], "concat(target.t, source.t)": lambda s, t: added(t["t"], s["t"])},
}
INSERTED: dict[str, dict[str, Told]] = {
    "a": {"source.a": lambda s, t: s["a"]},
    "b": {"source.b": lambda s, t: s["b"], "source.b + 1": lambda s, t: added(s["b"], 1)},
    "n": {"source.n * 2": lambda s, t: added(s["n"], s["n"])},
}


@dataclass(frozen=True)
class Clause:
    """`values`: column → (SQL, the same in Python); None: all of the source's, or a delete."""

    kind: str
    condition: tuple[str, Told] | None
    action: str
    values: Mapping[str, tuple[str, Told]] | None = None


class RefusedMerge(Exception):
    """By the model."""


def row(rng: random.Random) -> Row:
    return {name: rng.choice(values) for name, values in VALUES.items()}


def source_rows(rng: random.Random, on: Sequence[str]) -> list[Row]:
    """Some keys are null, some come twice."""
    rows: list[Row] = []
    for _ in range(rng.randint(0, 6)):
        made = {name: None if rng.random() < 0.08 else value for name, value in row(rng).items()}
        if rng.random() < 0.1 or all(any(made[name] != other[name] for name in on) for other in rows):
            rows.append(made)
    return rows


def chosen(rng: random.Random, *pools: dict[str, dict[str, Told]]) -> dict[str, tuple[str, Told]]:
    together = {name: [each for pool in pools for each in pool.get(name, {}).items()] for name in pools[0]}
    return {name: rng.choice(each) for name, each in together.items()}


def clauses(rng: random.Random, on: Sequence[str]) -> list[Clause]:
    found = []
    for kind in rng.sample(list(CONDITIONS), rng.randint(1, 3)):
        number = rng.randint(1, 3)
        for place in range(number):
            is_open = place == number - 1 and rng.random() < 0.5
            condition = None if is_open else rng.choice(list(CONDITIONS[kind].items()))
            if kind == "whenNotMatched":
                values = chosen(rng, INSERTED) if rng.random() < 0.5 else None
                found.append(Clause(kind, condition, "insert", values))
            elif rng.random() < 0.3:
                found.append(Clause(kind, condition, "delete"))
            elif kind == "whenNotMatchedBySource":
                found.append(Clause(kind, condition, "update", chosen(rng, OWN_VALUES)))
            else:
                whole = set(KEY) <= set(on) and rng.random() < 0.4
                values = None if whole else chosen(rng, OWN_VALUES, PAIR_VALUES)
                kept = dict(rng.sample(list(values.items()), 1)) if values and rng.random() < 0.5 else values
                found.append(Clause(kind, condition, "update", kept))
    return found


def merged(table: Table, source: list[Row], on: Sequence[str], applied: list[Clause]) -> tuple[Table, list[int]]:
    """What the table becomes, and how many rows were updated, inserted and deleted."""
    pairs = [(s, t) for s in source for t in table.values() if all(same(s[name], t[name]) for name in on)]
    cases = [("whenMatched", s, t) for s, t in pairs]
    cases += [("whenNotMatched", s, {}) for s in source if not any(s is one for one, _ in pairs)]
    cases += [("whenNotMatchedBySource", {}, t) for t in table.values() if not any(t is other for _, other in pairs)]
    result, changed, counts = dict(table), set(), {"update": 0, "insert": 0, "delete": 0}
    for kind, s, t in cases:
        clause = next(
            (c for c in applied if c.kind == kind and (c.condition is None or c.condition[1](s, t) is True)), None
        )
        if clause is None:
            continue
        if clause.action == "insert":
            new = dict.fromkeys(COLUMNS) | _values(clause, s, t)
        else:
            new = t | {name: value for name, value in _values(clause, s, t).items() if name not in KEY}
        key = tuple(new[name] for name in KEY)
        if None in key or key in changed or (clause.action == "insert" and key in table):
            raise RefusedMerge
        changed.add(key)
        counts[clause.action] += 1
        if clause.action == "delete":
            del result[key]
        else:
            result[key] = new
    return result, list(counts.values())


def _values(clause: Clause, s: Row, t: Row) -> Row:
    if clause.action == "delete":
        return {}
    return s if clause.values is None else {name: told(s, t) for name, (_, told) in clause.values.items()}


def described(made: Merge, applied: list[Clause]) -> Merge:
    for clause in applied:
        when = getattr(made, clause.kind)(*([] if clause.condition is None else [clause.condition[0]]))
        if clause.action == "delete":
            when.delete()
        elif clause.values is None:
            getattr(when, f"{clause.action}All")()
        else:
            getattr(when, clause.action)({name: sql for name, (sql, _) in clause.values.items()})
    return made


def frame(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return spark.createDataFrame([tuple(each[name] for name in COLUMNS) for each in rows], DDL)


def content(spark: SparkSession, url: str, table: str) -> Table:
    rows = spark.read.format("omid").options(url=url, table=table, numPartitions=1).load().collect()
    return {tuple(row[name] for name in KEY): row.asDict() for row in rows}


@pytest.mark.parametrize(
    "seed", [*first(1, range(4)), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 40))]
)
def test_a_merge_is_what_its_clauses_say(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Refused, it changes nothing."""
    db = pyomid.spark.connect(spark, url)
    rng = random.Random(seed)
    monkeypatch.setattr(merge, "LOOKED_UP_ROWS_MAX", (merge.LOOKED_UP_ROWS_MAX, -1)[seed % 2])
    present = {tuple(each[name] for name in KEY): each for each in (row(rng) for _ in range(rng.randint(0, 8)))}
    name, level = f"t{seed}", rng.choice(("row", "cell"))
    with db.begin(conflict_level=level) as tx:
        tx.write(frame(spark, list(present.values())).coalesce(1), name, row_key=KEY)
    for _ in range(2):
        on = rng.choice(ON)
        source, applied = source_rows(rng, on), clauses(rng, on)
        told = f"on {on}, {present=}, {source=}, {applied=}"
        found = None
        try:
            with db.begin() as tx:
                given = frame(spark, source).repartition(rng.choice((1, 2)))
                done = described(tx.merge(given, name, on=on), applied).merge()
                found = [done.updated, done.inserted, done.deleted]
        except Misuse as error:
            told += f", refused: {error}"
        try:
            present, counts = merged(present, source, on, applied)
            assert found == counts, told
        except RefusedMerge:
            assert found is None, told
        assert content(spark, url, name) == present, told
