"""Change data as a history (slowly changing dimension of type 2): each change is a version of its row.

    item  valid_from  quantity  valid_to  is_current        row key (item, valid_from)
    pen            1         9         3  false
    pen            3         8         7  false             deleted at 7
    pen           12         5      null  true

The versions of a key are recomputed from all its points, ordered by sequence. At the same sequence, points rank so:

    0  stored versions                a change at the sequence of a stored version was redelivered and is ignored
    1  deletes                        from the ends of stored versions, and kept deletes
    2  changes
    3  truncations                    which also end a version that begins at their own sequence

A version is valid until the next point. A late change therefore becomes a version between two others, and a change from
before a delete is never current. The columns that a late change sets do not change in the versions after it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, Window
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, StructField, StructType

from pyomid.errors import Misuse
from pyomid.rows.schema import schema_of
from pyomid.spark.change_rules import (
    DELETED,
    REASON,
    SEQUENCE,
    SNAPSHOT,
    TRUNCATES,
    UNCHANGED,
    ChangeOptions,
    Names,
    check_columns,
    check_ordered,
    hash_of,
    judged,
    leaves_out,
    missing,
    refuse,
    refuse_ambiguous,
)
from pyomid.spark.expressions import fitted, quoted, resolved
from pyomid.spark.frame_schema import struct_of
from pyomid.spark.kept_deletes import KeptDeletes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.window import WindowSpec

    from pyomid.spark.transactions import SparkTransaction
    from pyomid.types import TableInfo

FROM, TO, CURRENT = "valid_from", "valid_to", "is_current"

_RANK, _IS_VERSION, _WAS_TO, _AMBIGUOUS, _HASH, _BEFORE, _NUMBER, _LEFT_OUT = (f"_pyomid_point_{n}" for n in range(8))
_TO, _IS_MOVED, _IS_NEW, _IS_NEW_END, _IS_GONE = (f"_pyomid_version_{n}" for n in range(5))
_NOTHING: Final[Mapping[str, Column]] = MappingProxyType({})

_STORED, _ENDED, _CHANGE, _TRUNCATION = range(4)
"""Ranks of the points that have the same sequence. Of the first three kinds, only the lowest rank counts."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Counts of what the changes did to a history."""

    updated: int
    inserted: int
    deleted: int
    ignored: int
    bad: int
    truncated: int


def apply(
    tx: SparkTransaction, changes: DataFrame, info: TableInfo, asked: ChangeOptions, keep_s: float | None, what: str
) -> Applied:
    """Apply change data to a table of versions and return the counts. The transaction claims its written tables as a
    whole, because two transactions that add versions of one key need not write a common row."""
    history = _History.of(tx, info, asked, what)
    kept = KeptDeletes.deletes(tx, info, FROM, keep_s)
    truncations = KeptDeletes.truncates(tx, info, FROM, keep_s)
    found = history.judged(changes).persist()
    points = None
    try:
        with tx.writing(f"{what} cannot be applied", info.name, "refuse"):
            is_truncation = f.col(TRUNCATES) & f.col(REASON).isNull()
            counted = found.agg(f.count("*"), f.count(REASON), f.count_if(is_truncation))
            total, bad, truncates = (int(count) for count in counted.first() or (0, 0, 0))
            if bad:
                refuse(tx, found, info.name, asked.bad, what)
            tx.claim_table(info, f"the history {info.name!r}")
            new_truncations = found.where(is_truncation).select(f.col(SEQUENCE).alias(FROM)).distinct()
            ended = [new_truncations] if truncates else []
            if truncations is not None and truncations.info is not None:
                ended.append(truncations.read())
            points = history.timeline(found, kept, ended, is_truncated=truncates > 0).persist()
            done = history.write(points, total - bad - truncates, bad)
            if kept is not None and done.deleted:
                kept.made().put(points.where(_IS_NEW_END))
            if truncations is not None and truncates:
                truncations.made().put(new_truncations)
        return done
    finally:
        found.unpersist()
        if points is not None:
            points.unpersist()


@dataclass(frozen=True, slots=True)
class _History:
    """A table of versions to which changes are applied."""

    tx: SparkTransaction
    info: TableInfo
    names: Names
    types: StructType
    """Types of the key columns, of the value columns and of `valid_from`."""
    asked: ChangeOptions
    what: str

    @classmethod
    def of(cls, tx: SparkTransaction, info: TableInfo, asked: ChangeOptions, what: str) -> _History:
        schema = schema_of(info)
        types = struct_of(schema, [column.name for column in schema.columns])
        key = [part.name for part in schema.row_key]
        _check_shape(info, types, key)
        columns = [name for name in types.names if name not in (FROM, TO, CURRENT)]
        check_ordered(types[FROM].dataType, asked.sequence_by, what)
        names = Names(columns, key[:-1], SEQUENCE, asked.sequence_by)
        return cls(tx, info, names, struct_of(schema, [*columns, FROM]), asked, what)

    @property
    def key(self) -> list[Column]:
        return [f.col(quoted(name)) for name in self.names.key]

    def judged(self, changes: DataFrame) -> DataFrame:
        check_columns(self.names, changes, self.what)
        of_key = [self.types[name] for name in self.names.key]
        types = StructType([*of_key, StructField(SEQUENCE, self.types[FROM].dataType)])
        return judged(self.tx, changes, self.info, self.names, types, self.asked)

    def timeline(
        self, found: DataFrame, kept: KeptDeletes | None, truncations: Sequence[DataFrame], *, is_truncated: bool
    ) -> DataFrame:
        """Return every point of the changed keys, with the new end of its version. `is_truncated`: of all keys."""
        changes = self._changes(found)
        keys = changes.select(*self.key).distinct()
        stored = self.tx.read(self.info.name)
        if is_truncated:
            keys = keys.union(stored.select(*self.key)).distinct()
        else:
            stored = stored.join(keys, list(self.names.key), "left_semi")
        versions = self._points(stored, _STORED, {_IS_VERSION: f.lit(True), _WAS_TO: f.col(TO)})
        ends = stored.where(f.col(TO).isNotNull()).select(*self.key, f.col(TO).alias(FROM))
        parts = [versions, self._points(ends, _ENDED), changes]
        if kept is not None and kept.info is not None:
            parts.append(self._points(kept.read().join(keys, list(self.names.key), "left_semi"), _ENDED))
        parts += [self._points(keys.crossJoin(f.broadcast(each)), _TRUNCATION) for each in truncations]
        points = functools.reduce(lambda one, other: one.unionByName(other), parts)
        of_one = Window.partitionBy(*self.key, FROM).orderBy(_RANK)
        first = points.withColumn(_NUMBER, f.row_number().over(of_one))
        counting = first.where(f"{_NUMBER} = 1 or {_RANK} = {_TRUNCATION}").drop(_NUMBER)
        in_order = Window.partitionBy(*self.key).orderBy(FROM, _RANK)
        whole = self._without_repeated(self._with_left_out(counting, in_order), in_order)
        is_stored, is_change, is_version = f.col(_RANK) == _STORED, f.col(_RANK) == _CHANGE, f.col(_IS_VERSION)
        is_gone = f.col(_TO).eqNullSafe(f.col(FROM))  # a truncation ends the version where it begins
        is_moved = is_stored & ~is_gone & ~f.col(_TO).eqNullSafe(f.col(_WAS_TO))
        return whole.withColumn(_TO, f.lead(FROM).over(in_order)).withColumns(
            {
                _IS_MOVED: is_moved,
                _IS_NEW: is_change & is_version & ~is_gone,
                _IS_NEW_END: is_change & ~is_version,
                _IS_GONE: is_stored & is_gone,
                _AMBIGUOUS: f.col(_AMBIGUOUS) & ~is_gone,
            }
        )

    def write(self, points: DataFrame, changes: int, bad: int) -> Applied:
        kinds = (_IS_MOVED, _IS_NEW, _IS_NEW_END, _IS_GONE, _AMBIGUOUS)
        counts = points.agg(*map(f.count_if, kinds)).first()
        moved, new, deleted, gone, ambiguous = (int(count) for count in counts or (0, 0, 0, 0, 0))
        if ambiguous:
            refuse_ambiguous(points.where(_AMBIGUOUS).select(*self.key, FROM).first(), self.what)
        if moved or new:
            written = points.where(f.col(_IS_MOVED) | f.col(_IS_NEW))
            values = [f.col(quoted(name)) for name in self.types.names]
            end = [f.col(_TO).alias(TO), f.col(_TO).isNull().alias(CURRENT)]
            self.tx.write(written.select(*values, *end), self.info.name)
        if gone:
            self.tx.delete(points.where(_IS_GONE).select(*self.key, FROM), self.info.name)
        return Applied(moved, new, deleted, changes - new - deleted, bad, gone)

    def _points(self, frame: DataFrame, rank: int, given: Mapping[str, Column] = _NOTHING) -> DataFrame:
        """Return these rows as points: key, `valid_from` and values (null if the frame lacks them), then their kind."""
        found = {
            field.name: f.col(quoted(field.name)) if field.name in frame.columns else f.lit(None).cast(field.dataType)
            for field in self.types.fields
        }
        others = {
            _RANK: f.lit(rank),
            _WAS_TO: f.lit(None).cast(self.types[FROM].dataType),
            UNCHANGED: f.lit(None).cast("array<string>"),
            **{name: f.lit(False) for name in (_IS_VERSION, SNAPSHOT, _AMBIGUOUS)},
        }
        return frame.select(*(value.alias(name) for name, value in (found | others | dict(given)).items()))

    def _changes(self, found: DataFrame) -> DataFrame:
        """Return one point per key and sequence of the valid changes, with values cast to the table's types."""
        good = found.where(f"{REASON} is null and not {TRUNCATES}")
        names = self.names.values
        kinds = resolved(good, {name: f.col(quoted(name)) for name in names}, self.what)
        values = {}
        for name, has in zip(names, kinds, strict=True):
            given = f.when(~f.col(DELETED) & ~leaves_out(good, name), f.col(quoted(name)))
            values[name] = fitted(given, has, self.types[name].dataType, self.what, name).alias(name)
        left_out = f.array(*(leaves_out(good, name) for name in names)).alias(_LEFT_OUT)
        hashed = hash_of([*values.values(), left_out, f.col(DELETED)]).alias(_HASH)
        more = [f.col(SEQUENCE).alias(FROM), hashed, *map(f.col, (DELETED, UNCHANGED, SNAPSHOT))]
        one = good.select(*self.key, *values.values(), *more).groupBy(*self.key, FROM)
        first = [f.first(quoted(name)).alias(name) for name in (*names, DELETED, UNCHANGED)]
        differs = (f.max(_HASH) != f.min(_HASH)).alias(_AMBIGUOUS)
        distinct = one.agg(*first, f.bool_and(SNAPSHOT).alias(SNAPSHOT), differs)
        told = {_IS_VERSION: ~f.col(DELETED), **{name: f.col(name) for name in (UNCHANGED, SNAPSHOT, _AMBIGUOUS)}}
        return self._points(distinct, _CHANGE, told)

    def _with_left_out(self, points: DataFrame, in_order: WindowSpec) -> DataFrame:
        """Return the points with left-out columns filled in: each takes its value from the version before."""
        if self.asked.unchanged is None:
            return points
        so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        values = {}
        for name in self.names.values:
            is_kept, value = leaves_out(points, name), f.col(quoted(name))
            given = f.struct(value.alias("value"), f.col(_IS_VERSION).alias("is_version"))
            before = f.last(f.when(~f.col(_IS_VERSION) | ~is_kept, given), ignorenulls=True).over(so_far)
            has_none = before.isNull() | ~before["is_version"]
            of_kept = f.when(has_none, missing(self.info.name, name, self.key)).otherwise(before["value"])
            values[name] = f.when(f.col(_IS_VERSION) & is_kept, of_kept).otherwise(value)
        return points.withColumns(values)

    def _without_repeated(self, points: DataFrame, in_order: WindowSpec) -> DataFrame:
        """Return the points without the rows of a snapshot that equal the version before them."""
        if self.asked.snapshots is None:
            return points
        hashed = points.withColumn(
            _HASH, f.when(f.col(_IS_VERSION), hash_of([f.col(quoted(n)) for n in self.names.values]))
        )
        before = hashed.withColumn(_BEFORE, f.lag(_HASH).over(in_order))
        is_repeated = f.col(SNAPSHOT) & (f.col(_RANK) == _CHANGE) & (f.col(_HASH) == f.col(_BEFORE))
        is_repeated = is_repeated & ~f.col(_AMBIGUOUS)
        return before.where(~f.coalesce(is_repeated, f.lit(False))).drop(_HASH, _BEFORE)


def _check_shape(info: TableInfo, types: StructType, key: Sequence[str]) -> None:
    """Raise `Misuse` if the columns or the row key of a table cannot store versions."""
    what = f"table {info.name!r} cannot store a history: "
    of_key = [name for name in key if name != FROM] or ["…"]
    kind = types[FROM].dataType.simpleString() if FROM in types.names else "BIGINT"
    wanted = (
        f"create the table with the columns {FROM} {kind}, {TO} {kind} and {CURRENT} BOOLEAN, and "
        f"PRIMARY KEY ({', '.join(of_key)}, {FROM})"
    )
    for name in (FROM, TO, CURRENT):
        if name not in types.names:
            raise Misuse(f"{what}it has no column {name!r}; {wanted}", table=info.name, column=name)
    if len(key) < 2 or key[-1] != FROM:
        raise Misuse(f"{what}its row key ({', '.join(key)}) does not end in {FROM!r}; {wanted}", table=info.name)
    for name, needed in ((TO, types[FROM].dataType), (CURRENT, BooleanType())):
        if types[name].dataType != needed or name in key:
            has = types[name].dataType.simpleString()
            raise Misuse(
                f"{what}its column {name!r} of type {has} has the wrong type or belongs to the row key; {wanted}",
                table=info.name,
                column=name,
            )
