"""Shadow cells put and exact versions deleted, many rows in one compiled pass: actions and their cell block.

A row's changes are cells, each with what becomes of it: a commit timestamp is put beside it, or it goes with its
shadow cell, or its shadow cell alone goes. A row that has both kinds of change is a region action of its own, and
atomic; all others share one:
    action          1A len { 08 index  12 len { 0A len row  10 kind  [30 durability]  40 count } }
    region action   0A len { 0A len region  10 01 (atomic)  action of the puts  action of the deletes }
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.compiled import kernel
from pyomid.storage.hbase.codec.native_encode import (
    _action_bytes,
    _copy,
    _put_action,
    _put_number,
    _put_varint,
    _varint_bytes,
)

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]

DROPPED = -1
"""The cell goes, and its shadow cell with it."""
ORPHANED = -2
"""The shadow cell alone goes."""

SHADOW_BYTES = 5 + 8
"""What a shadow cell has more than a cell's name: its marks, and the commit timestamp."""

_KIND_PUT = 2
_KIND_DELETE = 3


@kernel(
    "int64(uint8[::1], int64, uint8[::1], int64, int64, uint8[::1], int64, int64, int64, boolean, int64, int64, int64)"
)
def _put_cell(
    out: Bytes,
    at: int,
    keys: Bytes,
    row_at: int,
    row_bytes: int,
    names: Bytes,
    name_at: int,
    family_bytes: int,
    qualifier_bytes: int,
    is_shadow: bool,
    version: int,
    kind: int,
    commit: int,
) -> int:
    """One KeyValue with its length; a commit of 0 or less is no value."""
    value_bytes = 8 if commit > 0 else 0
    key_bytes = 12 + row_bytes + family_bytes + qualifier_bytes + (5 if is_shadow else 0)
    at = _put_number(out, at, 8 + key_bytes + value_bytes, 4)
    at = _put_number(out, at, key_bytes, 4)
    at = _put_number(out, at, value_bytes, 4)
    at = _put_number(out, at, row_bytes, 2)
    at = _copy(out, at, keys, row_at, row_bytes)
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
    at = _put_number(out, at, version, 8)
    out[at] = kind
    at += 1
    return _put_number(out, at, commit, 8) if value_bytes else at


@kernel(
    "void(int64, int64, boolean, uint8[::1], int64, uint8[::1], int64[::1], int64[::1], int64[::1], uint8[::1],"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1], uint8[::1], int64[::1], int64[::1])"
)
def encode_changes(
    first: int,
    end: int,
    atomic: bool,
    region: Bytes,
    durability: int,
    keys: Bytes,
    row_at: Int64s,
    row_bytes: Int64s,
    row_cell: Int64s,
    names: Bytes,
    name_at: Int64s,
    family_bytes: Int64s,
    qualifier_bytes: Int64s,
    version: Int64s,
    change: Int64s,
    actions: Bytes,
    block: Bytes,
    encoded: Int64s,
    sizes: Int64s,
) -> None:
    """Those of the rows `first` … `end` that have one kind of change, or (`atomic`) those that have both.

    `encoded[:sizes[2]]` are their numbers, in order; `sizes` = bytes of actions, bytes of the block, rows. Not
    atomic: bare actions, numbered from 0. Atomic: whole region actions for the region specifier `region`.
    """
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
        key_at, key_bytes = int(row_at[row]), int(row_bytes[row])
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
            action_at = _put_action(actions, action_at, number, keys, key_at, key_bytes, puts, _KIND_PUT, durability)
        for cell in range(row_cell[row], row_cell[row + 1]):
            if change[cell] > 0:
                at = _put_cell(
                    block, at, keys, key_at, key_bytes, names, int(name_at[cell]), int(family_bytes[cell]),
                    int(qualifier_bytes[cell]), True, int(version[cell]), 4, int(change[cell]),
                )  # fmt: skip
        if deletes:
            action_at = _put_action(
                actions, action_at, number, keys, key_at, key_bytes, deletes, _KIND_DELETE, durability
            )
        for cell in range(row_cell[row], row_cell[row + 1]):
            if change[cell] == DROPPED:
                at = _put_cell(
                    block, at, keys, key_at, key_bytes, names, int(name_at[cell]), int(family_bytes[cell]),
                    int(qualifier_bytes[cell]), False, int(version[cell]), 8, 0,
                )  # fmt: skip
            if change[cell] < 0:
                at = _put_cell(
                    block, at, keys, key_at, key_bytes, names, int(name_at[cell]), int(family_bytes[cell]),
                    int(qualifier_bytes[cell]), True, int(version[cell]), 8, 0,
                )  # fmt: skip
        encoded[count] = row
        count += 1
    sizes[0] = action_at
    sizes[1] = at
    sizes[2] = count


@kernel("int64(uint8[::1], int64, int64, uint8[::1], int64, int64)")
def _order(one: Bytes, one_at: int, one_bytes: int, two: Bytes, two_at: int, two_bytes: int) -> int:
    shorter = one_bytes if one_bytes < two_bytes else two_bytes
    for index in range(shorter):
        a, b = one[one_at + index], two[two_at + index]
        if a != b:
            return 1 if a > b else -1
    return one_bytes - two_bytes


@kernel(
    "void(uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1],"
    " uint8[::1], int64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int32[::1])"
)
def mark_present(
    keys: Bytes,
    row_at: Int64s,
    row_bytes: Int64s,
    row_cell: Int64s,
    column: Int64s,
    version: Int64s,
    present: NDArray[np.bool_],
    buffer: Bytes,
    row_off: Int64s,
    row_len: NDArray[np.int32],
    row_rec: Int64s,
    rec_version: Int64s,
    rec_cell: Int64s,
    cell_col: NDArray[np.int32],
) -> None:
    """`present` of each changed cell that a batch holds. Both ascend by row; `column` numbers the batch's columns,
    -1 for one that it does not have."""
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
