"""Change data: inserts, updates, deletes and truncations of another database, applied to a table in one transaction.

    changes      one row per change: the table's columns, a sequence, and the columns that `deletes` and `reason` use
    bad changes  have no key or no sequence, an unknown operation or a `reason`: refused, or written to table `bad`
    latest       the change with the highest sequence, for each key
    floor        the sequence of the last kept delete or truncation, for each key (`kept_deletes`)
    merge        applies the latest change if its sequence is above the row's, or above the floor if there is no row

Each row stores the sequence of its last change, so a redelivered or late change has no effect. A column that a change
leaves out gets the value of the latest change that carries the column, or keeps the row's value if that is newer. A
delete discards every value: no value is carried across it. A truncation deletes every row up to its own sequence.

Two transactions that apply changes of the same key conflict, even if one of them deletes a row that does not exist:
that delete claims the key. A truncation claims the whole table, because it cannot see rows that others are inserting.

`change_history` stores every change, not only the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType

from pyomid.errors import Misuse
from pyomid.rows.schema import column_named, schema_of
from pyomid.spark import change_history
from pyomid.spark.change_rules import (
    DELETED,
    REASON,
    TRUNCATES,
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
from pyomid.spark.expressions import fitted, quoted
from pyomid.spark.frame_schema import column_types, struct_of
from pyomid.spark.kept_deletes import KeptDeletes, check_keep_seconds
from pyomid.spark.local_frames import LocalFrame, local_rows, rows_given
from pyomid.spark.merge import Clause, Kind
from pyomid.spark.sessions import any_case
from pyomid.spark.source.options import checked_choice
from pyomid.spark.source.write_task import CLAIM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyomid.spark.merge import MergeResult
    from pyomid.spark.transactions import SparkTransaction
    from pyomid.types import TableInfo

STORED_AS: Final = ("rows", "history")

_LATEST, _AMBIGUOUS, _TOTAL, _BAD, _FLOOR, _ALL_BELOW, _STORED, _IS_STORED = (f"_pyomid_of_key_{n}" for n in range(8))


@dataclass(frozen=True, slots=True)
class ChangesResult:
    """Counts of the rows that one `apply_changes` call changed. Other transactions see the changes only after this
    transaction commits.

    `ignored` counts changes that had no effect, for example because the frame or the table has a later change of the
    same key. `bad` counts changes that were written to the table of bad changes. `truncated` counts rows that
    truncations deleted. For a history, `inserted` counts new versions, `updated` counts versions whose end changed, and
    `deleted` counts deletes. For a history, `truncated` counts versions that were removed because they began at the
    sequence of a truncation.
    """

    table: str
    updated: int
    inserted: int
    deleted: int
    ignored: int
    bad: int
    truncated: int = 0


def apply_changes(
    tx: SparkTransaction,
    given: DataFrame | LocalFrame,
    table: str,
    asked: ChangeOptions,
    *,
    stored_as: str,
    keep_deletes_seconds: float | None,
) -> ChangesResult:
    """Apply change data to a table and return the counts. Implements `SparkTransaction.apply_changes`."""
    what = f"the changes of {table!r}"
    stored_as = checked_choice("stored_as", stored_as, STORED_AS)
    keep_s = check_keep_seconds(keep_deletes_seconds)
    info = tx.writable(table)
    changes = rows_given(tx.session, given, what)
    if isinstance(changes, pa.Table):
        changes = local_rows(tx.session, changes, what, column_types(info)).frame(tx.session)
    if stored_as == "history":
        done = change_history.apply(tx, changes, info, asked, keep_s, what)
        return ChangesResult(table, done.updated, done.inserted, done.deleted, done.ignored, done.bad, done.truncated)
    return _apply_to_rows(tx, changes, info, asked, keep_s, what)


def _apply_to_rows(
    tx: SparkTransaction, changes: DataFrame, info: TableInfo, asked: ChangeOptions, keep_s: float | None, what: str
) -> ChangesResult:
    table, schema = info.name, schema_of(info)
    names = _names(info, asked.sequence_by, any_case=any_case(tx.session), what=what)
    check_columns(names, changes, what)
    types = struct_of(schema, [*names.key, names.sequence])
    check_ordered(types[names.sequence].dataType, names.shown, what)
    kept = KeptDeletes.deletes(tx, info, names.sequence, keep_s)
    truncations = KeptDeletes.truncates(tx, info, names.sequence, keep_s)
    found = judged(tx, changes, info, names, types, asked)
    if asked.bad is not None or asked.truncates is not None:
        found.persist()  # read twice: if the source changes in between, no change may be lost
    left_out = names.left_out if asked.unchanged is not None else []
    latest = _latest(found, names, left_out).persist()
    try:
        with tx.writing(f"{what} cannot be applied", table, "refuse"):
            counts = _counts(latest)
            at = _Truncation.of(found, names, counts_truncations=asked.truncates is not None)
            bad = counts.bad + at.bad
            if bad:
                refuse(tx, found, table, asked.bad, what)
            all_below = at.all_below(truncations)
            truncated = 0
            if at.count and all_below is not None:
                truncated = _truncate(tx, info, names, all_below)
            floored = _floored(latest, counts.keys, types, names, kept, all_below)
            if counts.ambiguous:
                _refuse_ambiguous(tx, floored, table, names, what)
            done = _merged(tx, _source(floored, left_out), table, names, struct_of(schema, left_out), keep_s)
            if kept is not None and counts.deletes:
                ends = floored.where(f"{_LATEST}.{DELETED}").select(f"{_LATEST}.*", _FLOOR)
                kept.made().put(ends.where(_is_above(f.col(quoted(names.sequence)), f.col(_FLOOR))))
            if truncations is not None and all_below is not None and at.count:
                truncations.made().put(all_below.withColumnRenamed(_ALL_BELOW, names.sequence))
        applied = done.updated + done.inserted + done.deleted
        ignored = counts.total - counts.bad - applied
        return ChangesResult(table, done.updated, done.inserted, done.deleted, ignored, bad, truncated)
    finally:
        latest.unpersist()
        found.unpersist()


def _names(info: TableInfo, sequence_by: str, *, any_case: bool, what: str) -> Names:
    columns = [column.name for column in schema_of(info).columns]
    key = [part.name for part in schema_of(info).row_key]
    folds = isinstance(sequence_by, str) and any_case
    sequence = column_named(sequence_by, columns, what, any_case=folds) or sequence_by
    if sequence in key or sequence not in columns:
        raise Misuse(
            f"{what}: sequence_by={sequence!r} must name a column of the table that is not in the row key, because "
            "each row stores the sequence of its last change there; add such a column to the table",
            column=sequence,
        )
    return Names(columns, key, sequence, sequence)


def _latest(changes: DataFrame, names: Names, left_out: Sequence[str]) -> DataFrame:
    """Return one row per key. It holds the key's latest valid change; the highest sequence that two different changes
    share, if the result may depend on which one counts; and the numbers of changes and of bad changes. For each column
    that may be left out, it holds the latest change that carries or ends the value: value, sequence, and whether the
    value ends. A null stands for a change or a sequence that does not exist.
    """
    is_good, sequence = f.col(REASON).isNull(), f.col(quoted(names.sequence))
    values = {name: f.col(quoted(name)) for name in names.columns}
    omits = {name: leaves_out(changes, name) for name in left_out}
    shown = [f.when(~omits[name], value).alias(name) if name in omits else value for name, value in values.items()]
    latest = f.max_by(f.when(is_good, f.struct(*values.values(), DELETED)), f.when(is_good, sequence))
    ambiguous = [_ambiguous([*shown, f.array(*omits.values()), f.col(DELETED)], sequence, is_good)]
    carried = []
    for name, is_omitted in omits.items():
        is_given = is_good & (f.col(DELETED) | ~is_omitted)
        value = f.when(~f.col(DELETED), values[name])
        given = f.struct(value.alias("value"), sequence.alias("at"), f.col(DELETED).alias("ends"))
        carried.append(f.max_by(f.when(is_given, given), f.when(is_given, sequence)))
        ambiguous.append(_ambiguous([value, f.col(DELETED)], sequence, is_given))
    of_rows = changes.where(f.col(TRUNCATES).isNull() | ~f.col(TRUNCATES))
    return of_rows.groupBy(*(values[name] for name in names.key)).agg(
        latest.alias(_LATEST),
        (f.greatest(*ambiguous) if len(ambiguous) > 1 else ambiguous[0]).alias(_AMBIGUOUS),
        f.count("*").alias(_TOTAL),
        f.count(REASON).alias(_BAD),
        *(each.alias(_carried(place)) for place, each in enumerate(carried)),
    )


def _carried(place: int) -> str:
    return f"_pyomid_carried_{place}"


def _ambiguous(columns: Sequence[Column], sequence: Column, among: Column) -> Column:
    """Return the highest sequence of these changes if two different changes share it, that is, if the highest and the
    lowest hash at it differ; else null."""
    hashed = hash_of(columns)
    high, low = (
        f.max(f.when(among, f.struct(sequence.alias("at"), each.alias("hash"))))
        for each in (hashed, f.bitwise_not(hashed))
    )
    return f.when(high["hash"] != f.bitwise_not(low["hash"]), high["at"])


@dataclass(frozen=True, slots=True)
class _Counts:
    """Numbers of keys, of changes of rows (`total`), of bad changes, of keys with two different changes of the same
    sequence (`ambiguous`), and of keys whose latest change is a delete."""

    keys: int
    total: int
    bad: int
    ambiguous: int
    deletes: int


def _counts(latest: DataFrame) -> _Counts:
    is_deleted = f.col(f"{_LATEST}.{DELETED}")
    counted = (f.count("*"), f.sum(_TOTAL), f.sum(_BAD), f.count(_AMBIGUOUS), f.count_if(is_deleted))
    (counts,) = latest.agg(*counted).collect()
    return _Counts(*(int(count or 0) for count in counts))


@dataclass(frozen=True, slots=True)
class _Truncation:
    """The truncations among the changes, with the numbers of valid and of bad truncations."""

    changes: DataFrame
    sequence: str
    count: int = 0
    bad: int = 0

    @classmethod
    def of(cls, changes: DataFrame, names: Names, *, counts_truncations: bool) -> _Truncation:
        if not counts_truncations:
            return cls(changes, names.sequence)
        of_any = changes.where(TRUNCATES)
        (counts,) = of_any.agg(f.count_if(f.col(REASON).isNull()), f.count(REASON)).collect()
        return cls(of_any.where(f"{REASON} is null"), names.sequence, *counts)

    def all_below(self, kept: KeptDeletes | None) -> DataFrame | None:
        """Return one row with the sequence of the last truncation, new or kept; None if there is no truncation."""
        found = [self.changes] if self.count else []
        if kept is not None and kept.info is not None:
            found.append(kept.read())
        some = [frame.select(f.col(quoted(self.sequence)).alias(_ALL_BELOW)) for frame in found]
        if not some:
            return None
        both = some[0] if len(some) == 1 else some[0].union(some[1])
        return both.agg(f.max(_ALL_BELOW).alias(_ALL_BELOW))


def _truncate(tx: SparkTransaction, info: TableInfo, names: Names, all_below: DataFrame) -> int:
    """Delete every row whose sequence is null or at most `all_below`. Return the number of deleted rows."""
    tx.claim_table(info, f"a truncation of {info.name!r}")
    sequence = f.col(quoted(names.sequence))
    rows = tx.read(info.name).crossJoin(f.broadcast(all_below))
    ended = rows.where(sequence.isNull() | (sequence <= f.col(_ALL_BELOW)))
    return tx.delete(ended.select(*map(quoted, names.key)), info.name).rows


def _floored(
    latest: DataFrame,
    keys: int,
    types: StructType,
    names: Names,
    kept: KeptDeletes | None,
    all_below: DataFrame | None,
) -> DataFrame:
    """Return the latest changes with the floor of each key: the sequence of its last kept delete or truncation, or
    null."""
    if kept is not None and kept.info is not None:
        latest = kept.beside(latest, keys, names.sequence, _FLOOR)
    else:
        latest = latest.withColumn(_FLOOR, f.lit(None).cast(types[names.sequence].dataType))
    if all_below is None:
        return latest
    both = latest.crossJoin(f.broadcast(all_below))
    return both.withColumn(_FLOOR, f.greatest(_FLOOR, _ALL_BELOW)).drop(_ALL_BELOW)


def _refuse_ambiguous(tx: SparkTransaction, floored: DataFrame, table: str, names: Names, what: str) -> None:
    """Raise `Misuse` if a row would take a value from one of two different changes of the same sequence. Changes that
    are not above the row's sequence (or above the floor, if there is no row) have no effect and are not refused."""
    sequence = f.col(quoted(names.sequence)).alias(_STORED)
    stored = tx.read(table).select(*map(quoted, names.key), sequence, f.lit(True).alias(_IS_STORED))
    columns = [f.col(f"{_LATEST}.{quoted(name)}").alias(name) for name in names.key]
    ambiguous = floored.where(f.col(_AMBIGUOUS).isNotNull()).select(*columns, _AMBIGUOUS, _FLOOR)
    beside = ambiguous.join(stored, list(names.key), "left")
    floor = f.when(f.col(_IS_STORED), f.col(_STORED)).otherwise(f.col(_FLOOR))
    counting = beside.where(_is_above(f.col(_AMBIGUOUS), floor)).select(*map(quoted, names.key), _AMBIGUOUS).first()
    if counting is not None:
        refuse_ambiguous(counting, what)


def _source(floored: DataFrame, left_out: Sequence[str]) -> DataFrame:
    carried = [_carried(place) for place in range(len(left_out))]
    return floored.where(f"{_LATEST} is not null").select(f"{_LATEST}.*", _FLOOR, *carried)


def _is_above(sequence: Column, floor: Column) -> Column:
    return floor.isNull() | (sequence > floor)


def _merged(
    tx: SparkTransaction,
    source: DataFrame,
    table: str,
    names: Names,
    left_out: StructType,
    keep_s: float | None,
) -> MergeResult:
    """Merge the latest changes into the table. `left_out`: the columns that a change may leave out, with their types.
    Their new values are cast before the choice between new and stored value: otherwise Spark would convert both to a
    common type."""
    sequence, floor, deleted = (f.col(f"source.{quoted(name)}") for name in (names.sequence, _FLOOR, DELETED))
    stored = f.col(f"target.{quoted(names.sequence)}")
    above, newer = _is_above(sequence, floor), _is_above(sequence, stored)
    updates: dict[str, Any] = {name: f"source.{quoted(name)}" for name in names.values}
    inserts: dict[str, Any] = {name: f"source.{quoted(name)}" for name in names.columns}
    key = [f.col(f"source.{quoted(each)}") for each in names.key]
    for place, (name, kind) in enumerate((field.name, field.dataType) for field in left_out.fields):
        carried, none = f.col(f"source.{_carried(place)}"), missing(table, name, key)
        has: DataType = source.schema[_carried(place)].dataType["value"].dataType  # type: ignore[index]  # a struct
        value = fitted(carried["value"], has, kind, f"the changes of {table!r}", name)
        given = f.when(carried["ends"], none).otherwise(value)
        is_kept = carried.isNull() | ~(carried["at"] > stored)
        is_ended = carried.isNull() | ~_is_above(carried["at"], floor)
        updates[name] = f.when(is_kept, f.col(f"target.{quoted(name)}")).otherwise(given)
        inserts[name] = f.when(is_ended, none).otherwise(given)
    merge = tx.merge(source, table, on=list(names.key))
    merge = merge.whenMatched(deleted & newer).delete().whenMatched(newer).update(updates)
    merge = merge.whenNotMatched(~deleted & above).insert(inserts)
    if keep_s != 0:
        merge = merge.with_clause(Clause(Kind.NOT_MATCHED, deleted & above, CLAIM))
    return merge.merge()
