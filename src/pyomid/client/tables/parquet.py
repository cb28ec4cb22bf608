"""Tables as Parquet files, out of one snapshot and into transactions of a bounded number of rows. Without Spark.

    NAME.parquet      a table with a schema    its columns, with their types
                      one without              key, column ("family:qualifier"), value: a row for each cell

A file's metadata (`pyomid`) say how the table was made, so an import makes it anew. An export is written under other
names until all of it is durable. An import is not one transaction: its error says how far it came.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from pyomid.client.tables.arrow import KEY, ROWS_AT_ONCE, imported_pyarrow
from pyomid.client.transaction import Transaction
from pyomid.errors import Corruption, Misuse, UnknownTable
from pyomid.owned_files import sync_folder
from pyomid.types import TableInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.client.database import Database

COLUMN: Final = "column"
VALUE: Final = "value"
_SUFFIX: Final = ".parquet"
_UNFINISHED: Final = ".unfinished"
_METADATA: Final = b"pyomid"
_BYTES_AT_ONCE: Final = 32 << 20


def export_tables(
    database: Database, destination: str | os.PathLike[str], infos: Sequence[TableInfo]
) -> dict[str, int]:
    """Writes each table to a file of an absent or empty folder, all of one snapshot. Rows (or cells) of each."""
    folder = Path(destination)
    folder.mkdir(parents=True, exist_ok=True)
    left = list(folder.iterdir())
    if any(not each.name.endswith(_SUFFIX + _UNFINISHED) for each in left):
        raise Misuse(f"{folder} is not empty: name a new folder", folder=str(folder))
    for each in left:
        each.unlink()
    paths = {info.name: folder / f"{quote(info.name, safe='')}{_SUFFIX}" for info in infos}
    counts = {}
    with database.snapshot(lease=True) as snapshot:
        for info in infos:
            counts[info.name] = _export(snapshot, info, Path(f"{paths[info.name]}{_UNFINISHED}"))
    for path in paths.values():
        os.replace(f"{path}{_UNFINISHED}", path)
    sync_folder(folder)
    return counts


def _export(snapshot: Transaction, info: TableInfo, path: Path) -> int:
    pa = imported_pyarrow()
    from pyarrow import parquet

    rows = snapshot.table(info.name).to_arrow()
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
    """A row for each entry of the rows' maps."""
    cells = batch.column("cells")
    offsets = cells.offsets.to_pylist()
    rows = [row for row, (first, stop) in enumerate(pairwise(offsets)) for _ in range(first, stop)]
    keys = batch.column(KEY).take(pa.array(rows, pa.int64()))
    entries = slice(offsets[0], offsets[-1])
    return pa.RecordBatch.from_arrays([keys, cells.keys[entries], cells.items[entries]], schema=_cells_schema(pa))


def _made_by(info: TableInfo) -> dict[str, Any]:
    """What makes the table anew."""
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
    database: Database, source: str | os.PathLike[str], tables: Sequence[str] | None, *, over: bool
) -> dict[str, int]:
    """Rows (or cells) of each table that was written. `over`: tables that have rows, too."""
    files = _files(Path(source), tables)
    for name, path in files.items():
        _make(database, name, path)
        with database.snapshot() as tx:
            if not over and next(islice(tx.table(name).scan(), 1), None) is not None:
                raise Misuse(f"table {name!r} has rows: import into a new one, or over them (over=True)", table=name)
    return {name: _import(database, name, path) for name, path in files.items()}


def _files(source: Path, tables: Sequence[str] | None) -> dict[str, Path]:
    if source.is_dir():
        found = {unquote(path.name.removesuffix(_SUFFIX)): path for path in sorted(source.glob(f"*{_SUFFIX}"))}
        if left := sorted(source.glob(f"*{_UNFINISHED}")):
            raise Misuse(f"{source} is not a whole export: {left[0].name} is in it; export it again")
        if missing := [name for name in tables or () if name not in found]:
            raise Misuse(f"{source} has no file of table {missing[0]!r}", table=missing[0])
        return {name: path for name, path in found.items() if tables is None or name in tables}
    if not source.exists():
        raise Misuse(f"there is no {source}")
    names = list(tables) if tables is not None else [unquote(source.name.removesuffix(_SUFFIX))]
    if len(names) != 1:
        raise Misuse(f"{source} is one file, for one table, not for {len(names)}")
    return {names[0]: source}


def _make(database: Database, name: str, path: Path) -> None:
    """The table exists on return, as the file says that it was made. One without a schema and without rows may be what
    an import left that died amid this."""
    made = _metadata(path)
    try:
        needs_schema = database.table_info(name).schema is None and _is_empty(database, name)
    except UnknownTable:
        if made is None:
            raise
        families = [bytes.fromhex(family) for family in made["families"]]
        database.create_table(name, families, made["conflict_level"], if_not_exists=True)
        needs_schema = True
    if needs_schema and made is not None and "columns" in made:
        mapping = {column: bytes.fromhex(place) for column, place in made["mapping"].items()}
        database.table_schema(name, made["columns"], row_key=made["row_key"], mapping=mapping)


def _is_empty(database: Database, name: str) -> bool:
    with database.snapshot() as tx:
        return next(iter(tx.table(name).scan()), None) is None


def _metadata(path: Path) -> dict[str, Any] | None:
    """None of a file that another program wrote."""
    said = (_opened(path).schema_arrow.metadata or {}).get(_METADATA)
    return None if said is None else dict(json.loads(said))


def _opened(path: Path) -> Any:
    pa = imported_pyarrow()
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise Corruption(f"{path} is no Parquet file: {error}") from error


def _import(database: Database, name: str, path: Path) -> int:
    file, is_typed = _opened(path), database.table_info(name).schema is not None
    done = 0
    try:
        for batch in file.iter_batches(batch_size=_rows_at_once(file.metadata)):
            database.run(partial(_write, name=name, batch=batch, by_cells=not is_typed and _is_by_cells(batch)))
            done += batch.num_rows
    except BaseException as error:
        error.add_note(
            f"import of {name!r} from {path}: {done} of {file.metadata.num_rows} rows are committed, and those of the "
            "last transaction perhaps; import it again with over=True (--over), which writes all of them once more"
        )
        raise
    return done


def _rows_at_once(metadata: Any) -> int:
    """Fewer of large rows."""
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, min(ROWS_AT_ONCE, _BYTES_AT_ONCE * int(metadata.num_rows) // max(1, int(size))))


def _is_by_cells(batch: pa.RecordBatch) -> bool:
    return list(batch.schema.names) == [KEY, COLUMN, VALUE]


def _write(transaction: Transaction, *, name: str, batch: pa.RecordBatch, by_cells: bool) -> None:
    table = transaction.table(name)
    if not by_cells:
        table.write_arrow(batch)
        return
    for key, cells in _rows(batch):
        table.put(key, cells)


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[bytes, Mapping[bytes, bytes]]]:
    """Neighbouring cells of one row together."""
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
