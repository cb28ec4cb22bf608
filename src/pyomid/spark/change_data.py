"""Change data: the inserts, updates and deletes of another database, applied to a table in one transaction.

    changes      one row per change: the table's columns, a sequence, and any that `deletes` and `reason` use
    bad changes  without a key or a sequence, of unknown operation, or with a `reason`: refused, or written to `bad`
    latest       of the changes of one key, the one with the highest sequence
    merge        applies it if its sequence is above the row's

Each row stores the sequence of its last change, so a redelivered or late change has no effect. A column that a change
leaves out has the value of the latest change that carries it, or the row's if that is newer. A delete ends every value:
none is kept across it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyomid.errors import Misuse, MisuseType
from pyomid.rows.schema import column_named, schema_of
from pyomid.spark.coded_errors import coded_message
from pyomid.spark.expressions import condition_of, expression, fitted, quoted, resolved
from pyomid.spark.frame_schema import column_types, struct_of
from pyomid.spark.local_frames import LocalFrame, local_rows, rows_given
from pyomid.spark.sessions import any_case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyomid.spark.merge import MergeResult
    from pyomid.spark.transactions import SparkTransaction

BAD_KEY: Final = ("table", "position", "hash")
"""Row key of a table of bad changes; its other columns are `reason` and `change`, a JSON text, of which `hash` is: two
changes at one position are both kept."""

_JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""By default `to_json` truncates timestamps to milliseconds."""

_DELETED, _REASON, _POSITION, _LATEST, _AMBIGUOUS, _TOTAL, _BAD, _UNCHANGED = (f"_pyomid_{n}" for n in range(8))

_ORDERED: Final = (NumericType, DateType, TimestampType, TimestampNTZType, BinaryType)
"""Types whose order may be that of changes. A struct of them is compared field by field."""


@dataclass(frozen=True, slots=True)
class ChangesResult:
    """What `apply_changes` changed; visible to others only once the transaction commits.

    `ignored`: changes whose key had a later change, in the frame or in the table. `bad`: changes written to the table
    of bad changes.
    """

    table: str
    updated: int
    inserted: int
    deleted: int
    ignored: int
    bad: int


def apply_changes(
    tx: SparkTransaction,
    given: DataFrame | LocalFrame,
    table: str,
    *,
    sequence_by: str,
    deletes: Column | str | None,
    reason: Column | str | None,
    position: Column | str | None,
    bad: str | None,
    unchanged: Column | str | None,
) -> ChangesResult:
    """Apply change data to a table, as `SparkTransaction.apply_changes`."""
    what = f"the changes of {table!r}"
    info = tx.writable(table)
    schema = schema_of(info)
    changes = rows_given(tx.session, given, what)
    if isinstance(changes, pa.Table):
        changes = local_rows(tx.session, changes, what, column_types(info)).frame(tx.session)
    columns = [column.name for column in schema.columns]
    is_text = isinstance(sequence_by, str)
    sequence = column_named(sequence_by, columns, what, any_case=is_text and any_case(tx.session)) or sequence_by
    names = _Names(columns, [part.name for part in schema.row_key], sequence)
    _check_columns(names, changes, what)
    kind = struct_of(schema, [names.sequence]).fields[0].dataType
    changes = _sequenced(changes, names.sequence, kind, what)
    omitted = None if unchanged is None else _names_of(changes, unchanged, what)
    folded = f.lit(None) if omitted is None else f.transform(omitted, lambda name: _folded(changes, name))
    judged = changes.withColumns(
        {
            _DELETED: f.lit(False) if deletes is None else condition_of(changes, deletes, what, "deletes"),
            _POSITION: _position(changes, names, position, what),
            _UNCHANGED: folded.cast("array<string>"),
        }
    ).withColumn(_REASON, _reason(changes, names, kind, reason, omitted, what))
    if bad is not None:
        judged.persist()  # read twice: a source that changes in between must not lose a change
    left_out = [] if omitted is None else [name for name in names.values if name != names.sequence]
    latest = _latest(judged, names, left_out).persist()
    try:
        with tx.writing(f"{what} cannot be applied", table, "refuse"):
            total, refused, ambiguous = _counts(latest)
            if refused:
                _refuse(tx, judged.where(f"{_REASON} is not null").drop(_DELETED, _UNCHANGED), table, bad, what)
            if ambiguous:
                _refuse_ambiguous(latest, names, what)
            carried = [_carried(place) for place in range(len(left_out))]
            source = latest.where(f"{_LATEST} is not null").select(f"{_LATEST}.*", *carried)
            done = _merged(tx, source, table, names, struct_of(schema, left_out))
        applied = done.updated + done.inserted + done.deleted
        return ChangesResult(table, done.updated, done.inserted, done.deleted, total - refused - applied, refused)
    finally:
        latest.unpersist()
        judged.unpersist()


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a table's columns, of its key columns, and of the column that stores the sequence."""

    columns: Sequence[str]
    key: Sequence[str]
    sequence: str

    @property
    def values(self) -> list[str]:
        return [name for name in self.columns if name not in self.key]


def _check_columns(names: _Names, changes: DataFrame, what: str) -> None:
    if names.sequence not in names.values:
        raise Misuse(
            f"{what}: sequence_by={names.sequence!r} is not a column of the table outside its row key: each row must "
            "store the sequence of its last change; add the column",
            column=names.sequence,
        )
    for name in names.columns:
        if column_named(name, changes.columns, what, any_case=any_case(changes.sparkSession)) is None:
            raise Misuse(
                f"{what} have no column {name!r}, which the table has; they have {', '.join(changes.columns)}",
                column=name,
            )


def _sequenced(changes: DataFrame, sequence: str, kind: DataType, what: str) -> DataFrame:
    """Return the changes with the sequence in the table's type."""
    if not _is_ordered(kind):
        why = "as text '10' sorts before '9'" if isinstance(kind, StringType) else "it does not order changes"
        raise MisuseType(
            f"{what}: sequence_by={sequence!r} is {kind.simpleString()}, and {why}; make the column a number, a date, "
            "a timestamp, BINARY, or a STRUCT of those",
            column=sequence,
        )
    value = f.col(quoted(sequence))
    (has,) = resolved(changes, {sequence: value}, what)
    return changes.withColumn(sequence, fitted(value, has, kind, what, sequence))


def _is_ordered(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_ordered(field.dataType) for field in kind.fields)
    return isinstance(kind, _ORDERED)


def _names_of(changes: DataFrame, unchanged: Column | str, what: str) -> Column:
    """Return the array of the columns' names that a change leaves out."""
    names = expression(unchanged, what)
    (kind,) = resolved(changes, {"unchanged": names}, what)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StringType):
        raise MisuseType(f"{what}: unchanged has type {kind.simpleString()}, not array<string>: the columns' names")
    return names


def _folded(changes: DataFrame, name: Column) -> Column:
    """Return a name as the session compares it."""
    return f.lower(name) if any_case(changes.sparkSession) else name


def _leaves_out(changes: DataFrame, name: str) -> Column:
    """Whether a change leaves out this column."""
    found = f.array_contains(_UNCHANGED, name.lower() if any_case(changes.sparkSession) else name)
    return f.coalesce(found, f.lit(False))


def _unknown_name(changes: DataFrame, names: _Names, omitted: Column) -> Column:
    """Return why an array of names of columns is bad; null if it is not."""
    known = [_folded(changes, f.lit(name)) for name in {*names.columns, *changes.columns}]
    unknown = f.filter(omitted, lambda name: name.isNull() | ~_folded(changes, name).isin(known))
    named = f.format_string("unchanged has '%s', which neither the table nor the changes have as a column", unknown[0])
    return f.when(f.size(unknown) > 0, f.coalesce(f.when(unknown[0].isNull(), "unchanged has a null name"), named))


def _text(changes: DataFrame, value: Column | str, name: str, what: str) -> Column:
    text = expression(value, what)
    resolved(changes, {name: text}, what)
    return text.cast("string")


def _position(changes: DataFrame, names: _Names, position: Column | str | None, what: str) -> Column:
    """Return the text that names a change in errors and in the table of bad changes."""
    shown = f.to_json(f.struct(*(f.col(quoted(name)) for name in (*names.key, names.sequence))), _JSON)
    return shown if position is None else f.coalesce(_text(changes, position, "position", what), shown)


def _reason(
    changes: DataFrame, names: _Names, kind: DataType, reason: Column | str | None, omitted: Column | None, what: str
) -> Column:
    """Return why a change is bad; null if it is not. `omitted`: the names of the columns that it leaves out."""
    found = [] if reason is None else [_text(changes, reason, "reason", what)]
    if omitted is not None:
        found.append(_unknown_name(changes, names, omitted))
    for name in (*names.key, names.sequence):
        found.append(f.when(f.col(quoted(name)).isNull(), f"column {name!r} is null"))
        found.append(f.when(_leaves_out(changes, name), f"column {name!r} is left out"))
    for value, name, of in _parts(f.col(quoted(names.sequence)), names.sequence, kind):
        found.append(f.when(value.isNull(), f"column {name!r} is null"))
        if isinstance(of, FloatType | DoubleType):  # no number is above NaN or infinity: the row would never change
            is_finite = ~f.isnan(value) & (f.abs(value) < float("inf"))
            found.append(f.when(~is_finite, f"column {name!r} is not a finite number"))
    if len(names.key) == 1:  # no row has an empty row key
        found.append(f.when(f.col(quoted(names.key[0])).cast("string") == "", f"column {names.key[0]!r} is empty"))
    return f.coalesce(*found, f.when(f.col(_DELETED).isNull(), "the condition of deletes is null: unknown operation"))


def _parts(value: Column, name: str, kind: DataType) -> Iterator[tuple[Column, str, DataType]]:
    """Yield the numbers, dates and so on of which a sequence consists, with their names and types."""
    if not isinstance(kind, StructType):
        yield value, name, kind
        return
    for field in kind.fields:
        yield from _parts(value[field.name], f"{name}.{field.name}", field.dataType)


def _refuse(tx: SparkTransaction, refused: DataFrame, table: str, bad: str | None, what: str) -> None:
    """Write bad changes to the table `bad`. `Misuse` names one of them if there is no such table."""
    if bad is None:
        first = refused.orderBy(_POSITION).select(_POSITION, _REASON).first()
        if first is None:
            raise _differing(what)
        raise Misuse(
            f"{what}: the change at {first[0]} cannot be applied: {first[1]}; correct the source, or give "
            "bad='table' to write such changes there",
            position=first[0],
            reason=first[1],
        )
    change = f.to_json(f.struct(*(f.col(quoted(n)) for n in refused.columns if n not in (_REASON, _POSITION))), _JSON)
    rows = refused.select(
        f.lit(table).alias("table"),
        f.col(_POSITION).alias("position"),
        f.xxhash64(change).alias("hash"),
        f.col(_REASON).alias("reason"),
        change.alias("change"),
    )
    tx.write(rows, bad, row_key=list(BAD_KEY), duplicates="last")


def _latest(judged: DataFrame, names: _Names, left_out: Sequence[str]) -> DataFrame:
    """Return one row per key: its latest valid change (null if none), a sequence of two different changes of which the
    result depends (null if none), how many changes and bad changes it has, and of each column that may be left out the
    latest change that carries or ends its value (null if none): value, sequence, and whether the value ends.
    """
    is_good, sequence = f.col(_REASON).isNull(), f.col(quoted(names.sequence))
    values = {name: f.col(quoted(name)) for name in names.columns}
    omits = {name: _leaves_out(judged, name) for name in left_out}
    shown = [f.when(~omits[name], value).alias(name) if name in omits else value for name, value in values.items()]
    latest = f.max_by(f.when(is_good, f.struct(*values.values(), _DELETED)), f.when(is_good, sequence))
    ambiguous = [_ambiguous([*shown, f.array(*omits.values()), f.col(_DELETED)], sequence, is_good)]
    carried = []
    for name, is_omitted in omits.items():
        is_given = is_good & (f.col(_DELETED) | ~is_omitted)
        value = f.when(~f.col(_DELETED), values[name])
        given = f.struct(value.alias("value"), sequence.alias("at"), f.col(_DELETED).alias("ends"))
        carried.append(f.max_by(f.when(is_given, given), f.when(is_given, sequence)))
        ambiguous.append(_ambiguous([value, f.col(_DELETED)], sequence, is_given))
    return judged.groupBy(*(values[name] for name in names.key)).agg(
        latest.alias(_LATEST),
        f.coalesce(*ambiguous).alias(_AMBIGUOUS),
        f.count("*").alias(_TOTAL),
        f.count(_REASON).alias(_BAD),
        *(each.alias(_carried(place)) for place, each in enumerate(carried)),
    )


def _carried(place: int) -> str:
    return f"_pyomid_carried_{place}"


def _ambiguous(columns: Sequence[Column], sequence: Column, among: Column) -> Column:
    """Return the highest sequence among these changes if they differ at it, that is, if their highest and lowest hash
    do; else null."""
    hashed = f.xxhash64(f.to_json(f.struct(*columns), _JSON | {"ignoreNullFields": "false"}))
    high, low = (
        f.max(f.when(among, f.struct(sequence.alias("at"), each.alias("hash"))))
        for each in (hashed, f.bitwise_not(hashed))
    )
    return f.when(high["hash"] != f.bitwise_not(low["hash"]), high["at"])


def _counts(latest: DataFrame) -> tuple[int, int, int]:
    """Return the number of changes, of bad ones, and of keys with two different changes of one sequence."""
    (counts,) = latest.agg(f.sum(_TOTAL), f.sum(_BAD), f.count(_AMBIGUOUS)).collect()
    total, bad, ambiguous = (int(count or 0) for count in counts)
    return total, bad, ambiguous


def _refuse_ambiguous(latest: DataFrame, names: _Names, what: str) -> None:
    columns = [f.col(f"{_LATEST}.{quoted(name)}") for name in names.key]
    row = latest.where(f.col(_AMBIGUOUS).isNotNull()).select(*columns, _AMBIGUOUS).first()
    if row is None:
        raise _differing(what)
    *key, sequence = row
    raise Misuse(
        f"{what}: the key {', '.join(map(repr, key))} has two different changes with the sequence {sequence!r}: "
        "sequence_by must order the changes of a key"
    )


def _differing(what: str) -> Misuse:
    return Misuse(
        f"{what} cannot be applied, and differ when they are computed again, so no error can name one: store them "
        "first, or call .localCheckpoint() on the frame"
    )


def _merged(tx: SparkTransaction, latest: DataFrame, table: str, names: _Names, left_out: StructType) -> MergeResult:
    """`left_out`: the columns that may be left out, with their types. Their values are fitted before the choice between
    them and the stored ones: otherwise Spark would convert both to a common type."""
    deleted, sequence = f"source.{_DELETED}", quoted(names.sequence)
    newer = f"(target.{sequence} is null or source.{sequence} > target.{sequence})"
    updates: dict[str, Any] = {name: f"source.{quoted(name)}" for name in names.values}
    inserts: dict[str, Any] = {name: f"source.{quoted(name)}" for name in names.columns}
    for place, (name, kind) in enumerate((field.name, field.dataType) for field in left_out.fields):
        carried, missing = f.col(f"source.{_carried(place)}"), _missing(table, name, names)
        has = latest.schema[_carried(place)].dataType["value"].dataType  # type: ignore[index]  # a struct
        value = fitted(carried["value"], has, kind, f"the changes of {table!r}", name)
        is_newer = carried["at"] > f.col(f"target.{sequence}")
        given = f.when(carried["ends"], missing).otherwise(value)
        is_kept = carried.isNull() | ~is_newer
        updates[name] = f.when(is_kept, f.col(f"target.{quoted(name)}")).otherwise(given)
        inserts[name] = f.when(carried.isNull(), missing).otherwise(given)
    merge = tx.merge(latest, table, on=list(names.key))
    merge = merge.whenMatched(f"{deleted} and {newer}").delete().whenMatched(newer).update(updates)
    return merge.whenNotMatched(f"not {deleted}").insert(inserts).merge()


def _missing(table: str, name: str, names: _Names) -> Column:
    """Return an expression that raises `Misuse`: a row has no value to keep."""
    key = f.to_json(f.struct(*(f.col(f"source.{quoted(each)}") for each in names.key)))
    before = coded_message(Misuse(f"the changes of {table!r} leave out column {name!r} of the row "))
    after = ", which is new or was deleted before: there is no value to keep; its first change must have every column\n"
    return f.raise_error(f.concat(f.lit(before), key, f.lit(after)))
