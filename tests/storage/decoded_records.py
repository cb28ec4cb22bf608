"""Records into a batch, one at a time: what the compiled decoder is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyomid.folder.native import records as kernels
from pyomid.folder.records import (
    HEADER_BYTES,
    KEY_BYTES_MIN,
    TABLE_BYTES,
    VERSION_BYTES,
    is_whole,
    key_version,
    places_in,
)


def decode_records_plain(data: NDArray[np.uint8], lens: NDArray[np.int64], column_of: NDArray[np.int32]) -> Any:
    """The reference implementation of `decode_records`."""
    content, lengths, wanted = data.tobytes(), iter(lens.tolist()), column_of.tolist()
    rows: list[bytes] = []
    row_off: list[int] = []
    row_rec, rec_version, rec_commit, rec_cell = [0], [], [], [0]
    cell_col: list[int] = []
    cell_off: list[int] = []
    cell_len: list[int] = []
    status, bad_record, at = kernels.GOOD, -1, 0
    for record, (key_len, value_len) in enumerate(zip(lengths, lengths, strict=True)):
        key, at = content[at : at + key_len], at + key_len
        value, begin, at = content[at : at + value_len], at, at + value_len
        status, cells = _cells_of(key, value, wanted)
        if status != kernels.GOOD:
            bad_record = record
            break
        if not cells:
            continue
        row = key[TABLE_BYTES : -VERSION_BYTES - 1]
        if not rows or rows[-1] != row:
            rows.append(row)
            row_off.append(begin - key_len + TABLE_BYTES)
            row_rec.append(0)
        for column, offset, length in cells:
            cell_col.append(column)
            cell_off.append(begin + offset)
            cell_len.append(length)
        rec_version.append(key_version(key))
        rec_commit.append(int.from_bytes(value[4:HEADER_BYTES], "little"))
        rec_cell.append(len(cell_col))
        row_rec[-1] = len(rec_version)
    row_len = [len(row) for row in rows]
    if status == kernels.GOOD:
        for index, row in enumerate(rows):
            plain = row.replace(b"\x00\xff", b"\x00")
            row_len[index] = len(plain)
            data.data[row_off[index] : row_off[index] + len(plain)] = plain
    return (
        np.array(row_off, dtype=np.int64), np.array(row_len, dtype=np.int32), np.array(row_rec, dtype=np.int64),
        np.array(rec_version, dtype=np.int64), np.array(rec_commit, dtype=np.int64),
        np.array(rec_cell, dtype=np.int64), np.array(cell_col, dtype=np.int32), np.array(cell_off, dtype=np.int64),
        np.array(cell_len, dtype=np.int32), status, bad_record,
    )  # fmt: skip


def _cells_of(key: bytes, value: bytes, wanted: list[int]) -> tuple[int, list[tuple[int, int, int]]]:
    """(a status of the kernel's; of each wanted cell its column, and offset and length of its value)."""
    cells: list[tuple[int, int, int]] = []
    if not is_whole(key, value):
        return kernels.BAD_CHECKSUM, cells
    if len(key) < KEY_BYTES_MIN or key[-VERSION_BYTES - 1] != 0 or key[-VERSION_BYTES] >= 0x80:
        return kernels.BAD_KEY, cells
    try:
        for number, offset, length in places_in(value, HEADER_BYTES):
            if length > len(value) - offset:
                return kernels.BAD_GRAMMAR, cells
            if number >= len(wanted):
                return kernels.UNKNOWN_COLUMN, cells
            if wanted[number] >= 0:
                cells.append((wanted[number], offset, length))
    except (IndexError, ValueError):
        return kernels.BAD_GRAMMAR, cells
    return kernels.GOOD, cells
