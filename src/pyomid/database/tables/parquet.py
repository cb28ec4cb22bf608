"""Export of tables to Parquet files, and import from such files, without Spark.

    NAME.parquet      of a table with a schema         has the table's columns, with their types
                      of a table without a schema      has key, column ("family:qualifier"), value: a row for each cell

An export reads one snapshot. Its files have temporary names until all of them are durable. A file's metadata (`pyomid`)
describes the table, so an import can create the table. An import runs transactions of a bounded number of rows; if it
fails, its error reports the progress.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from pyomid.config import path_of
from pyomid.database.tables.arrow import KEY, ROWS_AT_ONCE, imported_pyarrow
from pyomid.database.transaction import Transaction
from pyomid.errors import Corruption, Misuse, UnknownTable
from pyomid.system import sync_folder
from pyomid.types import At, Progress, TableInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.database.database import Database

COLUMN: Final = "column"
VALUE: Final = "value"
_SUFFIX: Final = ".parquet"
_UNFINISHED: Final = ".unfinished"
_METADATA: Final = b"pyomid"
_BYTES_AT_ONCE: Final = 32 << 20


def export_tables(
    database: Database, destination: str | os.PathLike[str], infos: Sequence[TableInfo], at: At | None
) -> dict[str, int]:
    """Write each table to a file in a new or empty folder, all from one snapshot. Return the number of rows (or cells)
    of each table."""
    with database.snapshot(lease=True, at=at) as snapshot:
        folder = _made_empty(path_of(destination))
        paths = {info.name: folder / f"{quote(info.name, safe='')}{_SUFFIX}" for info in infos}
        counts = {info.name: _export(snapshot, info, _unfinished(paths[info.name])) for info in infos}
    for path in paths.values():
        os.replace(_unfinished(path), path)
    sync_folder(folder)
    return counts


def _made_empty(folder: Path) -> Path:
    """Create the folder unless it exists, and delete files that a killed export left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    left = list(folder.iterdir())
    if any(not each.name.endswith(_SUFFIX + _UNFINISHED) for each in left):
        raise Misuse(f"{folder} is not empty: name a new folder", folder=str(folder))
    for each in left:
        each.unlink()
    return folder


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + _UNFINISHED)


def _export(snapshot: Transaction, info: TableInfo, path: Path) -> int:
    pa = imported_pyarrow()
    from pyarrow import parquet

    table = snapshot.table(info.name)
    info, rows = table.info, table.to_arrow()
    schema = rows.schema if info.schema is not None else _cells_schema(pa)
    schema = schema.with_metadata({**(schema.metadata or {}), _METADATA: json.dumps(_made_by(info))})
    count = 0
    try:
        with open(path, "wb") as file, parquet.ParquetWriter(file, schema) as writer:
            for batch in rows:
                each = batch if info.schema is not None else _by_cells(pa, batch)
                writer.write_batch(each.replace_schema_metadata(schema.metadata))
                count += each.num_rows
            writer.close()
            file.flush()
            os.fsync(file.fileno())
    except pa.ArrowException as error:
        raise Misuse(f"table {info.name!r} cannot be written as Parquet: {error}", table=info.name) from error
    return count


def _cells_schema(pa: Any) -> pa.Schema:
    return pa.schema([pa.field(name, pa.binary(), nullable=False) for name in (KEY, COLUMN, VALUE)])


def _by_cells(pa: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a record batch with a row for each cell in the rows' maps."""
    cells = batch.column("cells")
    offsets = cells.offsets.to_pylist()
    rows = [row for row, (first, stop) in enumerate(pairwise(offsets)) for _ in range(first, stop)]
    keys = batch.column(KEY).take(pa.array(rows, pa.int64()))
    entries = slice(offsets[0], offsets[-1])
    return pa.RecordBatch.from_arrays([keys, cells.keys[entries], cells.items[entries]], schema=_cells_schema(pa))


def _made_by(info: TableInfo) -> dict[str, Any]:
    """Return the description by which an import creates the table."""
    made: dict[str, Any] = {
        "table": info.name,
        "families": [family.hex() for family in info.families],
        "conflict_level": info.conflict_level.value,
    }
    if info.schema is not None:
        made["columns"] = {column.name: column.spark_type for column in info.schema.columns}
        made["row_key"] = [part.name + " desc" * part.descending for part in info.schema.row_key]
        made["mapping"] = {
            column.name: (b"%b:%b" % column.column).hex() for column in info.schema.columns if column.column is not None
        }
    return made


# ---------------------------------------------------------------- import


def import_tables(
    database: Database,
    source: str | os.PathLike[str],
    tables: Sequence[str] | None,
    *,
    over: bool,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Import files. Return the number of rows (or cells) of each table. With `over`, tables may already have rows."""
    files = _files(path_of(source), tables)
    for name, path in files.items():
        _check(database, name, path, over=over)
    for name, path in files.items():
        _make(database, name, path)
    return {name: _import(database, name, path, progress) for name, path in files.items()}


def _files(source: Path, tables: Sequence[str] | None) -> dict[str, Path]:
    if source.is_dir():
        found = {unquote(path.name.removesuffix(_SUFFIX)): path for path in sorted(source.glob(f"*{_SUFFIX}"))}
        if left := sorted(source.glob(f"*{_UNFINISHED}")):
            raise Misuse(f"{source} is an unfinished export, because it contains {left[0].name}: export again")
        if missing := [name for name in tables or () if name not in found]:
            raise Misuse(f"{source} has no file for table {missing[0]!r}", table=missing[0])
        return {name: path for name, path in found.items() if tables is None or name in tables}
    if not source.exists():
        raise Misuse(f"{source} does not exist")
    names = list(tables) if tables is not None else [unquote(source.name.removesuffix(_SUFFIX))]
    if len(names) != 1:
        raise Misuse(f"{source} is a file that holds one table, not {len(names)} tables")
    return {names[0]: source}


def _make(database: Database, name: str, path: Path) -> None:
    """Create the table as the file describes it, if it does not exist. An empty table without a schema may come from an
    interrupted import, so it gets the schema too."""
    made = _metadata(path)
    try:
        needs_schema = database.table_info(name).schema is None and _is_empty(database, name)
    except UnknownTable:
        if made is None:
            raise
        families = [bytes.fromhex(family) for family in made["families"]]
        database.create_table(name, families, conflict_level=made["conflict_level"], if_not_exists=True)
        needs_schema = True
    if needs_schema and made is not None and "columns" in made:
        mapping = {column: bytes.fromhex(place) for column, place in made["mapping"].items()}
        database.set_schema(name, made["columns"], row_key=made["row_key"], mapping=mapping)


def _check(database: Database, name: str, path: Path, *, over: bool) -> None:
    """Check a table before any table is created, so that a refused import leaves nothing behind."""
    made = _metadata(path)
    try:
        has_rows = not _is_empty(database, name)
    except UnknownTable:
        if made is None:
            raise
        return
    if has_rows and not over:
        raise Misuse(
            f"table {name!r} has rows; import into a new table, or set over=True to overwrite rows that have the same "
            "key",
            table=name,
        )


def _is_empty(database: Database, name: str) -> bool:
    with database.snapshot() as tx:
        return next(iter(tx.table(name).scan()), None) is None


def _metadata(path: Path) -> dict[str, Any] | None:
    """Return the table's description from a file's metadata; None if another program wrote the file."""
    said = (_opened(path).schema_arrow.metadata or {}).get(_METADATA)
    return None if said is None else dict(json.loads(said))


def _opened(path: Path) -> Any:
    pa = imported_pyarrow()
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise Corruption(f"{path} is not a Parquet file: {error}") from error


def _import(database: Database, name: str, path: Path, progress: Progress | None) -> int:
    file, is_typed = _opened(path), database.table_info(name).schema is not None
    done = 0
    try:
        for batch in _batches(file):
            database.run(partial(_write, name=name, batch=batch, by_cells=not is_typed and _is_by_cells(batch)))
            done += batch.num_rows
            if progress is not None:
                progress(name, done, file.metadata.num_rows)
    except BaseException as error:
        error.add_note(
            f"import of {name!r} from {path}: {done} of {file.metadata.num_rows} rows are committed, and perhaps also "
            "the rows of the last transaction; import again with over=True (--over), which rewrites all rows"
        )
        raise
    return done


def _batches(file: Any) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file. A file without rows yields an empty batch, so that its columns are checked."""
    if file.metadata.num_rows:
        yield from file.iter_batches(batch_size=_rows_at_once(file.metadata))
        return
    from pyomid.rows.arrow_arrays import no_rows

    yield no_rows(file.schema_arrow)


def _rows_at_once(metadata: Any) -> int:
    """Return the number of rows in a batch, smaller if the rows are large."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(ROWS_AT_ONCE, _BYTES_AT_ONCE * int(metadata.num_rows) // max(1, int(size))))


def _is_by_cells(batch: pa.RecordBatch) -> bool:
    return list(batch.schema.names) == [KEY, COLUMN, VALUE]


def _write(transaction: Transaction, *, name: str, batch: pa.RecordBatch, by_cells: bool) -> None:
    table = transaction.table(name)
    if not by_cells:
        table.write_arrow(batch)
        return
    from pyomid.rows.arrow_gate import Gate

    gate = Gate(batch.schema, _cells_schema(imported_pyarrow()), f"table {name!r} has no schema")
    for key, cells in _rows(gate.convert(batch)):
        table.put(key, cells)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[bytes, Mapping[bytes, bytes]]]:
    """Yield rows, each made of adjacent cells with the same key."""
    for name, column in zip((KEY, COLUMN, VALUE), batch.columns, strict=True):
        if column.null_count:
            raise Misuse(f"a row of the file has no {name!r}: each row needs a key, a column and a value", column=name)
    cells: dict[bytes, bytes] = {}
    last: bytes | None = None
    for key, column, value in zip(*(each.to_pylist() for each in batch.columns), strict=True):
        if key != last and last is not None:
            yield last, cells
            cells = {}
        last = key
        cells[column] = value
    if last is not None:
        yield last, cells
