"""Deletes and truncations that `apply_changes` keeps, so that an older change that arrives later has no effect.

    stock              rows, each with the sequence of its last change
    stock_deletes      the sequence of the last delete, for each row key
    stock_truncates    the sequence of the last truncation

The last two are ordinary tables with a time to live. The first delete and the first truncation create them. Readers of
`stock` do not see them; a backup, a compaction and `verify` treat them like any table. A kept delete expires after that
time, counted from the commit that applied it. For a history, the tables keep every delete and truncation of that time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, StructField, StructType

from pyomid.database import table_admin
from pyomid.database.validation import check_table_name, check_ttl
from pyomid.errors import Misuse
from pyomid.rows.row_key import key_layout
from pyomid.rows.schema import DEFAULT_FAMILY, families_of, schema_of
from pyomid.spark.expressions import quoted
from pyomid.spark.frame_schema import arrow_of, level_of_new, struct_of, table_or_none
from pyomid.spark.merge import LOOKED_UP_ROWS_MAX
from pyomid.spark.source.read_task import pair_rows
from pyomid.types import Column, ColumnSchema, RowKeyPart, TableInfo, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyomid.spark.transactions import SparkTransaction

KEEP_S: Final = 7 * 86_400.0
"""Default: Kafka's default retention of a topic, so that no redelivered change is older than a kept delete."""

_ONE: Final = "id"
"""Key column of a table of truncations, which has a single row."""


@dataclass(frozen=True, slots=True)
class KeptDeletes:
    """The kept deletes or truncations of one table (`target`); `info` is None until something is kept."""

    tx: SparkTransaction
    name: str
    target: TableInfo
    schema: TableSchema
    keep_seconds: float | None
    info: TableInfo | None

    @classmethod
    def deletes(
        cls, tx: SparkTransaction, target: TableInfo, sequence: str, keep_seconds: float | None
    ) -> KeptDeletes | None:
        """Return the kept deletes. `sequence`: the column that stores the sequence, in a history part of the row
        key."""
        schema = schema_of(target)
        names = {part.name for part in schema.row_key} | {sequence}
        columns = [column for column in schema.columns if column.name in names]
        return cls._checked(tx, target, "deletes", columns, schema.row_key, keep_seconds)

    @classmethod
    def truncates(
        cls, tx: SparkTransaction, target: TableInfo, sequence: str, keep_seconds: float | None
    ) -> KeptDeletes | None:
        """Return the kept truncations: the last truncation, or in a history all of them."""
        schema = schema_of(target)
        of_key = [part for part in schema.row_key if part.name == sequence]
        columns = [column for column in schema.columns if column.name == sequence]
        if not of_key:
            one = ColumnSchema(_ONE if sequence.lower() != _ONE else f"{_ONE}_", "integer", None)  # in any case
            of_key, columns = [RowKeyPart(one.name)], [one, *columns]
        return cls._checked(tx, target, "truncates", columns, of_key, keep_seconds)

    @classmethod
    def _checked(
        cls,
        tx: SparkTransaction,
        target: TableInfo,
        suffix: str,
        columns: Sequence[ColumnSchema],
        row_key: Sequence[RowKeyPart],
        keep_seconds: float | None,
    ) -> KeptDeletes | None:
        if keep_seconds == 0:
            return None
        of_key = {part.name for part in row_key}
        placed = tuple(
            ColumnSchema(c.name, c.spark_type, None if c.name in of_key else Column(DEFAULT_FAMILY, c.name.encode()))
            for c in columns
        )
        name = f"{target.name}_{suffix}"
        schema = TableSchema(placed, tuple(row_key))
        kept = cls(tx, name, target, schema, keep_seconds, table_or_none(tx.connection, name))
        kept._check(suffix)
        return kept

    def _check(self, suffix: str) -> None:
        """Raise `Misuse` if a table of that name stores something else, or keeps it for another time."""
        found, target = self.info, self.target.name
        if found is None:
            return
        what = f"the changes of {target!r}: table {self.name!r}, which keeps the {suffix} of {target!r},"
        otherwise = "or give keep_deletes_seconds=0 to keep no deletes"
        if found.schema is None or _shape(found.schema) != _shape(self.schema):
            raise Misuse(
                f"{what} must have the columns {_shown(self.schema)}; rename or drop {self.name!r}, {otherwise}",
                table=self.name,
            )
        if found.generation < self.target.generation:
            raise Misuse(
                f"{what} is older than {target!r}, which was dropped and created again; drop {self.name!r} too",
                table=self.name,
            )
        if self.keep_seconds not in (None, found.ttl_seconds):
            raise Misuse(
                f"{what} has ttl_seconds {found.ttl_seconds or 0:g} (0 means forever), but keep_deletes_seconds is "
                f"{self.keep_seconds:g}; change the table with `pyomid tables URL alter {self.name} --ttl "
                f"{self.keep_seconds:g}`, or omit keep_deletes_seconds",
                table=self.name,
            )

    def made(self) -> KeptDeletes:
        """Return these kept deletes after creating their table if it is missing; a new table is durable at once."""
        if self.info is not None:
            return self
        self._check_name()
        conn = self.tx.connection
        seconds = KEEP_S if self.keep_seconds is None else self.keep_seconds
        info = table_admin.create_table(
            conn.deployment,
            self.name,
            families_of(self.schema),
            conflict_level=level_of_new(conn, None),
            schema=self.schema,
            if_not_exists=True,
            ttl_seconds=seconds,
        )
        return replace(self, info=info)

    def _check_name(self) -> None:
        try:
            check_table_name(self.name)
        except Misuse as error:
            raise Misuse(
                f"the changes of {self.target.name!r}: pyomid cannot create the table that keeps the deletes, because "
                f"{error.message}; give the target a shorter name, or set keep_deletes_seconds=0 to keep no deletes",
                table=self.name,
            ) from None

    def put(self, rows: DataFrame) -> None:
        """Keep these deletes. `rows` has the columns of the table, by name."""
        of_all = [
            f.col(quoted(c.name)) if c.name in rows.columns else f.lit(0).alias(c.name) for c in self.schema.columns
        ]
        self.tx.write(rows.select(*of_all), self.name)

    def read(self) -> DataFrame:
        """Return the kept deletes or truncations that the transaction sees."""
        assert self.info is not None
        return self.tx.read(self.name)

    def beside(self, frame: DataFrame, rows: int, value: str, into: str) -> DataFrame:
        """Return the frame with a further column, `into`. For each row it holds the column `value` of the kept delete
        with the row's key, or null if there is none. `rows` is the frame's number of rows; if it is small, the keys are
        looked up one by one."""
        assert self.info is not None
        names = list(key_layout(schema_of(self.info)).names)
        key = list(map(quoted, names))
        valid = frame.select(*key).where(" and ".join(f"{name} is not null" for name in key))
        kept = self.read() if rows > LOOKED_UP_ROWS_MAX else f.broadcast(self._looked_up(valid))
        return frame.join(kept.select(*key, f.col(quoted(value)).alias(into)), names, "left")

    def _looked_up(self, keys: DataFrame) -> DataFrame:
        """Return the kept rows of these keys, which must be distinct."""
        assert self.info is not None
        schema = schema_of(self.info)
        names = [column.name for column in schema.columns]
        kept = struct_of(schema, names)
        plan = replace(self.tx.read_plan(self.info), wanted=tuple(names))
        key = key_layout(schema).names
        fields = [StructField(f"s{n}", kept[name].dataType) for n, name in enumerate(key)]
        fields += [StructField(f"t{n}", field.dataType) for n, field in enumerate(kept.fields)]
        pairs = StructType([*fields, StructField("in_target", BooleanType())])
        look_up = functools.partial(pair_rows, plan, range(len(key)), arrow_of(kept))
        found = keys.select(*map(quoted, key)).toDF(*(f"s{n}" for n in range(len(key)))).mapInArrow(look_up, pairs)
        return found.where("in_target").select(*(f.col(f"t{n}").alias(name) for n, name in enumerate(names)))


def check_keep_seconds(seconds: object) -> float | None:
    """Return for how long deletes are kept, in seconds: None for the same time as before (at first `KEEP_S`), 0 to keep
    none."""
    if seconds is None or (seconds == 0 and seconds is not False):
        return None if seconds is None else 0.0
    try:
        return check_ttl(seconds)
    except Misuse as error:
        raise type(error)(
            f"invalid keep_deletes_seconds (0 keeps no deletes): {error.message}", **error.values
        ) from None


def _shape(schema: TableSchema) -> object:
    return {(column.name, column.spark_type) for column in schema.columns}, schema.row_key


def _shown(schema: TableSchema) -> str:
    columns = ", ".join(f"{column.name} {column.spark_type}" for column in schema.columns)
    return f"({columns}), row key {', '.join(part.name for part in schema.row_key)}"
