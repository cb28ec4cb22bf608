"""Rules that decide which changes can be applied and in which order, for tables of rows and for histories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

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
from pyomid.rows.column_types import Layout
from pyomid.rows.row_key import KeyLayout, key_layout
from pyomid.rows.schema import column_named, schema_of
from pyomid.spark.coded_errors import coded_message
from pyomid.spark.expressions import condition_of, expression, fitted, quoted, resolved
from pyomid.spark.sessions import any_case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyomid.spark.transactions import SparkTransaction
    from pyomid.types import StoreLimits, TableInfo

BAD_KEY: Final = ("table", "position", "hash")
"""Row key of a table of bad changes; the other columns are `reason` and `change`, a JSON text. `hash` is the hash of
`change`, so that two changes at one position are both kept."""

POSITION_BYTES_MAX: Final = 200
"""The table of bad changes truncates a longer position, because a row key in a folder has at most some 500 bytes."""

JSON: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Formats that keep microseconds: by default `to_json` truncates timestamps to milliseconds."""

DELETED, TRUNCATES, SNAPSHOT, REASON, POSITION, UNCHANGED, SEQUENCE = (f"_pyomid_{n}" for n in range(7))
"""Columns that `judged` adds to the columns of the caller's changes."""

_ORDERED: Final = (NumericType, DateType, TimestampType, TimestampNTZType, BinaryType)
"""Types that can order changes. A struct of these types is compared field by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """The options of `SparkTransaction.apply_changes`."""

    sequence_by: str
    deletes: Column | str | None
    truncates: Column | str | None
    snapshots: Column | str | None
    reason: Column | str | None
    position: Column | str | None
    bad: str | None
    unchanged: Column | str | None


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the table's columns that a change has, of its key columns, and of the column that holds the sequence;
    `shown` is the name of the sequence column in errors."""

    columns: Sequence[str]
    key: Sequence[str]
    sequence: str
    shown: str

    @property
    def values(self) -> list[str]:
        return [name for name in self.columns if name not in self.key]

    @property
    def left_out(self) -> list[str]:
        """The columns that a change may leave out."""
        return [name for name in self.values if name != self.sequence]


def check_columns(names: Names, changes: DataFrame, what: str) -> None:
    for name in dict.fromkeys((*names.columns, names.shown)):
        if column_named(name, changes.columns, what, any_case=any_case(changes.sparkSession)) is None:
            of_table = ", which the table has" if name in names.columns else ", which sequence_by names"
            raise Misuse(
                f"{what} have no column {name!r}{of_table}; the changes have the columns {', '.join(changes.columns)}",
                column=name,
            )


def check_ordered(kind: DataType, shown: str, what: str) -> None:
    """Raise `MisuseType` if values of this type cannot order changes."""
    if not _is_ordered(kind):
        why = "sorts '10' before '9'" if isinstance(kind, StringType) else "does not order changes"
        raise MisuseType(
            f"{what}: sequence_by={shown!r} has type {kind.simpleString()}, which {why}; make the column a number, a "
            "date, a timestamp, BINARY, or a STRUCT of these types",
            column=shown,
        )


def _is_ordered(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_ordered(field.dataType) for field in kind.fields)
    return isinstance(kind, _ORDERED)


def judged(
    tx: SparkTransaction, changes: DataFrame, info: TableInfo, names: Names, types: StructType, asked: ChangeOptions
) -> DataFrame:
    """Return the changes with key and sequence cast to the table's types, and with columns that say what each change
    does and why a bad change is bad. `types`: the types of the key columns and of the sequence column."""
    what = f"the changes of {info.name!r}"
    given = {name: f.col(quoted(names.shown if name == names.sequence else name)) for name in types.names}
    found = dict(zip(given, resolved(changes, given, what), strict=True))
    shown = {name: names.shown if name == names.sequence else name for name in given}
    changes = changes.withColumns(
        {
            name: fitted(value, found[name], types[name].dataType, what, shown[name], compares=name in names.key)
            for name, value in given.items()
        }
    )
    omitted = None if asked.unchanged is None else _names_of(changes, asked.unchanged, what)
    folded = f.lit(None) if omitted is None else f.transform(omitted, lambda name: _folded(changes, name))
    conditions = {"deletes": asked.deletes, "truncates": asked.truncates, "snapshots": asked.snapshots}
    deleted, truncates, snapshot = (
        f.lit(False) if condition is None else condition_of(changes, condition, what, name)
        for name, condition in conditions.items()
    )
    told = changes.withColumns(
        {
            DELETED: deleted,
            TRUNCATES: truncates,
            SNAPSHOT: f.coalesce(snapshot, f.lit(False)),
            POSITION: _position(changes, names, asked.position, what),
            UNCHANGED: folded.cast("array<string>"),
        }
    )
    of_row = {name: f.col(quoted(name if name in names.key else names.sequence)) for name in _key_layout(info).names}
    why_no_key = why_no_row(tx, info, of_row)
    reason = _reason(told, names, types[names.sequence].dataType, asked.reason, omitted, why_no_key, what)
    return told.withColumn(REASON, reason)


def _names_of(changes: DataFrame, unchanged: Column | str, what: str) -> Column:
    """Return the array with the names of the columns that a change leaves out."""
    names = expression(unchanged, what)
    (kind,) = resolved(changes, {"unchanged": names}, what)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StringType):
        raise MisuseType(
            f"{what}: unchanged must have type array<string>, with column names, but has type {kind.simpleString()}"
        )
    return names


def _folded(changes: DataFrame, name: Column) -> Column:
    """Return a name in the form that the session compares: in lower case if it ignores case."""
    return f.lower(name) if any_case(changes.sparkSession) else name


def leaves_out(changes: DataFrame, name: str) -> Column:
    """Return the condition that a change leaves out this column."""
    found = f.array_contains(UNCHANGED, name.lower() if any_case(changes.sparkSession) else name)
    return f.coalesce(found, f.lit(False))


def _unknown_name(changes: DataFrame, names: Names, omitted: Column) -> Column:
    """Return the reason why an array of column names is bad; null if it is valid."""
    given = [name for name in changes.columns if not name.startswith("_pyomid_")]
    known = [_folded(changes, f.lit(name)) for name in {*names.columns, *given}]
    unknown = f.filter(omitted, lambda name: name.isNull() | ~_folded(changes, name).isin(known))
    named = f.format_string("unchanged has '%s', which is a column of neither the table nor the changes", unknown[0])
    return f.when(f.size(unknown) > 0, f.coalesce(f.when(unknown[0].isNull(), "unchanged has a null name"), named))


def _text(changes: DataFrame, value: Column | str, name: str, what: str) -> Column:
    text = expression(value, what)
    resolved(changes, {name: text}, what)
    return text.cast("string")


def _position(changes: DataFrame, names: Names, position: Column | str | None, what: str) -> Column:
    """Return the text that names a change in errors and in the table of bad changes."""
    of_key = [f.col(quoted(name)) for name in names.key]
    shown = f.to_json(f.struct(*of_key, f.col(quoted(names.sequence)).alias(names.shown)), JSON)
    return shown if position is None else f.coalesce(_text(changes, position, "position", what), shown)


def _reason(
    changes: DataFrame,
    names: Names,
    kind: DataType,
    reason: Column | str | None,
    omitted: Column | None,
    why_no_key: Column,
    what: str,
) -> Column:
    """Return the reason why a change is bad; null if it is valid. `omitted`: the names of the columns that the change
    leaves out. A truncation needs only a sequence."""
    of_row, of_any = [why_no_key], [] if reason is None else [_text(changes, reason, "reason", what)]
    if omitted is not None:
        of_row.append(_unknown_name(changes, names, omitted))
    of_row += [f.when(leaves_out(changes, name), f"column {name!r} is left out") for name in names.key]
    of_any.append(f.when(f.col(quoted(names.sequence)).isNull(), f"column {names.shown!r} is null"))
    of_row.append(f.when(leaves_out(changes, names.shown), f"column {names.shown!r} is left out"))
    for value, name, of in _parts(f.col(quoted(names.sequence)), names.shown, kind):
        of_any.append(f.when(value.isNull(), f"column {name!r} is null"))
        if isinstance(of, FloatType | DoubleType):  # no number is above NaN or infinity: such a row never changes
            is_finite = ~f.isnan(value) & (f.abs(value) < float("inf"))
            of_any.append(f.when(~is_finite, f"column {name!r} is not a finite number"))
    of_row.append(f.when(f.col(DELETED).isNull(), "the condition of deletes is null: unknown operation"))
    of_any.append(f.when(f.col(TRUNCATES).isNull(), "the condition of truncates is null: unknown operation"))
    return f.coalesce(*of_any, f.when(~f.col(TRUNCATES), f.coalesce(*of_row)))


def why_no_row(tx: SparkTransaction, info: TableInfo, values: Mapping[str, Column]) -> Column:
    """Return the reason, as text, why the table cannot have a row with these key values; null if it can."""
    layout, limits = _key_layout(info), tx.connection.deployment.store.limits
    found = [f.when(column.isNull(), f"column {name!r} is null") for name, column in values.items()]
    if len(layout.parts) == 1 and layout.parts[0].is_raw:  # no row has an empty row key
        (name,) = layout.names
        found.append(f.when(f.octet_length(values[name]) == 0, f"column {name!r} is empty"))
    return f.coalesce(*found, _why_too_long([values[name] for name in layout.names], layout, limits))


def _key_layout(info: TableInfo) -> KeyLayout:
    return key_layout(schema_of(info))


def _why_too_long(columns: Sequence[Column], layout: KeyLayout, limits: StoreLimits) -> Column:
    """Return the reason, as text, why this row key is too long for the store; null if it fits or a column is null. Zero
    bytes that appear only in the encoded key (of numbers, binaries and descending columns) are not counted, so a key
    that fits is never refused."""
    size, zeros = f.lit(0), f.lit(0)
    for column, part in zip(columns, layout.parts, strict=True):
        if not part.type.is_text:
            size = size + part.type.key_width
            continue
        has_zeros = part.type.layout is Layout.STRING and not part.descending
        without = f.replace(column, f.lit("\0"), f.lit("")) if has_zeros else column
        found = f.octet_length(column) - f.octet_length(without)
        size = size + f.octet_length(column) + (0 if part.is_raw else found + 2)
        zeros = zeros + found + (0 if part.is_raw or part.descending else 1)
    if limits.zeros_count_twice:
        size = f.when(2 * size > limits.row_bytes_max, size + zeros).otherwise(size)
    said = f"the row key takes %d bytes, over this store's limit of {limits.row_bytes_max}"
    return f.when(size > limits.row_bytes_max, f.format_string(said, size))


def _parts(value: Column, name: str, kind: DataType) -> Iterator[tuple[Column, str, DataType]]:
    """Yield the parts of a sequence (a number, a date …; of a struct, its fields) with their names and types."""
    if not isinstance(kind, StructType):
        yield value, name, kind
        return
    for field in kind.fields:
        yield from _parts(value[field.name], f"{name}.{field.name}", field.dataType)


def refuse(tx: SparkTransaction, changes: DataFrame, table: str, bad: str | None, what: str) -> None:
    """Write the bad changes to the table `bad`. If `bad` is None, raise a `Misuse` that names one bad change."""
    refused = changes.where(f"{REASON} is not null")
    if bad is None:
        first = refused.orderBy(POSITION).select(POSITION, REASON).first()
        if first is None:
            raise differing(what)
        raise Misuse(
            f"{what}: the change at {first[0]} cannot be applied: {first[1]}; correct the source, or let bad=… name a "
            "table that stores the bad changes",
            position=first[0],
            reason=first[1],
        )
    given = [name for name in refused.columns if not name.startswith("_pyomid_")]
    change = f.to_json(f.struct(*(f.col(quoted(name)) for name in given)), JSON)
    is_long = f.octet_length(POSITION) > POSITION_BYTES_MAX
    shown = f.when(is_long, f.concat(f.left(f.col(POSITION), f.lit(POSITION_BYTES_MAX // 4)), f.lit("…")))
    rows = refused.select(
        f.lit(table).alias("table"),
        f.coalesce(shown, f.col(POSITION)).alias("position"),
        f.xxhash64(change).alias("hash"),
        f.col(REASON).alias("reason"),
        change.alias("change"),
    )
    tx.write(rows, bad, row_key=list(BAD_KEY), duplicates="last")


def hash_of(columns: Sequence[Column]) -> Column:
    """Return a hash of these columns, which may have any types; equal values have equal hashes."""
    return f.xxhash64(f.to_json(f.struct(*columns), JSON | {"ignoreNullFields": "false"}))


def refuse_ambiguous(row: Sequence[object] | None, what: str) -> NoReturn:
    """Raise `Misuse` for a key with two different changes of the same sequence. `row`: the key's values, then the
    sequence."""
    if row is None:
        raise differing(what)
    *key, sequence = row
    raise Misuse(
        f"{what}: the key {', '.join(map(repr, key))} has two different changes with the sequence {sequence!r}; "
        "choose a sequence_by that orders the changes of each key"
    )


def differing(what: str) -> Misuse:
    return Misuse(
        f"{what} cannot be applied. Some changes are invalid, but not the same changes each time Spark computes the "
        "frame, so this error cannot name one; store the changes first, or call .localCheckpoint() on the frame"
    )


def missing(table: str, name: str, key: Sequence[Column]) -> Column:
    """Return an expression that raises `Misuse` because the row has no value for the left-out column."""
    before = coded_message(Misuse(f"the changes of {table!r} leave out column {name!r} of the row "))
    after = (
        ", which is new or was deleted, so there is no value to keep; give every column in the first change of a row\n"
    )
    return f.raise_error(f.concat(f.lit(before), f.to_json(f.struct(*key), JSON), f.lit(after)))
