"""Cell blocks into the arrays of a `CellBatch`, in two compiled passes; `batches` says what they mean.

`index_cells` finds the parts of each KeyValue, checks every length against the block, which comes from outside, and
numbers the names (family and qualifier). It expects each name to be the one that followed the last one before, or
the last one itself, so that most names cost one comparison. `match_cells` then works on numbers alone: rows, records,
and beside each cell its shadow cell's timestamp.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from pyomid.kernels.compiled import Bytes, Int32s, Int64s, Record, Records, kernel, record

NAMES_FULL: Final = -(1 << 62)
"""`index_cells` needs a larger table of names."""

NAME_PAD = 8
"""Bytes before the first name: names are compared by the 8 bytes that end with theirs."""

_UNSEEN = -2
_KIND_PUT = 4


@record
class KeyValueParts(Record):
    """Where the parts of a KeyValue lie in the block."""

    row_at: int
    row_bytes: int
    name: int
    """Number of the name: family and qualifier."""
    version: int
    value_at: int
    value_bytes: int
    kind: int
    is_same_row: int
    """As that of the KeyValue before it."""


@record
class Name(Record):
    """What is known of a name; -1: nothing."""

    column: int
    """The column's number; -1 while no cell of it was seen."""
    base: int
    """Of a shadow cell's name: the name it stands beside; else -1, and `_UNSEEN` while only that was seen of it."""
    shadow: int
    """The name of its shadow cells with Omid's prefix."""
    old_shadow: int
    """The same without the prefix."""
    next: int
    """The name that came after it the last time."""
    row: int
    """First KeyValue of the row in which shadow cells of this name stood last; they are `shadow_at` : `shadow_end`."""
    shadow_at: int
    """Moves forward as cells grow older: shadow cells of one name are newest first."""
    shadow_end: int


@record
class Known(Record):
    """How many names and columns are known."""

    names: int
    columns: int


class ScanNames(NamedTuple):
    """The names and columns of one scan."""

    name_bytes: Bytes
    begin: Int64s
    """Name n is `name_bytes[begin[n] : begin[n + 1]]`: its family's length, family and qualifier."""
    slots: Int32s
    """A hash table of the names' numbers; -1: free."""
    names: Annotated[Any, "Name[::1]"]
    column_names: Int32s
    """Of each column its name."""
    known: Annotated[Any, "Known[::1]"]


class DecodedArrays(NamedTuple):
    """The arrays of a `CellBatch`, to be filled; its buffer is the block."""

    row_off: Int64s
    row_len: Int32s
    row_rec: Int64s
    rec_version: Int64s
    rec_commit: Int64s
    rec_cell: Int64s
    cell_col: Int32s
    cell_off: Int64s
    cell_len: Int32s


@record
class Decoded(Record):
    """What was found in a block."""

    rows: int
    records: int
    cells: int
    key_values: int
    """Those of whole rows."""


@kernel("uint64(uint8[::1], int64)", _nrt=False)
def _word(block: Bytes, at: int) -> int:
    """8 bytes, big-endian. Written out, so that it becomes one load."""
    one, i = np.uint64(1), np.uint64(at)
    word = np.uint64(block[i]) << np.uint64(56)
    i += one
    word |= np.uint64(block[i]) << np.uint64(48)
    i += one
    word |= np.uint64(block[i]) << np.uint64(40)
    i += one
    word |= np.uint64(block[i]) << np.uint64(32)
    i += one
    word |= np.uint64(block[i]) << np.uint64(24)
    i += one
    word |= np.uint64(block[i]) << np.uint64(16)
    i += one
    word |= np.uint64(block[i]) << np.uint64(8)
    i += one
    return int(word | np.uint64(block[i]))


@kernel("int64(uint8[::1], int64, int64)", _nrt=False)
def _number(block: Bytes, position: int, size: int) -> int:
    value = np.int64(0)
    for index in range(position, position + size):
        value = (value << 8) | np.int64(block[index])
    return int(value)


@kernel("int64(uint8[::1])", _nrt=False)
def last_cell(block: Bytes) -> int:
    """Where the last KeyValue begins; -1 where the block is empty or ends inside one."""
    position, last, end = 0, -1, len(block)
    while position + 16 <= end:
        last = position
        position += 4 + _number(block, position, 4)
    return last if position == end else -1


@kernel("boolean(uint8[::1], int64, uint8[::1], int64, int64)", _nrt=False)
def _same(one: Bytes, one_at: int, two: Bytes, two_at: int, size: int) -> bool:
    """Whether `size` bytes are equal. Before both of them 8 more bytes must be there."""
    while size > 8:
        if _word(one, one_at) != _word(two, two_at):
            return False
        one_at += 8
        two_at += 8
        size -= 8
    if size == 0:
        return True
    different = _word(one, one_at + size - 8) ^ _word(two, two_at + size - 8)
    return bool((different << np.uint64(64 - 8 * size)) == np.uint64(0))


@kernel("uint64(ScanNames, int64, int64)", _nrt=False)
def _hash(names: ScanNames, begin: int, end: int) -> Any:
    """FNV-1a of a stretch of the names' bytes, its halves mixed."""
    key = np.uint64(14695981039346656037)
    for index in range(begin, end):
        key = (key ^ np.uint64(names.name_bytes[index])) * np.uint64(1099511628211)
    return key ^ (key >> np.uint64(32))


@kernel("int64(ScanNames, int64)", _nrt=False)
def _entered(names: ScanNames, size: int) -> int:
    """The number of the name whose bytes lie after the last one's; a new one where it was not known."""
    count, begin = names.known[0].names, names.begin
    first = begin[count]
    mask = np.int64(len(names.slots) - 1)
    slot = np.int64(_hash(names, first, first + size) & np.uint64(mask))
    while names.slots[slot] >= 0:
        found = np.int64(names.slots[slot])
        if begin[found + 1] - begin[found] == size and _same(
            names.name_bytes, begin[found], names.name_bytes, first, size
        ):
            return int(found)
        slot = (slot + 1) & mask
    name = names.names[count]
    name.column = name.base = name.shadow = name.old_shadow = -1
    name.next = 0
    names.slots[slot] = count
    begin[count + 1] = first + size
    names.known[0].names = count + 1
    return int(count)


@kernel("void(Fields(ScanNames))", _nrt=False)
def fill_slots(arrays: Any) -> None:
    """The slots, all -1, get the names that are known."""
    names = ScanNames(*arrays)
    mask = np.int64(len(names.slots) - 1)
    for name in range(names.known[0].names):
        slot = np.int64(_hash(names, names.begin[name], names.begin[name + 1]) & np.uint64(mask))
        while names.slots[slot] >= 0:
            slot = (slot + 1) & mask
        names.slots[slot] = name


@kernel("int64(uint8[::1], int64, int64, ScanNames)", _nrt=False)
def _name(block: Bytes, at: int, size: int, names: ScanNames) -> int:
    """The number of a name that was not expected; -1 where there is no room for it and the one it stands beside.

    A name is the family's length, family and qualifier, as they follow each other in a KeyValue.
    """
    name_bytes, before = names.name_bytes, names.known[0].names
    begin = names.begin[before]
    if before + 3 > len(names.names) or begin + 2 * size > len(name_bytes) or 2 * (before + 2) > len(names.slots):
        return -1
    for index in range(size):
        name_bytes[begin + index] = block[at + index]
    number = _entered(names, size)
    name = names.names[number]
    if names.known[0].names == before and name.base != _UNSEEN:
        return int(number)
    name.base = -1
    family_bytes = int(block[at]) + 1
    qualifier_at, qualifier_bytes = at + family_bytes, size - family_bytes
    end = at + size
    if qualifier_bytes < 2 or block[end - 2] != 0xC2 or block[end - 1] != 0x80:
        return int(number)
    skip = 0
    if (
        qualifier_bytes >= 5
        and block[qualifier_at] == 0
        and block[qualifier_at + 1] == 0xC2
        and block[qualifier_at + 2] == 0x80
    ):
        skip = 3
    known = names.known[0].names
    begin = names.begin[known]
    for index in range(family_bytes):
        name_bytes[begin + index] = block[at + index]
    base_bytes = qualifier_bytes - skip - 2
    for index in range(base_bytes):
        name_bytes[begin + family_bytes + index] = block[qualifier_at + skip + index]
    base = _entered(names, family_bytes + base_bytes)
    if names.known[0].names > known:  # it may be a shadow cell's name too, of a table that others wrote
        names.names[base].base = _UNSEEN
    name.base = base
    if skip:
        names.names[base].shadow = number
    else:
        names.names[base].old_shadow = number
    return int(number)


@kernel("int64(uint8[::1], KeyValueParts[::1], Fields(ScanNames))", _nrt=False)
def index_cells(block: Bytes, cells: Records[KeyValueParts], arrays: Any) -> int:
    """Fills in the parts of each KeyValue; returns how many there are, -1 - position of the first that is broken, or
    NAMES_FULL."""
    all_names = ScanNames(*arrays)
    name_bytes, name_begin, names, known = all_names.name_bytes, all_names.begin, all_names.names, all_names.known
    position, end, count = 0, len(block), 0
    name, before_at, before_bytes = 0, 0, -1
    while position < end:
        if end - position < 24 or count == len(cells):
            return -1 - position
        head, rest = _word(block, position), _word(block, position + 8)
        total = int(np.int64(head >> np.uint64(32)))
        key_bytes = int(np.int64(head & np.uint64(0xFFFFFFFF)))
        value_bytes = int(np.int64(rest >> np.uint64(32)))
        row_bytes = int(np.int64((rest >> np.uint64(16)) & np.uint64(0xFFFF)))
        if 8 + key_bytes + value_bytes > total or position + 4 + total > end or key_bytes < 12 + row_bytes:
            return -1 - position
        row_at = position + 14
        name_at, name_size = row_at + row_bytes, key_bytes - 11 - row_bytes
        if np.int64(block[name_at]) + 1 > name_size:
            return -1 - position
        expected = int(names[name].next)
        if expected < known[0].names and (
            name_begin[expected + 1] - name_begin[expected] == name_size
            and _same(block, name_at, name_bytes, int(name_begin[expected]), name_size)
        ):
            name = expected
        elif not (
            name < known[0].names
            and name_begin[name + 1] - name_begin[name] == name_size
            and _same(block, name_at, name_bytes, int(name_begin[name]), name_size)
        ):
            found = _name(block, name_at, name_size, all_names)
            if found < 0:
                return NAMES_FULL
            names[name].next = found
            name = found
        tail = name_at + name_size
        cell = cells[count]
        cell.row_at, cell.row_bytes = row_at, row_bytes
        cell.name = name
        cell.version = int(np.int64(_word(block, tail)))
        cell.value_at, cell.value_bytes = tail + 9, value_bytes
        cell.kind = int(np.int64(block[tail + 8]))
        cell.is_same_row = row_bytes == before_bytes and _same(block, row_at, block, before_at, row_bytes)
        before_at, before_bytes = row_at, row_bytes
        count += 1
        position += 4 + total
    return count


@kernel("boolean(uint8[::1], int64, int64, uint8[::1])", _nrt=False)
def _is_tombstone(block: Bytes, at: int, size: int, legacy: Bytes) -> bool:
    if size == 0:
        return True
    if size != len(legacy):
        return False
    for index in range(size):  # noqa: SIM110 (numba has no `all`)
        if block[at + index] != legacy[index]:
            return False
    return True


@kernel(
    "void(uint8[::1], KeyValueParts[::1], int64, boolean, uint8[::1], Fields(ScanNames), Fields(DecodedArrays),"
    " Decoded[::1])",
    _nrt=False,
)
def match_cells(
    block: Bytes,
    cells: Records[KeyValueParts],
    count: int,
    ends_inside_row: bool,
    legacy_tombstone: Bytes,
    name_arrays: Any,
    batch_arrays: Any,
    decoded: Records[Decoded],
) -> None:
    """The first `count` of `cells` into a batch's arrays.

    A shadow cell without its cell is left out. Neighbours of equal version and commit timestamp share a record.
    """
    all_names, batch = ScanNames(*name_arrays), DecodedArrays(*batch_arrays)
    names, known = all_names.names, all_names.known[0]
    row_rec, rec_cell = batch.row_rec, batch.rec_cell
    rows = records = out = 0
    row_rec[0] = 0
    rec_cell[0] = 0
    for number in range(known.names):
        names[number].row = -1
    first = 0
    while first < count:
        last = first + 1
        while last < count and cells[last].is_same_row != 0:
            last += 1
        if last == count and ends_inside_row:
            break
        row_records, row_begin = records, out
        for index in range(first, last):
            shadow = names[cells[index].name]
            if shadow.base >= 0:
                if shadow.row != first:
                    shadow.row = first
                    shadow.shadow_at = index
                shadow.shadow_end = index + 1
        for index in range(first, last):
            cell = cells[index]
            name = names[cell.name]
            if name.base >= 0 or cell.kind != _KIND_PUT:
                continue
            version = cell.version
            commit = np.int64(0)
            for form in range(2):
                beside = name.shadow if form == 0 else name.old_shadow
                if beside >= 0 and names[beside].row == first:
                    at, end = names[beside].shadow_at, names[beside].shadow_end
                    while at < end and cells[at].version > version:
                        at += 1
                    names[beside].shadow_at = at
                    is_beside = at < end and cells[at].version == version and cells[at].name == beside
                    if is_beside and cells[at].value_bytes == 8:
                        commit = np.int64(_word(block, cells[at].value_at))
                        break
            column = name.column
            if column < 0:
                column = known.columns
                name.column = column
                all_names.column_names[column] = cell.name
                known.columns += 1
            if (
                records == row_records
                or batch.rec_version[records - 1] != version
                or batch.rec_commit[records - 1] != commit
            ):
                batch.rec_version[records] = version
                batch.rec_commit[records] = commit
                records += 1
            batch.cell_col[out] = column
            batch.cell_off[out] = cell.value_at
            tombstone = _is_tombstone(block, cell.value_at, cell.value_bytes, legacy_tombstone)
            batch.cell_len[out] = -1 if tombstone else cell.value_bytes
            out += 1
            rec_cell[records] = out
        if out > row_begin:
            batch.row_off[rows] = cells[first].row_at
            batch.row_len[rows] = cells[first].row_bytes
            rows += 1
            row_rec[rows] = records
        first = last
    found = decoded[0]
    found.rows, found.records, found.cells, found.key_values = rows, records, out, first
