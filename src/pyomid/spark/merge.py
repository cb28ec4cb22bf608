"""MERGE: a source frame updates, deletes and inserts rows of a table, in one transaction.

    tx.merge(changes, "stock", on=["item"])
      .whenMatched("source.count = 0").delete()
      .whenMatched().update({"count": "target.count + source.count"})
      .whenNotMatched().insertAll()
      .merge()

The clauses have the names and meaning of those of Spark's `DataFrame.mergeInto`. Conditions and values are SQL texts or
columns over two structs, `source` and `target`; a SQL statement chooses its own names for them. For each pair, the
first clause of its kind whose condition holds applies.

    pairs    source row and table row with equal values in `on`; either may be missing
    clauses  choose the clause that applies, then compute the new row
    write    each task writes the new rows of its pairs under a branch; a key written twice is an ambiguous merge

If `on` is the row key and the source is small, the table's row for each source row is looked up; otherwise the table
is scanned and joined. Both ways read the transaction's snapshot.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    CalendarIntervalType,
    DataType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from pyomid.database.validation import Handle
from pyomid.errors import Misuse, MisuseType
from pyomid.rows.encode import Duplicates
from pyomid.rows.schema import Field, column_named, schema_of, select_columns
from pyomid.spark.expressions import assignments, expression, fitted, quoted, resolved
from pyomid.spark.frame_schema import (
    WriteOptions,
    arrow_of,
    check_same_columns,
    column_types,
    fields_of,
    struct_of,
)
from pyomid.spark.local_frames import local_rows
from pyomid.spark.sessions import any_case
from pyomid.spark.source.read_task import ReadPlan, pair_rows
from pyomid.spark.source.write_task import CLAIM, DELETE, INSERT, UPDATE, MergePlan, merge_rows
from pyomid.types import ConflictLevel, TableInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyomid.spark.transactions import SparkTransaction

LOOKED_UP_ROWS_MAX: Final = 20_000
"""A larger source is joined with a scan: looking up this many rows (50 us each) takes as long as scanning a million."""


class Kind(StrEnum):
    """The kind of pairs to which a clause applies; its value is the name of the method that adds the clause."""

    MATCHED = "whenMatched"
    NOT_MATCHED = "whenNotMatched"
    NOT_MATCHED_BY_SOURCE = "whenNotMatchedBySource"


_SIDES: Final = {
    Kind.MATCHED: ("source", "target"),
    Kind.NOT_MATCHED: ("source",),
    Kind.NOT_MATCHED_BY_SOURCE: ("target",),
}


def _own(name: str) -> str:
    """Return the name of one of the merge's own columns. It cannot equal the names of the source and target structs,
    which a SQL statement may choose."""
    return f"omid {name}"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause. `values`: column → its new value; None to give each column the source's column of the same name."""

    kind: Kind
    condition: Column | str | None
    action: int
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Counts of the rows that a merge changed. Other transactions see the changes only after this transaction
    commits."""

    table: str
    updated: int
    inserted: int
    deleted: int
    branches: int


class Merge(Handle):
    """Builder of a merge, returned by `SparkTransaction.merge`. The caller adds clauses; only `merge()` reads and
    writes rows."""

    def __init__(
        self,
        tx: SparkTransaction,
        source: DataFrame | pa.Table,
        table: str,
        on: Sequence[str],
        level: str | None,
        stale_read: str,
        names: tuple[str, str] = ("source", "target"),
    ) -> None:
        """`names`: the names of source and target in conditions and values."""
        self._tx = tx
        self._source = source
        self._table = table
        self._on = on
        self._level = level
        self._stale_read = stale_read
        self._names = names
        self._clauses: list[Clause] = []
        self._is_done = False

    def whenMatched(self, condition: Column | str | None = None) -> WhenMatched:
        """Begin a clause for rows of the table that match a source row."""
        return WhenMatched(self, Kind.MATCHED, condition)

    def whenNotMatched(self, condition: Column | str | None = None) -> WhenNotMatched:
        """Begin a clause for source rows that match no row of the table."""
        return WhenNotMatched(self, Kind.NOT_MATCHED, condition)

    def whenNotMatchedBySource(self, condition: Column | str | None = None) -> WhenNotMatchedBySource:
        """Begin a clause for rows of the table that match no source row. Such a clause makes the merge read the whole
        table."""
        return WhenNotMatchedBySource(self, Kind.NOT_MATCHED_BY_SOURCE, condition)

    def merge(self) -> MergeResult:
        """Perform the merge now; Spark computes the source only once. An error leaves the transaction rollback-only."""
        self._check_not_done()
        self._tx.merges.pop(self, None)
        info = self._tx.writable(self._table)
        work = _Work(info, self._frame(info), self._on, self._clauses, self._names)
        self._is_done = True
        with self._tx.writing(f"a merge into {self._table!r} failed", self._table, self._stale_read):
            return work.perform(self._tx, self._level)

    def _frame(self, info: TableInfo) -> DataFrame:
        """Return the source frame; columns whose values are written unchanged get the table's types."""
        if not isinstance(self._source, pa.Table):
            return self._source
        takes_all = any(clause.values is None and clause.action in (UPDATE, INSERT) for clause in self._clauses)
        types = {name: kind for name, kind in column_types(info).items() if takes_all or name in self._on}
        spark = self._tx.session
        return local_rows(spark, self._source, f"the merge into {self._table!r}", types).frame(spark)

    # For pyomid's own use

    def with_clause(self, clause: Clause) -> Merge:
        """Return this merge with one more clause. Raises `Misuse` if the clause can never apply. A merge with a refused
        clause was not forgotten, so it does not keep the transaction from its commit."""
        self._tx.merges.pop(self, None)
        self._check_not_done()
        if clause.values is not None:
            verb = "insert" if clause.action == INSERT else "update"
            clause = replace(clause, values=assignments(clause.values, f"a merge's {verb}"))
        before = [each for each in self._clauses if each.kind is clause.kind]
        if before and before[-1].condition is None:
            raise Misuse(
                f"the merge into {self._table!r}: a {clause.kind} clause can never apply, because it follows a "
                f"{clause.kind} clause without a condition; put the clause without a condition last"
            )
        self._clauses.append(clause)
        self._tx.merges[self] = self._table
        return self

    def _check_not_done(self) -> None:
        if self._is_done:
            raise Misuse(
                f"the merge into {self._table!r} has already been performed; begin a new merge with tx.merge(…)"
            )


class _When:
    def __init__(self, merge: Merge, kind: Kind, condition: Column | str | None) -> None:
        self._merge = merge
        self._kind = kind
        self._condition = condition

    def _then(self, action: int, values: Mapping[str, Any] | None = None) -> Merge:
        return self._merge.with_clause(Clause(self._kind, self._condition, action, values))


class WhenNotMatchedBySource(_When):
    """The action for a row of the table that matches no source row."""

    def update(self, values: Mapping[str, Any]) -> Merge:
        """Set these columns; the row's other columns keep their values."""
        return self._then(UPDATE, values)

    def delete(self) -> Merge:
        return self._then(DELETE)


class WhenMatched(WhenNotMatchedBySource):
    """The action for a row of the table that matches a source row."""

    def updateAll(self) -> Merge:
        """Set every column except the key's to the source's column of the same name."""
        return self._then(UPDATE)


class WhenNotMatched(_When):
    """The action for a source row that matches no row of the table."""

    def insert(self, values: Mapping[str, Any]) -> Merge:
        """Insert a row with these values; the other columns are null."""
        return self._then(INSERT, values)

    def insertAll(self) -> Merge:
        """Insert a row with the source's column for every column of the table."""
        return self._then(INSERT)


class _Work:
    """One planned merge, which checks names and types before anything is computed."""

    def __init__(
        self,
        info: TableInfo,
        source: DataFrame,
        on: Sequence[str],
        clauses: Sequence[Clause],
        names: tuple[str, str],
    ) -> None:
        self._info = info
        self._sides = dict(zip(("source", "target"), names, strict=True))
        self._what = f"the merge into {info.name!r}"
        self._schema = schema_of(info)
        self._columns = tuple(column.name for column in self._schema.columns)
        self._key = tuple(part.name for part in self._schema.row_key)
        self._target = struct_of(self._schema, self._columns)
        self._source = source
        self._fields = fields_of(source.schema)
        self._check_read()
        self._names = [field.name for field in self._fields]
        self._any_case = any_case(source.sparkSession)
        self._on = select_columns(info.name, self._schema, on, any_case=self._any_case)
        if not clauses:
            raise Misuse(
                f"the merge into {info.name!r} has no clause; add at least one with whenMatched(…), whenNotMatched(…) "
                "or whenNotMatchedBySource(…)"
            )
        self._source = self._with_types_of_on()
        self._clauses = clauses = [self._named(clause) for clause in clauses]
        self._chosen, self._values = self._resolved([self._values_of(clause) for clause in clauses])
        by_cell = ConflictLevel.CELL in info.id_levels
        updates = [values for clause, values in zip(clauses, self._values, strict=True) if clause.action == UPDATE]
        inserts = any(clause.action == INSERT for clause in clauses)
        updated = {name for values in updates for name in values}
        stored = [name for name in self._columns if name not in self._key]
        self._updated = tuple(name for name in stored if by_cell or name in updated)
        self._written = tuple(n for n in stored if inserts or (updates and by_cell) or n in updated)

    def perform(self, tx: SparkTransaction, level: str | None) -> MergeResult:
        types = {column.name: column.spark_type for column in self._schema.columns}
        fields = [Field(name, types[name]) for name in (*self._key, *self._written)]
        plan = tx.prepared(self._info.name, fields, WriteOptions(duplicates=Duplicates.MERGE), level=level)
        read = replace(tx.read_plan(self._info), wanted=self._columns)
        merge = MergePlan(read, self._updated, self._may_insert_present())
        with self._pairs(tx, read) as pairs:
            reports = tx.reports(
                f"merge into {self._info.name}", self._changes(pairs), functools.partial(merge_rows, plan, merge)
            )
            tx.note(plan, reports)
        inserted, deleted = sum(report.inserted for report in reports), sum(report.deleted for report in reports)
        rows = sum(report.rows - report.claimed for report in reports)
        return MergeResult(self._info.name, rows - inserted - deleted, inserted, deleted, len(reports))

    # Checks

    def _check_read(self) -> None:
        """Raise `MisuseType` if the source has a column that Spark's Python tasks cannot read."""
        for field in self._source.schema.fields:
            if isinstance(field.dataType, YearMonthIntervalType | CalendarIntervalType):
                raise MisuseType(
                    f"{self._what}: the source's column {field.name!r} has type {field.dataType.simpleString()}, which "
                    "Spark's Python tasks cannot read; cast the column to string in the source, or omit the column",
                    column=field.name,
                )

    def _with_types_of_on(self) -> DataFrame:
        """Return the source with the columns of `on` cast to the table's types where the cast loses nothing."""
        if not self._on:
            raise Misuse(f"{self._what} has an empty on=[…]; name the columns on which rows match")
        names = [f"c{place}" for place in range(len(self._names))]
        columns = {name: f.col(name) for name in names}
        for name in self._on:
            place = self._place(name, "on=[…] names it")
            has = self._source.schema.fields[place].dataType
            columns[names[place]] = fitted(f.col(names[place]), has, self._type(name), self._what, name, compares=True)
        return self._source.toDF(*names).select(*columns.values()).toDF(*self._names)

    def _place(self, name: str, why: str) -> int:
        """Return the position of the table's column `name` in the source."""
        found = column_named(name, self._names, f"{self._what}: the source", any_case=self._any_case)
        if found is None:
            raise Misuse(
                f"{self._what}: the source has no column {name!r}, but {why}; the source's columns are "
                f"{', '.join(self._names)}",
                column=name,
            )
        return self._names.index(found)

    def _named(self, clause: Clause) -> Clause:
        """Return the clause with its columns named as in the table."""
        if clause.values is None:
            return clause
        names = select_columns(self._info.name, self._schema, list(clause.values), any_case=self._any_case)
        return replace(clause, values=dict(zip(names, clause.values.values(), strict=True)))

    def _values_of(self, clause: Clause) -> dict[str, Column]:
        """Return the clause's mapping from columns to expressions; empty for a delete, only the row key for a claim."""
        if clause.action == DELETE:
            return {}
        if clause.action == CLAIM:
            return {name: f.col(_own(f"s{self._place(name, 'a claim needs the row key')}")) for name in self._key}
        given = clause.values
        if given is None:
            all_of = "updateAll" if clause.action == UPDATE else "insertAll"
            names = [n for n in self._columns if clause.action == INSERT or n not in self._key]
            places = {name: self._place(name, f"{all_of} needs every column of the table") for name in self._columns}
            if clause.action == UPDATE and not set(self._key) <= set(self._on):
                raise Misuse(self._of_key(f"{all_of} would change", self._key[0]), column=self._key[0])
            return {name: f.col(_own(f"s{places[name]}")) for name in names}
        if not given:
            raise Misuse(f"{self._what}: a {clause.kind} clause sets no column; give at least one column and its value")
        for name in self._key:
            if clause.action == UPDATE and name in given:
                raise Misuse(self._of_key("an update sets", name), column=name)
            if clause.action == INSERT and name not in given:
                raise Misuse(f"{self._what}: an insert must set the row key column {name!r}", column=name)
        return {name: expression(value, self._what) for name, value in given.items()}

    def _of_key(self, what: str, name: str) -> str:
        return (
            f"{self._what}: {what} the row key column {name!r}, but the key of a row cannot change; delete the row and "
            "insert a new row"
        )

    def _may_insert_present(self) -> bool:
        """Whether an insert may write a key other than the one that was looked up and not found."""
        if not set(self._on) <= set(self._key):
            return True
        for clause in self._clauses:
            for name in self._key if clause.values is not None and clause.action == INSERT else ():
                assert clause.values is not None
                value = clause.values[name]
                source = self._sides["source"]
                if not isinstance(value, str) or value not in (f"{source}.{name}", f"{source}.`{name}`"):
                    return True
        return False

    # The frame of changes

    @contextmanager
    def _pairs(self, tx: SparkTransaction, read: ReadPlan) -> Iterator[DataFrame]:
        """Yield a frame with the source's columns as s0, s1, …, the table's as t0, t1, …, and in_source and in_target,
        which are never null."""
        kinds = {clause.kind for clause in self._clauses}
        source = self._source.toDF(*(f"s{place}" for place in range(len(self._names))))
        if Kind.NOT_MATCHED_BY_SOURCE in kinds or set(self._on) != set(self._key):
            yield self._joined(tx, source, kinds)
            return
        with _counted(source) as rows:
            yield self._looked_up(source, read) if rows <= LOOKED_UP_ROWS_MAX else self._joined(tx, source, kinds)

    def _looked_up(self, source: DataFrame, read: ReadPlan) -> DataFrame:
        keys = [self._place(name, "rows match by the row key") for name in self._key]
        work = functools.partial(pair_rows, read, keys, arrow_of(self._target))
        pairs = source.mapInArrow(work, self._pair_struct())
        return pairs.withColumn("in_source", f.lit(True))

    def _joined(self, tx: SparkTransaction, source: DataFrame, kinds: set[Kind]) -> DataFrame:
        present = tx.read(self._info.name)
        check_same_columns(self._what, self._schema, present.columns)
        target = present.toDF(*(f"t{place}" for place in range(len(self._columns))))
        of_source = {name: self._place(name, "on=[…] names it") for name in self._on}
        same = [f.col(f"s{of_source[n]}") == f.col(f"t{self._columns.index(n)}") for n in self._on]
        keeps = (Kind.NOT_MATCHED in kinds, Kind.NOT_MATCHED_BY_SOURCE in kinds)
        how = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "full"}[keeps]
        pairs = source.withColumn("in_source", f.lit(True)).join(
            target.withColumn("in_target", f.lit(True)), functools.reduce(lambda one, other: one & other, same), how
        )
        return pairs.withColumns({side: f.coalesce(side, f.lit(False)) for side in ("in_source", "in_target")})

    def _scoped(self, pairs: DataFrame) -> DataFrame:
        """Return the pairs with two structs, source and target, to which conditions and values refer."""
        sides = {"source": (self._names, "s"), "target": (self._columns, "t")}
        structs = [
            f.struct(*(f.col(_own(f"{letter}{place}")).alias(name) for place, name in enumerate(names))).alias(
                self._sides[side]
            )
            for side, (names, letter) in sides.items()
        ]
        return pairs.toDF(*map(_own, pairs.columns)).select("*", *structs)

    def _changes(self, pairs: DataFrame) -> DataFrame:
        """Return a frame with the action as its first column, then the row key and the written columns."""
        number = functools.reduce(
            lambda so_far, each: so_far.when(each[1], each[0]), enumerate(self._chosen), f.when(f.lit(False), -1)
        )
        applied = self._scoped(pairs).withColumn(_own("clause"), number).where(f.col(_own("clause")).isNotNull())
        action = self._by_clause([f.lit(clause.action) for clause in self._clauses])
        columns = [action.alias("action")]
        for name in (*self._key, *self._written):
            present = f.col(_own(f"t{self._columns.index(name)}"))
            missing = f.lit(None).cast(self._type(name))
            becomes = [
                of.get(name, missing if clause.action == INSERT else present)
                for clause, of in zip(self._clauses, self._values, strict=True)
            ]
            columns.append(self._by_clause(becomes).alias(name))
        return applied.select(*columns)

    def _by_clause(self, each: Sequence[Column]) -> Column:
        return functools.reduce(
            lambda so_far, one: so_far.when(f.col(_own("clause")) == one[0], one[1]),
            enumerate(each),
            f.when(f.lit(False), each[0]),
        )

    def _resolved(self, values: Sequence[dict[str, Column]]) -> tuple[list[Column], list[dict[str, Column]]]:
        """Return the condition of each clause, and its values cast to their columns' types. A `Misuse` names an
        expression that Spark cannot resolve."""
        empty = self._source.sparkSession.createDataFrame([], self._pair_struct())
        both = self._scoped(empty.withColumn("in_source", f.lit(True)))
        chosen, fitting = [], []
        for clause, given in zip(self._clauses, values, strict=True):
            scope, of_kind = both, f.lit(True)
            for side, count in (("source", len(self._names)), ("target", len(self._columns))):
                is_there = side in _SIDES[clause.kind]
                present = f.col(_own(f"in_{side}"))
                of_kind = of_kind & (present if is_there else ~present)
                if not is_there:
                    scope = scope.drop(self._sides[side], *(_own(f"{side[0]}{place}") for place in range(count)))
            condition = f.lit(True) if clause.condition is None else expression(clause.condition, self._what)
            where = f"{self._what}: in a {clause.kind} clause"
            structs = scope.select(*(quoted(self._sides[side]) for side in _SIDES[clause.kind]))
            (kind,) = resolved(structs, {"its condition": condition}, where)
            kinds = resolved(scope, {f"the value of {name!r}": value for name, value in given.items()}, where)
            if not isinstance(kind, BooleanType):
                raise MisuseType(
                    f"{self._what}: the condition of a {clause.kind} clause has type {kind.simpleString()}, not boolean"
                )
            chosen.append(of_kind & condition)
            typed = zip(given.items(), kinds, strict=True)
            fitting.append({n: fitted(value, has, self._type(n), self._what, n) for (n, value), has in typed})
        return chosen, fitting

    def _pair_struct(self) -> StructType:
        """Return the schema of a pair: source columns, table columns, and a flag that the table has the row."""
        source = [StructField(f"s{n}", field.dataType) for n, field in enumerate(self._source.schema.fields)]
        target = [StructField(f"t{n}", field.dataType) for n, field in enumerate(self._target.fields)]
        return StructType([*source, *target, StructField("in_target", BooleanType())])

    def _type(self, name: str) -> DataType:
        return self._target.fields[self._columns.index(name)].dataType


@contextmanager
def _counted(frame: DataFrame) -> Iterator[int]:
    """Yield the frame's number of rows. Spark computes the frame now and keeps it during the block, so that a second
    read gives the same rows."""
    is_kept = frame.storageLevel != StorageLevel.NONE
    if not is_kept:
        frame.persist()
    try:
        yield frame.count()
    finally:
        if not is_kept:
            frame.unpersist()
