"""Puts of whole batches as HBase takes them, in one compiled pass: actions (protobuf) and their cell block.

An action is, inside the region action that `regions/bulk_writes` wraps around it:
    1A len { 08 index  12 len { 0A len row  10 02 (PUT)  [30 durability]  40 count } }
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import BatchArrays, ColumnNames
from pyomid.kernels.compiled import READ_BYTES, Bytes, Int64s, Record, kernel, record

ACTION_BYTES_MAX = 48
"""Of an action beside its row."""
CELL_BYTES_MAX = 32
"""Of a KeyValue with its length, beside row, family, qualifier and value."""
COMMIT_ROW_BYTES = 9
COMMIT_CELL_BYTES_MAX = CELL_BYTES_MAX + 32
"""Of a whole commit entry."""


@record
class Used(Record):
    """How far a request's buffers are filled."""

    actions: int
    """Bytes."""
    block: int
    """Bytes."""
    rows: int


class RequestArrays(NamedTuple):
    """What encoders fill; large enough, which their callers see to."""

    actions: Bytes
    block: Bytes
    used: Annotated[Any, "Used[::1]"]


class Request:
    """The buffers of a Multi call: its actions, and the cell block that they count on."""

    def __init__(self, actions_bytes_max: int, block_bytes_max: int) -> None:
        self.used = Used()
        self._actions = np.empty(actions_bytes_max, dtype=np.uint8)
        self._block = np.empty(block_bytes_max, dtype=np.uint8)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What a kernel takes as `Fields(RequestArrays)`."""
        return self._actions, self._block, self.used.as_array()

    def actions(self) -> bytes:
        return self._actions[: self.used.actions].tobytes()

    def block(self) -> memoryview:
        return self._block[: self.used.block].data


@kernel("int64(int64)")
def _varint_bytes(value: int) -> int:
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@kernel("int64(uint8[::1], int64, int64)", _nrt=False)
def _put_varint(out: Bytes, at: int, value: int) -> int:
    while value > 0x7F:
        out[at] = (value & 0x7F) | 0x80
        at += 1
        value >>= 7
    out[at] = value
    return at + 1


@kernel("int64(uint8[::1], int64, int64, int64)", _nrt=False)
def _put_number(out: Bytes, at: int, value: int, size: int) -> int:
    for index in range(size):
        out[at + index] = (value >> (8 * (size - 1 - index))) & 0xFF
    return at + size


@kernel(f"int64(uint8[::1], int64, {READ_BYTES}, int64, int64)", _nrt=False)
def _copy(out: Bytes, at: int, source: Bytes, begin: int, size: int) -> int:
    for index in range(size):
        out[at + index] = source[begin + index]
    return at + size


@kernel("int64(uint8[::1], int64, int64, int64, int64)", _nrt=False, forceinline=True)
def _put_lengths(out: Bytes, at: int, row_bytes: int, name_bytes: int, value_bytes: int) -> int:
    """A KeyValue up to its row: its own length, those of its key, value and row. `name_bytes`: family and qualifier."""
    key_bytes = 12 + row_bytes + name_bytes
    at = _put_number(out, at, 8 + key_bytes + value_bytes, 4)
    at = _put_number(out, at, key_bytes, 4)
    at = _put_number(out, at, value_bytes, 4)
    return _put_number(out, at, row_bytes, 2)


@kernel("int64(int64, int64, int64)")
def _mutation_bytes(row_bytes: int, cells: int, durability: int) -> int:
    return 1 + _varint_bytes(row_bytes) + row_bytes + 2 + (2 if durability else 0) + 1 + _varint_bytes(cells)


@kernel("int64(int64, int64, int64, int64)")
def _action_bytes(number: int, row_bytes: int, cells: int, durability: int) -> int:
    """Of the whole action, its tag included."""
    mutation = _mutation_bytes(row_bytes, cells, durability)
    action = 1 + _varint_bytes(number) + 1 + _varint_bytes(mutation) + mutation
    return 1 + _varint_bytes(action) + action


@kernel(f"int64(uint8[::1], int64, int64, {READ_BYTES}, int64, int64, int64)", _nrt=False)
def _put_action(out: Bytes, at: int, number: int, row: Bytes, cells: int, kind: int, durability: int) -> int:
    """The action with this number: a mutation of `row` by so many cells of the block; returns where it ends."""
    row_bytes = len(row)
    mutation = _mutation_bytes(row_bytes, cells, durability)
    action = 1 + _varint_bytes(number) + 1 + _varint_bytes(mutation) + mutation
    out[at] = 0x1A
    at = _put_varint(out, at + 1, action)
    out[at] = 0x08
    at = _put_varint(out, at + 1, number)
    out[at] = 0x12
    at = _put_varint(out, at + 1, mutation)
    out[at] = 0x0A
    at = _put_varint(out, at + 1, row_bytes)
    at = _copy(out, at, row, 0, row_bytes)
    out[at] = 0x10
    out[at + 1] = kind
    at += 2
    if durability:
        out[at] = 0x30
        out[at + 1] = durability
        at += 2
    out[at] = 0x40
    return _put_varint(out, at + 1, cells)


@kernel("void(Fields(BatchArrays), Fields(ColumnNames), int64, int64, int64, int64, Fields(RequestArrays))", _nrt=False)
def encode_puts(
    batch_arrays: Any, column_names: Any, first: int, end: int, version: int, durability: int, request: Any
) -> None:
    """Rows `first` … `end` of a batch, under `version`; numbers of actions count from `first`."""
    batch, columns = BatchArrays(*batch_arrays), ColumnNames(*column_names)
    buffer, row_off, row_len, row_rec = batch.buffer, batch.row_off, batch.row_len, batch.row_rec
    rec_cell, cell_col, cell_off, cell_len = batch.rec_cell, batch.cell_col, batch.cell_off, batch.cell_len
    names, name_begin, family_bytes = columns.names, columns.begin, columns.family_bytes
    actions, block, used = RequestArrays(*request)
    at = action_at = 0
    for row in range(first, end):
        row_at, row_bytes = int(row_off[row]), int(row_len[row])
        begin, stop = int(rec_cell[row_rec[row]]), int(rec_cell[row_rec[row + 1]])
        key = buffer[row_at : row_at + row_bytes]
        action_at = _put_action(actions, action_at, row - first, key, stop - begin, 2, durability)
        for cell in range(begin, stop):
            column = cell_col[cell]
            name_bytes = int(name_begin[column + 1] - name_begin[column])
            value_bytes = max(int(cell_len[cell]), 0)
            at = _put_lengths(block, at, row_bytes, name_bytes, value_bytes)
            at = _copy(block, at, buffer, row_at, row_bytes)
            block[at] = family_bytes[column]
            at = _copy(block, at + 1, names, int(name_begin[column]), name_bytes)
            at = _put_number(block, at, version, 8)
            block[at] = 4
            at = _copy(block, at + 1, buffer, int(cell_off[cell]), value_bytes)
    used[0].actions, used[0].block, used[0].rows = action_at, at, end - first


@kernel(f"int64(uint8[::1], int64, {READ_BYTES}, int64, int64)", _nrt=False)
def _put_commit(out: Bytes, at: int, row: Bytes, start: int, commit: int) -> int:
    """The KeyValue of a commit entry, with its length: `F:C` = varint(commit - start), under version start."""
    value_bytes = _varint_bytes(commit - start)
    at = _put_lengths(out, at, COMMIT_ROW_BYTES, 2, value_bytes)
    at = _copy(out, at, row, 0, COMMIT_ROW_BYTES)
    out[at] = 1
    out[at + 1] = 70  # F
    out[at + 2] = 67  # C
    at = _put_number(out, at + 3, start, 8)
    out[at] = 4
    return _put_varint(out, at + 1, commit - start)


@kernel("void(int64[:, ::1], int64[::1], int64, int64, int64, Fields(RequestArrays))")
def encode_commits(
    entries: NDArray[np.int64], order: Int64s, first: int, end: int, durability: int, request: Any
) -> None:
    """Commit-table entries (start, commit) in `order[first:end]` as puts of `F:C` = varint(commit - start)."""
    actions, block, used = RequestArrays(*request)
    row = np.empty(COMMIT_ROW_BYTES, dtype=np.uint8)
    at = action_at = 0
    for position in range(first, end):
        start = int(entries[order[position], 0])
        row[0] = start & 15
        _put_number(row, 1, start, 8)
        action_at = _put_action(actions, action_at, position - first, row, 1, 2, durability)
        at = _put_commit(block, at, row, start, int(entries[order[position], 1]))
    used[0].actions, used[0].block, used[0].rows = action_at, at, end - first


@kernel("int64(uint8[::1], int64, int64[::1])", _nrt=False)
def _read_varint(data: Bytes, at: int, value: Int64s) -> int:
    """Position after the number, which goes to `value[0]`; -1 where the data end inside it."""
    shift, found = 0, np.int64(0)
    while at < len(data) and shift < 63:
        byte = np.int64(data[at])
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = found
            return at
        shift += 7
    return -1


@kernel("boolean(uint8[::1])")
def all_succeeded(response: Bytes) -> bool:
    """Whether a MultiResponse holds no exception at any level; False too for anything that is not understood.

    MultiResponse { 1: RegionActionResult { 1: ResultOrException { 1 index, 2 result, 3 exception }, 2 exception } }
    """
    value = np.zeros(1, dtype=np.int64)
    ends = np.zeros(3, dtype=np.int64)
    depth, at = 0, 0
    ends[0] = len(response)
    while True:
        while depth >= 0 and at == ends[depth]:
            depth -= 1
        if depth < 0:
            return True
        if at > ends[depth]:
            return False
        at = _read_varint(response, at, value)
        if at < 0:
            return False
        field, wire = value[0] >> 3, value[0] & 7
        at = _read_varint(response, at, value)
        if at < 0 or (wire != 0 and wire != 2):
            return False
        if wire == 0:
            continue
        if value[0] > ends[depth] - at:
            return False
        if (depth == 1 and field == 2) or (depth == 2 and field == 3):
            return False
        if field == 1 and depth < 2:
            depth += 1
            ends[depth] = at + value[0]
        else:
            at += value[0]
