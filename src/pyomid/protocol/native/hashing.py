"""Ids of all cells or rows of a batch in one compiled pass; `protocol.hashing` is the reference implementation.

Column names repeat in every row, so a batch's columns are laid out once; per id only the row key and the column
are copied after the table's name and hashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyomid.arrays import NDArray, np
from pyomid.cells import BatchArrays, CellBatch, ColumnNames
from pyomid.kernels.compiled import READ_BYTES, READ_INT32S, READ_INT64S, kernel
from pyomid.protocol import hashing


def cell_ids(table: bytes, batch: CellBatch) -> NDArray[np.int64]:
    """One id a cell, in the batch's order of cells."""
    if not _hash_cells.is_ready_for(batch.cells):
        names = (hashing.row_id(table, row + column) for row, column in _cell_names(batch))
        return np.fromiter(names, dtype=np.int64, count=batch.cells)
    name = np.frombuffer(table, dtype=np.uint8)
    ids: NDArray[np.int64] = _hash_cells(name, batch.arrays(), tuple(ColumnNames.of(batch.columns)))
    return ids


def is_ready() -> bool:
    """Whether ids of batches are made by kernels."""
    return _hash_cells.is_ready and _hash_rows.is_ready


def row_ids(table: bytes, batch: CellBatch) -> NDArray[np.int64]:
    """One id a row, in the batch's order of rows."""
    if not _hash_rows.is_ready_for(batch.rows):
        return np.array([hashing.row_id(table, batch.row_key(row)) for row in range(batch.rows)], dtype=np.int64)
    ids: NDArray[np.int64] = _hash_rows(
        np.frombuffer(table, dtype=np.uint8), batch.buffer, batch.row_off, batch.row_len
    )
    return ids


def name_ids(table: bytes, names: Sequence[bytes]) -> list[int]:
    """One id a name, in their order: a cell's name is row + family + qualifier, a row's its key."""
    if not _hash_rows.is_ready:
        return [hashing.row_id(table, name) for name in names]
    lengths = np.fromiter((len(name) for name in names), dtype=np.int32, count=len(names))
    offsets = np.cumsum(lengths, dtype=np.int64) - lengths
    joined = np.frombuffer(b"".join(names), dtype=np.uint8)
    ids: NDArray[np.int64] = _hash_rows(np.frombuffer(table, dtype=np.uint8), joined, offsets, lengths)
    as_list: list[int] = ids.tolist()
    return as_list


def _cell_names(batch: CellBatch) -> Iterator[tuple[bytes, bytes]]:
    """Of each cell its row and the bytes of its column."""
    columns = [column.family + column.qualifier for column in batch.columns]
    numbers, ends = batch.cell_col.tolist(), batch.rec_cell[batch.row_rec].tolist()
    for row in range(batch.rows):
        key = batch.row_key(row)
        for number in numbers[ends[row] : ends[row + 1]]:
            yield key, columns[number]


@kernel("uint64(uint64, int64)")
def _rotate(word: Any, bits: Any) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@kernel("uint64(uint64)")
def _avalanche(word: Any) -> Any:
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@kernel("uint64(uint8[::1], int64)", _nrt=False)
def _word(data: Any, offset: Any) -> Any:
    """Indices are unsigned: signed ones may count from the end, which numba would ask each time."""
    word, first = np.uint64(0), np.uint64(offset)
    for i in range(np.uint64(8)):
        word |= np.uint64(data[first + i]) << (np.uint64(8) * i)
    return word


@kernel("int64(uint8[::1], int64)", _nrt=False)
def _low_half(data: Any, length: Any) -> Any:
    """MurmurHash3 x64 128, low half, of data[:length]; up to 16 bytes after `length` are overwritten with zeros."""
    c1, c2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
    h1 = h2 = np.uint64(0)
    whole = length & ~15
    for at in range(0, whole, 16):
        h1 ^= _rotate(_word(data, at) * c1, 31) * c2
        h1 = (_rotate(h1, 27) + h2) * np.uint64(5) + np.uint64(0x52DCE729)
        h2 ^= _rotate(_word(data, at + 8) * c2, 33) * c1
        h2 = (_rotate(h2, 31) + h1) * np.uint64(5) + np.uint64(0x38495AB5)
    if whole != length:
        for at in range(length, whole + 16):
            data[at] = 0
        h1 ^= _rotate(_word(data, whole) * c1, 31) * c2
        h2 ^= _rotate(_word(data, whole + 8) * c2, 33) * c1
    h1 ^= np.uint64(length)
    h2 ^= np.uint64(length)
    h1 += h2
    h2 += h1
    h1, h2 = _avalanche(h1), _avalanche(h2)
    return np.int64(h1 + h2)


@kernel(f"int64(uint8[::1], int64, {READ_BYTES}, int64, int64)", _nrt=False)
def _append(target: Any, at: Any, source: Any, offset: Any, length: Any) -> Any:
    to, first = np.uint64(at), np.uint64(offset)
    for i in range(np.uint64(length)):
        target[to + i] = source[first + i]
    return at + length


@kernel(f"uint8[::1]({READ_BYTES}, {READ_INT32S}, int64)")
def _after_table(table: Any, row_len: Any, name_bytes: Any) -> Any:
    """The table's name, with room for the longest row key, so many bytes of a name, and what `_low_half` fills up."""
    longest = 0
    for row in range(len(row_len)):
        longest = max(longest, row_len[row])
    scratch = np.empty(len(table) + longest + name_bytes + 16, dtype=np.uint8)
    _append(scratch, 0, table, 0, len(table))
    return scratch


@kernel(f"int64[::1]({READ_BYTES}, Fields(BatchArrays), Fields(ColumnNames))")
def _hash_cells(table: Any, arrays: Any, column_names: Any) -> Any:
    batch, columns = BatchArrays(*arrays), ColumnNames(*column_names)
    buffer, row_off, row_len, row_rec = batch.buffer, batch.row_off, batch.row_len, batch.row_rec
    rec_cell, cell_col, names, begin = batch.rec_cell, batch.cell_col, columns.names, columns.begin
    scratch = _after_table(table, row_len, len(names))
    ids = np.empty(len(cell_col), dtype=np.int64)
    for row in range(len(row_off)):
        after_row = _append(scratch, len(table), buffer, row_off[row], row_len[row])
        for cell in range(rec_cell[row_rec[row]], rec_cell[row_rec[row + 1]]):
            column = cell_col[cell]
            name = begin[column]
            end = _append(scratch, after_row, names, name, begin[column + 1] - name)
            ids[cell] = _low_half(scratch, end)
    return ids


@kernel(f"int64[::1]({READ_BYTES}, {READ_BYTES}, {READ_INT64S}, {READ_INT32S})")
def _hash_rows(table: Any, buffer: Any, row_off: Any, row_len: Any) -> Any:
    scratch = _after_table(table, row_len, 0)
    ids = np.empty(len(row_off), dtype=np.int64)
    for row in range(len(row_off)):
        ids[row] = _low_half(scratch, _append(scratch, len(table), buffer, row_off[row], row_len[row]))
    return ids
