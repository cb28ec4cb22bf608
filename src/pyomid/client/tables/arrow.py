"""A table's rows as Arrow, without Spark: what `Table.to_arrow` and `Table.write_arrow` do.

    typed      a table with a schema in the catalog: its columns by name, with the types that Spark gives them
    untyped    `key` and, of named columns, b"f:x" as "f:x"; without names one map of all cells: all of them binary

Reading is vectorized: a batch of the store becomes a record batch, and no row a Python object. The transaction's writes
are flushed first, so that the store shows them as own versions. A reader's batches may be asked for in any thread, one
at a time, as long as the transaction is open: DuckDB and others do so.

pyarrow is needed here alone, and is imported by the first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyomid.arrays import is_numpy, np
from pyomid.cells import CellBatch
from pyomid.client.drive import Run
from pyomid.client.validation import TableRules
from pyomid.errors import Misuse, MisuseType
from pyomid.protocol.reading import CommitCache, Snapshot, read_batch_steps
from pyomid.protocol.visibility import VisibleCells
from pyomid.types import Column, KeyRange, TableInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.ports import DataStore

KEY: Final = "key"
CELLS: Final = "cells"

ROWS_AT_ONCE: Final = 10_000
"""Rows in one record batch, as in Spark's."""


def imported_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise Misuse("Arrow needs pyarrow: install pyomid with its extra, pyomid[arrow]") from error
    return pyarrow


class Converter(Protocol):
    """Visible cells of a batch → a record batch of `schema`."""

    @property
    def schema(self) -> pa.Schema: ...
    def decode(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch: ...


def converter(rules: TableRules, columns: object) -> Converter:
    """By the table's schema if it has one, unless columns are named as bytes."""
    pa = imported_pyarrow()
    info = rules.info
    if columns is not None and (isinstance(columns, str | bytes) or not isinstance(columns, Sequence)):
        raise MisuseType(f"columns {columns!r} is not a list of column names", value=columns)
    if info.schema is not None and (columns is None or all(isinstance(name, str) for name in columns)):
        from pyomid.row_codec.decode import RowDecoder

        return RowDecoder(info.schema, wanted_names(info, columns))
    if columns is None:
        cells = pa.map_(pa.binary(), pa.field("value", pa.binary(), nullable=False))
        return _Cells(pa.schema([pa.field(KEY, pa.binary(), nullable=False), pa.field(CELLS, cells, nullable=False)]))
    named = {_text(name): rules.column(name) for name in columns}
    fields = [pa.field(name, pa.binary()) for name in named]
    return _Columns(pa.schema([pa.field(KEY, pa.binary(), nullable=False), *fields]), tuple(named.values()))


def wanted_names(info: TableInfo, columns: Sequence[str] | None) -> tuple[str, ...]:
    assert info.schema is not None
    known = [column.name for column in info.schema.columns]
    wanted = known if columns is None else list(columns)
    unknown = [name for name in wanted if name not in known]
    if unknown or len(set(wanted)) < len(wanted):
        raise Misuse(
            f"table {info.name!r} has the columns {', '.join(known)}, each to be named once, not {', '.join(wanted)}",
            table=info.name,
        )
    return tuple(wanted)


@dataclass(frozen=True)
class ArrowScan:
    """The rows of a range at a snapshot. `check` refuses where the transaction may not read any more."""

    store: DataStore
    table: str
    key_range: KeyRange
    snapshot: Snapshot
    cache: CommitCache
    converter: Converter
    check: Any

    def batches(self, run: Run) -> Iterator[pa.RecordBatch]:
        """All columns are fetched, whatever is wanted: a row exists by any of its cells."""
        bounds = self.snapshot.bounds
        stored = self.store.scan(self.table, self.key_range, None, batch_rows_max=ROWS_AT_ONCE, bounds=bounds)
        for batch in chain(stored, (None,)):
            self.check()
            seen = run(read_batch_steps(self.table, batch, None, self.snapshot, self.cache))
            if seen is not None:
                yield self.converter.decode(*seen)

    def reader(self, batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> pa.RecordBatchReader:
        return imported_pyarrow().RecordBatchReader.from_batches(self.converter.schema, batches)


@dataclass(frozen=True)
class _Cells:
    schema: pa.Schema

    def decode(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch:
        rows = _rows(batch, visible)
        cells = [[(b"%b:%b" % column, value) for column, value in row.items()] for _, row in rows]
        return _record_batch(self.schema, [[key for key, _ in rows], cells])


@dataclass(frozen=True)
class _Columns:
    schema: pa.Schema
    columns: tuple[Column, ...]

    def decode(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch:
        return self.decode_columns(batch, visible) if _has_kernels() else self.decode_rows(batch, visible)

    def decode_columns(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch:
        """By columns, as a table with a schema."""
        from pyomid.row_codec.decode import binary_array

        rows = visible.rows_present()
        row_of = np.repeat(np.arange(len(rows)), np.diff(visible.row_cell)[rows])
        column_of = batch.cell_col[visible.cells]
        arrays = [binary_array(batch.buffer, batch.row_off, batch.row_len, rows, KEY)]
        for name, column in zip(self.schema.names[1:], self.columns, strict=True):
            chosen = np.full(len(rows), -1, dtype=np.int64)
            if column in batch.columns:
                here = column_of == batch.columns.index(column)
                chosen[row_of[here]] = visible.cells[here]
            arrays.append(binary_array(batch.buffer, batch.cell_off, batch.cell_len, chosen, name))
        return imported_pyarrow().RecordBatch.from_arrays(arrays, schema=self.schema)

    def decode_rows(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch:
        """Its reference implementation, row by row."""
        rows = _rows(batch, visible)
        values = [[row.get(column) for _, row in rows] for column in self.columns]
        return _record_batch(self.schema, [[key for key, _ in rows], *values])


def _has_kernels() -> bool:
    if not is_numpy():
        return False
    from pyomid.row_codec.native.columns import copy_texts, text_offsets

    return copy_texts.is_ready and text_offsets.is_ready


def _rows(batch: CellBatch, visible: VisibleCells) -> list[tuple[bytes, dict[Column, bytes]]]:
    from pyomid.client.transaction_steps import visible_rows

    return list(visible_rows(batch, visible, batch.columns))


def _record_batch(schema: pa.Schema, columns: list[list[Any]]) -> pa.RecordBatch:
    pa = imported_pyarrow()
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text(name: object) -> str:
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    raise MisuseType(f"column {name!r} is {type(name).__name__}, not bytes: the table has no schema", value=name)


# Writing


def record_batches(data: Any) -> Iterator[pa.RecordBatch]:
    """Of whatever Arrow, pandas, Polars or DuckDB hand out."""
    pa = imported_pyarrow()
    if isinstance(data, pa.RecordBatch):
        return iter((data,))
    if isinstance(data, pa.Table):
        return iter(data.to_batches(max_chunksize=ROWS_AT_ONCE))
    if isinstance(data, pa.RecordBatchReader):
        return iter(data)
    if hasattr(data, "__arrow_c_stream__"):
        return iter(pa.RecordBatchReader.from_stream(data))
    if hasattr(data, "__arrow_c_array__"):
        return iter((pa.record_batch(data),))
    raise MisuseType(
        f"{type(data).__name__} is no Arrow data: a RecordBatch, Table, RecordBatchReader, or what has "
        "__arrow_c_stream__, is needed",
        value=type(data).__name__,
    )


class TypedEncoder:
    """Record batches of a table with a schema → batches of cells. A null removes the value; columns that are not there
    stay as they are."""

    def __init__(self, info: TableInfo, schema: pa.Schema) -> None:
        from pyomid.row_codec.encode import RowEncoder

        assert info.schema is not None
        self._info = info
        names = wanted_names(info, schema.names)
        missing = [part.name for part in info.schema.row_key if part.name not in names]
        if missing:
            raise Misuse(f"table {info.name!r}: the data lack the row key column {missing[0]!r}", column=missing[0])
        self._encoder = RowEncoder(info.schema, info.families, written=names)
        from pyomid.row_codec.decode import arrow_schema

        self._schema = arrow_schema(info.schema, names)

    def encode(self, batch: pa.RecordBatch) -> CellBatch:
        pa = imported_pyarrow()
        columns = []
        for field, column in zip(self._schema, batch.columns, strict=True):
            try:
                if not _may_become(column.type, field.type):
                    raise TypeError("cast it")
                columns.append(column if column.type == field.type else column.cast(field.type))
            except (TypeError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise MisuseType(
                    f"table {self._info.name!r}: column {field.name!r} is {field.type}, and the data's {column.type} "
                    f"does not fit: {error}",
                    column=field.name,
                ) from error
        return self._encoder.encode(pa.RecordBatch.from_arrays(columns, schema=self._schema))


def _may_become(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast keeps what the values say: it would parse texts, round numbers, and guess time zones."""
    types = imported_pyarrow().types
    if types.is_dictionary(given):
        given = given.value_type
    if given == wanted or types.is_null(given):
        return True
    if types.is_integer(given):
        return bool(types.is_integer(wanted) or types.is_decimal(wanted) or types.is_floating(wanted))
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if types.is_floating(given):
        return bool(types.is_floating(wanted) and given.bit_width <= wanted.bit_width)
    kinds = (
        types.is_decimal,
        types.is_date,
        types.is_duration,
        types.is_nested,
        lambda each: types.is_string(each) or types.is_large_string(each),
        lambda each: types.is_binary(each) or types.is_large_binary(each) or types.is_fixed_size_binary(each),
    )
    return any(kind(given) and kind(wanted) for kind in kinds)


def untyped_rows(rules: TableRules, batch: pa.RecordBatch) -> Iterator[tuple[bytes, Mapping[Column, bytes | None]]]:
    """Rows of `key` and columns named "f:x", all of them binary. A null removes the value."""
    pa = imported_pyarrow()
    if KEY not in batch.schema.names:
        raise Misuse(f"table {rules.info.name!r} has no schema: the data need a column {KEY!r} of row keys")
    for field in batch.schema:
        if field.type not in (pa.binary(), pa.large_binary()):
            raise MisuseType(f"table {rules.info.name!r} has no schema: {field.name!r} is {field.type}, not binary")
    columns = {
        rules.column(name.encode()): batch.column(name).to_pylist() for name in batch.schema.names if name != KEY
    }
    for at, key in enumerate(batch.column(KEY).to_pylist()):
        row = rules.row_key(key)
        given = {column: values[at] for column, values in columns.items()}
        yield row, {c: None if value is None else rules.value(row, c, value) for c, value in given.items()}
