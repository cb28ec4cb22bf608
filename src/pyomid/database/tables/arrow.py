"""`Table.to_arrow` and `Table.write_arrow`: a table's rows as Arrow, without Spark.

    typed      a table with a schema in the catalog has the schema's columns, with Spark's Arrow types
    untyped    any other has `key` and the named columns (b"f:x" as "f:x"), all binary, or a map of all cells

Reading is vectorized: a batch of the store becomes a record batch without Python objects for rows. The transaction's
writes are flushed first, so that the store returns them. While the transaction is open, any thread may fetch a reader's
batches, but only one thread at a time; DuckDB, for example, uses other threads.

Only this module needs pyarrow; the first call imports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from pyomid.arrays import np
from pyomid.cells import CellBatch
from pyomid.database.driver import Run
from pyomid.database.tables.scans import iterated
from pyomid.database.validation import TableRules
from pyomid.database.writes.open_reads import OpenRead
from pyomid.database.writes.overlay import Overlay
from pyomid.database.writes.shown_rows import SeenBatch, merged_batch, visible_rows
from pyomid.errors import Misuse, MisuseType, extra_missing
from pyomid.protocol.reading import SnapshotScan
from pyomid.protocol.visibility import VisibleCells
from pyomid.types import Column, TableInfo, is_loaded_instance

if TYPE_CHECKING:
    import pyarrow as pa

KEY: Final = "key"
CELLS: Final = "cells"

ROWS_AT_ONCE: Final = 10_000
"""Number of rows in a record batch, as in Spark."""


def imported_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise extra_missing("Arrow needs the package pyarrow", "arrow") from error
    return pyarrow


class Converter(Protocol):
    """Converts the visible cells of a batch into a record batch of `schema`."""

    @property
    def schema(self) -> pa.Schema: ...
    def decode(self, batch: CellBatch, visible: VisibleCells) -> pa.RecordBatch: ...


def converter(rules: TableRules, columns: object) -> Converter:
    """Return a converter for the table's schema, or an untyped converter if there is no schema or the columns are
    bytes."""
    pa = imported_pyarrow()
    info = rules.info
    if columns is not None and (isinstance(columns, str | bytes) or not isinstance(columns, Sequence)):
        raise MisuseType(f"columns {columns!r} is not a list of column names", value=columns)
    if info.schema is not None and (columns is None or all(isinstance(name, str) for name in columns)):
        from pyomid.rows.decode import RowDecoder

        return RowDecoder(info.name, info.schema, wanted_names(info, columns))
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
            f"table {info.name!r} has the columns {', '.join(known)}; give only these columns, each at most once, not "
            f"{', '.join(wanted)}",
            table=info.name,
        )
    return tuple(wanted)


@dataclass(frozen=True)
class ArrowScan:
    """The rows of a range as the transaction sees them when the scan begins. `check` raises if the transaction may no
    longer read."""

    table: TableInfo
    read: OpenRead
    """An open read, opened when no write was buffered."""
    overlay: Overlay
    converter: Converter
    check: Any

    def batches(self, run: Run) -> Iterator[pa.RecordBatch]:
        """Iterate over the record batches. All columns are fetched, because any cell makes a row exist. If there are no
        rows, the iterator yields one empty batch, because Polars takes the columns from the first batch."""
        scan: SnapshotScan | None = None
        seen: SeenBatch | None = None
        is_empty = True

        def next_batch() -> Iterator[pa.RecordBatch] | None:
            nonlocal scan, seen, is_empty
            while seen is None and (scan is None or scan.reached is not None):
                self.check()
                if scan is None:
                    scan = self.overlay.view.scan(self.table, self.read.key_range, None, ROWS_AT_ONCE)
                try:
                    seen = run(self._seen(scan))
                except BaseException:
                    scan = None  # it has passed rows that were not returned
                    raise
            if seen is None and not is_empty:
                return None
            shown = _no_rows(self.converter.schema) if seen is None else self.converter.decode(*seen)
            seen, is_empty = None, False
            return iter((shown,))

        return iterated(next_batch)

    async def _seen(self, scan: SnapshotScan) -> SeenBatch | None:
        seen = await scan.next()
        shown = self.read.up_to(scan.reached)
        own = await self.overlay.own_rows(self.read, self.table, () if seen is None else (seen,), shown, None)
        return merged_batch(seen, own)

    def reader(self, batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> pa.RecordBatchReader:
        return imported_pyarrow().RecordBatchReader.from_batches(self.converter.schema, batches)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return _record_batch(schema, [[] for _ in schema])


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
        """Decode column by column, as for a table with a schema."""
        from pyomid.rows.decode import binary_array

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


def _rows(batch: CellBatch, visible: VisibleCells) -> list[tuple[bytes, dict[Column, bytes]]]:
    return list(visible_rows(batch, visible, batch.columns))


def _record_batch(schema: pa.Schema, columns: list[list[Any]]) -> pa.RecordBatch:
    pa = imported_pyarrow()
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text(name: object) -> str:
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    raise MisuseType(
        f"column {name!r} is {type(name).__name__}, not bytes; the table has no schema, so its column names are bytes",
        value=name,
    )


# Writing


def record_batches(data: Any) -> pa.RecordBatchReader:
    """Return a reader of Arrow, pandas, Polars or DuckDB data."""
    pa = imported_pyarrow()
    try:
        return _reader(pa, data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        if isinstance(error, Misuse):
            raise
        raise MisuseType(
            f"{type(data).__name__} is not a table of Arrow data: {error}", value=type(data).__name__
        ) from error


def _reader(pa: Any, data: Any) -> pa.RecordBatchReader:
    if is_loaded_instance(data, "pandas", "DataFrame"):
        data = pandas_table(data)
    if is_loaded_instance(data, "polars", "DataFrame"):
        refuse_objects(data)
    if isinstance(data, pa.StructArray):
        data = pa.RecordBatch.from_struct_array(data)
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.Table):
        return data.to_reader(max_chunksize=ROWS_AT_ONCE)
    if isinstance(data, pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return _reader(pa, pa.record_batch(data))
    raise MisuseType(
        f"{type(data).__name__} is not Arrow data: give a RecordBatch, Table, RecordBatchReader, or an object with "
        "__arrow_c_stream__",
        value=type(data).__name__,
    )


def pandas_table(frame: Any) -> pa.Table:
    """Return a pandas frame as an Arrow table. Named index levels become columns; NaN becomes null."""
    named = [name for name in frame.index.names if name is not None]
    if named:
        frame = frame.reset_index(level=named)
    table = _arrow_of_pandas(frame)
    for place, field in enumerate(table.schema):
        values = frame.iloc[:, place]
        values = getattr(getattr(values, "cat", None), "categories", values)
        if getattr(values.dtype, "kind", "") == "O":
            _refuse_what_arrow_mixes(values, field)
            if "[us" in str(field.type):
                _refuse_nanoseconds(values, field)
    return table


def _reason(error: Exception) -> object:
    return error if isinstance(error, UnicodeError) else error.args[0]


def _arrow_of_pandas(frame: Any) -> pa.Table:
    """Return a frame's columns as an Arrow table. If Arrow cannot convert a column, `MisuseType` names it."""
    pa = imported_pyarrow()
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        if len(frame.columns) == 1:
            name = frame.columns[0]
            raise MisuseType(f"column {name!r} cannot be converted to Arrow: {_reason(error)}", column=name) from error
        for place in range(len(frame.columns)):
            _arrow_of_pandas(frame.iloc[:, place : place + 1])
        raise  # no single column is the reason


def _refuse_what_arrow_mixes(values: Any, field: pa.Field) -> None:
    """Refuse columns of mixed Python objects. Arrow would convert them to one type, and lose a time of day, a time
    zone, or the difference between str and bytes or between float and bool."""
    kinds = {kind for value in _scalars(values) if (kind := _kind(value))}
    for one, other in _MIXED:
        others = {kind for kind in kinds if kind.startswith(other)}
        if one in kinds and others:
            raise MisuseType(
                f"column {field.name!r} has values of {one} and of {min(others)}, which Arrow would convert to "
                f"{field.type}; give the column values of one type",
                column=field.name,
            )


_MIXED: Final = (("str", "bytes"), ("date", "datetime"), ("datetime", "datetime with a time zone"), ("float", "bool"))


def _kind(value: object) -> str:
    """Return the kind of a str, bytes, date, datetime, bool or float. It is empty for other types, and for NaN, which
    counts as null."""
    if isinstance(value, str | bytes):
        return "str" if isinstance(value, str) else "bytes"
    if isinstance(value, datetime):
        return "datetime" if value.tzinfo is None else "datetime with a time zone"
    if isinstance(value, bool | float):
        return "bool" if isinstance(value, bool) else "float" * (value == value)
    return "date" if isinstance(value, date) else ""


def _refuse_nanoseconds(values: Any, field: pa.Field) -> None:
    """Refuse pandas objects with nanoseconds: Arrow treats them as Python objects without nanoseconds, and truncates
    them."""
    for value in _scalars(values):
        if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
            raise MisuseType(
                f"column {field.name!r} has {value!r}, but {field.type} would lose its nanoseconds; round the value, "
                "or give the column a pandas dtype (datetime64[ns], timedelta64[ns])",
                column=field.name,
            )


def _scalars(values: Any) -> Iterator[Any]:
    """Yield the scalars in Python objects of any depth, except pandas' NaT."""
    for value in values:
        if isinstance(value, str | bytes):
            yield value
        elif isinstance(value, Mapping):
            yield from _scalars(value.values())
        elif isinstance(value, list | tuple | set) or getattr(getattr(value, "dtype", None), "kind", "") == "O":
            yield from _scalars(value)
        elif not (isinstance(value, datetime | timedelta) and value != value):
            yield value


def refuse_objects(frame: Any) -> None:
    """Refuse object columns of a Polars frame, because Polars would export their memory addresses."""
    for name, kind in frame.schema.items():
        if kind.is_object():
            raise MisuseType(
                f"column {name!r} of the Polars frame has Python objects; cast the column first", column=name
            )


def next_batch(batches: pa.RecordBatchReader) -> pa.RecordBatch | None:
    """Return the next batch, None after the last one. Exceptions of the program's own reader pass unchanged."""
    try:
        return next(batches, None)
    except imported_pyarrow().ArrowException as error:
        raise Misuse(f"the Arrow data cannot be read: {error}") from error


class TypedEncoder:
    """Encodes record batches of a table with a schema as cell batches. A null removes the value; columns missing in the
    data stay."""

    def __init__(self, info: TableInfo, schema: pa.Schema) -> None:
        from pyomid.rows.arrow_gate import Gate
        from pyomid.rows.decode import arrow_schema
        from pyomid.rows.encode import RowEncoder

        assert info.schema is not None
        names = wanted_names(info, schema.names)
        missing = [part.name for part in info.schema.row_key if part.name not in names]
        if missing:
            raise Misuse(f"table {info.name!r}: the data lack the row key column {missing[0]!r}", column=missing[0])
        self._gate = Gate(schema, arrow_schema(info.schema, names), f"table {info.name!r}")
        self._encoder = RowEncoder(info.schema, info.families, written=names)

    def encode(self, batch: pa.RecordBatch) -> CellBatch:
        return self._encoder.encode(self._gate.convert(batch))


class UntypedRows:
    """Converts record batches of `key` and columns named "f:x", all binary, into rows. A null removes the value."""

    def __init__(self, rules: TableRules, schema: pa.Schema) -> None:
        pa = imported_pyarrow()
        from pyomid.rows.arrow_gate import Gate

        self._rules = rules
        what = f"table {rules.info.name!r} has no schema"
        if KEY not in schema.names:
            raise Misuse(f"{what}, so the data need a column {KEY!r} that holds the row keys")
        twice = [name for name in schema.names if schema.names.count(name) > 1]
        if twice:
            raise Misuse(f"{what}, and the data have two columns named {twice[0]!r}", column=twice[0])
        self._columns = {name: rules.column(name.encode()) for name in schema.names if name != KEY}
        self._gate = Gate(schema, pa.schema([pa.field(name, pa.binary()) for name in schema.names]), what)

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, Mapping[Column, bytes | None]]]:
        batch = self._gate.convert(batch)
        rules = self._rules
        columns = {column: batch.column(name).to_pylist() for name, column in self._columns.items()}
        for at, key in enumerate(batch.column(KEY).to_pylist()):
            row = rules.row_key(key)
            given = {column: values[at] for column, values in columns.items()}
            yield row, {c: None if value is None else rules.value(row, c, value) for c, value in given.items()}
