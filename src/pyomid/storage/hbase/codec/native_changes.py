"""Shadow cells put and exact versions deleted, many rows in one compiled pass: actions and their cell block.

A row's changes are cells, each with what becomes of it: a commit timestamp is put beside it, or it goes with its
shadow cell, or its shadow cell alone goes. A row that has both kinds of change is a region action of its own, and
atomic; all others share one:
    action          1A len { 08 index  12 len { 0A len row  10 kind  [30 durability]  40 count } }
    region action   0A len { 0A len region  10 01 (atomic)  action of the puts  action of the deletes }
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import BatchArrays
from pyomid.kernels.compiled import READ_BYTES, Bytes, Int64s, ReadBytes, ReadInt64s, kernel
from pyomid.storage.hbase.codec.native_encode import (
    RequestArrays,
    _action_bytes,
    _copy,
    _put_action,
    _put_lengths,
    _put_number,
    _put_varint,
    _varint_bytes,
)

DROPPED = -1
"""The cell goes, and its shadow cell with it."""
ORPHANED = -2
"""The shadow cell alone goes."""

SHADOW_BYTES = 5 + 8
"""What a shadow cell has more than a cell's name: its marks, and the commit timestamp."""

_KIND_PUT = 2
_KIND_DELETE = 3
"""Of mutations (MutationType)."""
_CELL_PUT = 4
_CELL_DELETED = 8
"""Of cells (KeyValue.Type.Delete: exactly this version)."""


class ChangeArrays(NamedTuple):
    """Rows ascending and unique; `row_cell[i] : row_cell[i + 1]` are the cells of row i.

    `change` of a cell: the commit timestamp to put beside it, DROPPED or ORPHANED. A cell's family and qualifier lie
    in `names` at `name_at`, one after the other; a row's key lies in `keys`.
    """

    keys: ReadBytes
    row_at: ReadInt64s
    row_bytes: ReadInt64s
    row_cell: ReadInt64s
    names: ReadBytes
    name_at: ReadInt64s
    family_bytes: ReadInt64s
    qualifier_bytes: ReadInt64s
    version: ReadInt64s
    change: ReadInt64s


@kernel("int64(uint8[::1], int64, ChangeArrays, int64, int64, boolean)", _nrt=False)
def _put_cell(out: Bytes, at: int, changes: ChangeArrays, row: int, cell: int, is_shadow: bool) -> int:
    """The KeyValue, with its length, that changes a cell of the row, or its shadow cell; returns where it ends."""
    commit, names, name_at = changes.change[cell], changes.names, int(changes.name_at[cell])
    row_bytes, family_bytes = int(changes.row_bytes[row]), int(changes.family_bytes[cell])
    qualifier_bytes = int(changes.qualifier_bytes[cell])
    value_bytes = 8 if commit > 0 else 0
    at = _put_lengths(out, at, row_bytes, family_bytes + qualifier_bytes + (5 if is_shadow else 0), value_bytes)
    at = _copy(out, at, changes.keys, int(changes.row_at[row]), row_bytes)
    out[at] = family_bytes
    at = _copy(out, at + 1, names, name_at, family_bytes)
    if is_shadow:
        out[at] = 0
        out[at + 1] = 0xC2
        out[at + 2] = 0x80
        at += 3
    at = _copy(out, at, names, name_at + family_bytes, qualifier_bytes)
    if is_shadow:
        out[at] = 0xC2
        out[at + 1] = 0x80
        at += 2
    at = _put_number(out, at, int(changes.version[cell]), 8)
    out[at] = _CELL_PUT if commit > 0 else _CELL_DELETED
    at += 1
    return _put_number(out, at, commit, 8) if value_bytes else at


@kernel(
    "void(Fields(ChangeArrays), int64, int64, boolean, uint8[::1], int64, int64[::1], Fields(RequestArrays))",
    _nrt=False,
)
def encode_changes(
    change_arrays: Any,
    first: int,
    end: int,
    atomic: bool,
    region: Bytes,
    durability: int,
    encoded: Int64s,
    request: Any,
) -> None:
    """Those of the rows `first` … `end` that have one kind of change, or (`atomic`) those that have both.

    `encoded` begins with their numbers, in order. Not atomic: bare actions, numbered from 0. Atomic: whole region
    actions for the region specifier `region`.
    """
    changes = ChangeArrays(*change_arrays)
    keys, row_at, row_bytes = changes.keys, changes.row_at, changes.row_bytes
    row_cell, change = changes.row_cell, changes.change
    actions, block, used = RequestArrays(*request)
    at = action_at = count = 0
    for row in range(first, end):
        puts = deletes = 0
        for cell in range(row_cell[row], row_cell[row + 1]):
            if change[cell] > 0:
                puts += 1
            else:
                deletes += 2 if change[cell] == DROPPED else 1
        if (puts > 0 and deletes > 0) != atomic or puts + deletes == 0:
            continue
        key_bytes = int(row_bytes[row])
        key = keys[row_at[row] : row_at[row] + key_bytes]
        number = 0 if atomic else count
        if atomic:
            body = 1 + _varint_bytes(len(region)) + len(region) + 2
            body += _action_bytes(number, key_bytes, puts, durability)
            body += _action_bytes(number, key_bytes, deletes, durability)
            actions[action_at] = 0x0A
            action_at = _put_varint(actions, action_at + 1, body)
            actions[action_at] = 0x0A
            action_at = _put_varint(actions, action_at + 1, len(region))
            action_at = _copy(actions, action_at, region, 0, len(region))
            actions[action_at] = 0x10
            actions[action_at + 1] = 1
            action_at += 2
        if puts:
            action_at = _put_action(actions, action_at, number, key, puts, _KIND_PUT, durability)
        for cell in range(row_cell[row], row_cell[row + 1]):
            if change[cell] > 0:
                at = _put_cell(block, at, changes, row, cell, True)
        if deletes:
            action_at = _put_action(actions, action_at, number, key, deletes, _KIND_DELETE, durability)
        for cell in range(row_cell[row], row_cell[row + 1]):
            if change[cell] == DROPPED:
                at = _put_cell(block, at, changes, row, cell, False)
            if change[cell] < 0:
                at = _put_cell(block, at, changes, row, cell, True)
        encoded[count] = row
        count += 1
    used[0].actions, used[0].block, used[0].rows = action_at, at, count


@kernel(f"int64({READ_BYTES}, int64, int64, {READ_BYTES}, int64, int64)", _nrt=False)
def _order(one: Bytes, one_at: int, one_bytes: int, two: Bytes, two_at: int, two_bytes: int) -> int:
    """Below, at or above 0 as the first stretch of bytes sorts before, with or after the second."""
    shorter = one_bytes if one_bytes < two_bytes else two_bytes
    for index in range(shorter):
        a, b = one[one_at + index], two[two_at + index]
        if a != b:
            return 1 if a > b else -1
    return one_bytes - two_bytes


@kernel("void(Fields(ChangeArrays), Fields(BatchArrays), int64[::1], boolean[::1])", _nrt=False)
def mark_present(change_arrays: Any, batch_arrays: Any, column: Int64s, present: NDArray[np.bool_]) -> None:
    """`present` of each changed cell that a batch holds. Both ascend by row; `column` of a changed cell: its number
    among the batch's columns, -1 where the batch does not have it."""
    changes, batch = ChangeArrays(*change_arrays), BatchArrays(*batch_arrays)
    keys, row_at, row_bytes = changes.keys, changes.row_at, changes.row_bytes
    row_cell, version = changes.row_cell, changes.version
    buffer, row_off, row_len, row_rec = batch.buffer, batch.row_off, batch.row_len, batch.row_rec
    rec_version, rec_cell, cell_col = batch.rec_version, batch.rec_cell, batch.cell_col
    other, others = 0, len(row_off)
    for row in range(len(row_at)):
        order = -1
        while other < others:
            order = _order(
                buffer, int(row_off[other]), int(row_len[other]), keys, int(row_at[row]), int(row_bytes[row])
            )
            if order >= 0:
                break
            other += 1
        if other == others:
            return
        if order > 0:
            continue
        for cell in range(row_cell[row], row_cell[row + 1]):
            for record in range(row_rec[other], row_rec[other + 1]):
                if rec_version[record] != version[cell]:
                    continue
                for found in range(rec_cell[record], rec_cell[record + 1]):
                    if cell_col[found] == column[cell]:
                        present[cell] = True
