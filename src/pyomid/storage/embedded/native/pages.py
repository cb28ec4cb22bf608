"""Records out of LMDB's pages in bulk, without a Python object for each; `pages` says when this may be done.

The format is that of LMDB 0.9 (`mdb.c`: MDB_page, MDB_node, MDB_db) on 64-bit little-endian machines:

    page       number (8), padding (2), flags (2), lower (2), upper (2), then a 2-byte offset for each node
    node       low half (2), high half (2), flags (2), key's length (2), key, value
    leaf       the halves are the value's length; a big value's node holds the number of its overflow pages' first
    branch     the halves and the flags are the child's page number; the first node's key counts as the least

LMDB's own cursor is the reference implementation (`scans.records_until`). Nothing read here is believed: a page or
node that does not look like the above ends the walk with STRANGE, and the caller asks LMDB.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from pyomid.arrays import np
from pyomid.kernels.compiled import READ_BYTES, ReadBytes, kernel
from pyomid.storage.embedded.native.records import varint
from pyomid.storage.embedded.records import HEADER_BYTES, VERSION_BYTES
from pyomid.types import TIMESTAMP_MAX

Bytes = Any
Int64s = Any
Int = Any

WHOLE: Final = 0
"""The range ended."""
MORE: Final = 1
"""The limit was reached; a next row is there."""
OUTSIDE: Final = 2
"""A page lies after the end of the mapped bytes: the file has grown, or it is damaged."""
STRANGE: Final = 3
"""Something that this reader does not know."""
NO_ROOM: Final = 4
"""What the caller gave has no room for the next record."""

_PAGE_HEADER: Final = 16
_NODE_HEADER: Final = 8
_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_BIG_VALUE: Final = 0x01
_DEPTH_MAX: Final = 32
"""LMDB's own bound (CURSOR_STACK)."""


@kernel(f"int64({READ_BYTES}, int64)", _nrt=False)
def _u16(data: Bytes, at: Int) -> Int:
    place = np.uint64(at)
    return np.int64(data[place]) | np.int64(data[place + np.uint64(1)]) << 8


@kernel(f"int64({READ_BYTES}, int64)", _nrt=False)
def _u64(data: Bytes, at: Int) -> Int:
    number = np.int64(0)
    for index in range(8):
        number |= np.int64(data[np.uint64(at + index)]) << (8 * index)
    return number


@kernel(f"int64({READ_BYTES}, int64, int64, {READ_BYTES})", _nrt=False)
def _order(data: Bytes, at: Int, length: Int, key: Bytes) -> Int:
    """Below, at or above 0 as the bytes in `data` sort before, with or after `key`."""
    place = np.uint64(at)
    for index in range(np.uint64(min(length, len(key)))):
        if data[place + index] != key[index]:
            return np.int64(data[place + index]) - np.int64(key[index])
    return length - len(key)


@kernel(f"boolean({READ_BYTES}, int64, int64, int64)", _nrt=False)
def _equal(data: Bytes, left: Int, right: Int, length: Int) -> bool:
    """From the end: rows next to each other have long beginnings in common."""
    one, other = np.uint64(left + length), np.uint64(right + length)
    for index in range(np.uint64(1), np.uint64(max(length, 0)) + np.uint64(1)):
        if data[one - index] != data[other - index]:
            return False
    return True


@kernel(f"void({READ_BYTES}, int64, uint8[::1], int64, int64)", _nrt=False)
def _copy(data: Bytes, at: Int, out: Bytes, to: Int, length: Int) -> None:
    """Unsigned indices: with signed ones numba asks each time whether they count from the end (18 times slower)."""
    source, target = np.uint64(at), np.uint64(to)
    for index in range(np.uint64(length)):
        out[target + index] = data[source + index]


@kernel(f"int64({READ_BYTES}, int64, int64, int64)", _nrt=False)
def _nodes(pages: Bytes, page: Int, page_bytes: Int, kind: Int) -> Int:
    """How many nodes a page of this kind has; -1 where it is none."""
    at = page * page_bytes
    if _u64(pages, at) != page or _u16(pages, at + 10) & 0x0F != kind:
        return np.int64(-1)
    lower, upper = _u16(pages, at + 12), _u16(pages, at + 14)
    if lower < _PAGE_HEADER or lower > upper or upper > page_bytes or lower & 1:
        return np.int64(-1)
    return (lower - _PAGE_HEADER) >> 1


@kernel(f"int64({READ_BYTES}, int64, int64, int64)", _nrt=False)
def _node(pages: Bytes, page: Int, page_bytes: Int, index: Int) -> Int:
    """Where the node lies; -1 where its key does not lie inside the page."""
    at = page * page_bytes
    offset = _u16(pages, at + _PAGE_HEADER + 2 * index)
    if offset + _NODE_HEADER > page_bytes:
        return np.int64(-1)
    if offset + _NODE_HEADER + _u16(pages, at + offset + 6) > page_bytes:
        return np.int64(-1)
    return at + offset


@kernel(f"int64({READ_BYTES}, int64, int64, int64, int64, {READ_BYTES}, boolean)", _nrt=False)
def _place(pages: Bytes, page: Int, page_bytes: Int, nodes: Int, first: Int, key: Bytes, above: bool) -> Int:
    """The first node from `first` whose key is `key` or greater (`above`: greater); -1: a node is strange."""
    low, high = first, nodes
    while low < high:
        middle = (low + high) >> 1
        node = _node(pages, page, page_bytes, middle)
        if node < 0:
            return np.int64(-1)
        order = _order(pages, node + _NODE_HEADER, _u16(pages, node + 6), key)
        if order < 0 or (above and order == 0):
            low = middle + 1
        else:
            high = middle
    return low


class Limits(NamedTuple):
    """A walk ends after the row with which it has that many records, or more bytes. Rows are keys that differ
    in more than their last `tail_bytes`.

    With `committed_below` it finds what a reader with these `ReadBounds` needs: of each row the records below version
    `below`, down to those by which every asked column has a commit timestamp below `committed_below`. Versions below
    `at_least` are passed over."""

    tail_bytes: Annotated[int, "int64"]
    records_max: Annotated[int, "int64"]
    bytes_max: Annotated[int, "int64"]
    below: Annotated[int, "int64"]
    committed_below: Annotated[int, "int64"]
    asked: ReadBytes
    """1 for the number of each asked column. Not for a family's tombstone: below the last needed version of its other
    columns it hides nothing."""
    at_least: Annotated[int, "int64"]


@kernel(f"int64({READ_BYTES}, int64, int64)", _nrt=False)
def _version(pages: Bytes, key: Int, key_len: Int) -> Int:
    inverted: Int = np.int64(0)
    for index in range(VERSION_BYTES):
        inverted = inverted << 8 | np.int64(pages[np.uint64(key + key_len - VERSION_BYTES + index)])
    return TIMESTAMP_MAX - max(inverted, 0)


@kernel(f"int64({READ_BYTES}, int64, int64, int64, {READ_BYTES}, int64[::1], int64)", _nrt=False)
def _ended_by(pages: Bytes, at: Int, end: Int, committed_below: Int, asked: Bytes, ended_in: Int64s, row: Int) -> Int:
    """How many asked columns a record is the last needed one of, of those that `ended_in` does not know for this row.
    -1: the reader does not see it. A record that is damaged ends no more than is written in it: its reader refuses it.
    """
    if end - at < HEADER_BYTES:
        return np.int64(-1)
    commit_ts = _u64(pages, at + 4)
    if commit_ts <= 0 or commit_ts >= committed_below:
        return np.int64(-1)
    ended = np.int64(0)
    count, place = varint(pages, at + HEADER_BYTES, end)
    for _ in range(count):
        number, place = varint(pages, place, end)
        length, place = varint(pages, place, end)
        if number < 0 or length < 0 or length - 1 > end - place:
            break
        if number < len(asked) and asked[np.uint64(number)] and ended_in[number] != row:
            ended_in[number] = row
            ended += 1
        place += max(length - 1, 0)
    return ended


@kernel(f"boolean({READ_BYTES}, int64, int64, int64, int64, int64, int64)", _nrt=False)
def _is_of_row(pages: Bytes, page: Int, page_bytes: Int, index: Int, key: Int, key_len: Int, tail_bytes: Int) -> bool:
    """Whether the node's key is of the row of the key that lies at `key`. Not for a strange one: it is looked at."""
    node = _node(pages, page, page_bytes, index)
    if node < 0 or _u16(pages, node + 6) != key_len:
        return False
    return _equal(pages, node + _NODE_HEADER, key, key_len - tail_bytes)


@kernel(
    f"UniTuple(int64, 5)({READ_BYTES}, int64, int64, {READ_BYTES}, {READ_BYTES}, Fields(Limits), uint8[::1],"
    " int64[::1])"
)
def walk(
    pages: Bytes, page_bytes: Int, root: Int, start: Bytes, stop: Bytes, limits: Any, out: Bytes, lens: Int64s
) -> tuple[Int, Int, Int, Int, Int]:
    """Records with `start` ≤ key < `stop` in order: key, value, key, value … into `out`, their lengths into `lens`.

    `limits`: `Limits`. With an empty `out` it only measures. Returns how it ended, records, bytes, and for MORE where
    the next key lies in `pages` and its length. The tree must stay as it is meanwhile: a read transaction holds it.
    Should it change all the same, nothing is written after the end of `out` and `lens`; and a tree that leads in a
    circle ends the walk, which enters no more pages than there are.
    """
    tail_bytes, records_max, bytes_max, below, committed_below, asked, at_least = limits
    asked_count = np.int64(0)
    for number in range(len(asked)):
        asked_count += asked[number]
    ended_in = np.zeros(len(asked), dtype=np.int64)
    row, ended, is_done = np.int64(0), np.int64(0), False
    limit = len(pages)
    file_pages = limit // page_bytes
    stack = np.empty(_DEPTH_MAX, dtype=np.int64)
    places = np.empty(_DEPTH_MAX, dtype=np.int64)
    copies = len(out) > 0
    records, written, depth = np.int64(0), np.int64(0), np.int64(0)
    last, last_len = np.int64(0), np.int64(-1)
    page, seeking = root, True
    unseen = file_pages
    while True:
        while True:  # down to a leaf: to the start's place the first time, to the left afterwards
            if page < 0 or page >= file_pages:
                return OUTSIDE, records, written, 0, 0
            if unseen == 0:
                return STRANGE, records, written, 0, 0
            unseen -= 1
            nodes = _nodes(pages, page, page_bytes, _BRANCH)
            if nodes < 0:
                break
            index = np.int64(0)
            if seeking:
                index = _place(pages, page, page_bytes, nodes, 1, start, True) - 1
            if nodes < 1 or index < 0 or depth == _DEPTH_MAX:
                return STRANGE, records, written, 0, 0
            stack[depth], places[depth] = page, index
            depth += 1
            node = _node(pages, page, page_bytes, index)
            if node < 0:
                return STRANGE, records, written, 0, 0
            page = _u16(pages, node) | _u16(pages, node + 2) << 16 | _u16(pages, node + 4) << 32
        nodes = _nodes(pages, page, page_bytes, _LEAF)
        index = np.int64(0)
        if seeking and nodes > 0:
            index = _place(pages, page, page_bytes, nodes, 0, start, False)
        if nodes < 0 or index < 0:
            return STRANGE, records, written, 0, 0
        seeking = False
        within = False  # whether the page's last key, and so every one, lies before the stop
        if index < nodes:
            node = _node(pages, page, page_bytes, nodes - 1)
            within = node >= 0 and _order(pages, node + _NODE_HEADER, _u16(pages, node + 6), stop) < 0
        each = index
        while each < nodes:
            if is_done:  # the rest of this row is passed over, in steps that double, as most rows have few versions
                high, step = each, np.int64(1)
                while high < nodes and _is_of_row(pages, page, page_bytes, high, last, last_len, tail_bytes):
                    each, high, step = high + 1, high + step, 2 * step
                high = min(high, nodes)
                while each < high:
                    middle = (each + high) >> 1
                    if _is_of_row(pages, page, page_bytes, middle, last, last_len, tail_bytes):
                        each = middle + 1
                    else:
                        high = middle
                if each == nodes:
                    break
                is_done = False
            node = _node(pages, page, page_bytes, each)
            each += 1
            if node < 0:
                return STRANGE, records, written, 0, 0
            key, key_len = node + _NODE_HEADER, _u16(pages, node + 6)
            size = _u16(pages, node) | _u16(pages, node + 2) << 16
            flags = _u16(pages, node + 4)
            value = key + key_len
            end = (page + 1) * page_bytes
            if flags == _BIG_VALUE and end - value >= 8:
                first_page = _u64(pages, value)
                if first_page < 0 or first_page >= file_pages:
                    return OUTSIDE, records, written, 0, 0
                value, end = first_page * page_bytes + _PAGE_HEADER, limit
                if size > end - value:
                    return OUTSIDE, records, written, 0, 0
            elif flags != 0:
                return STRANGE, records, written, 0, 0
            if size > end - value or key_len < tail_bytes:
                return STRANGE, records, written, 0, 0
            if not within and _order(pages, key, key_len, stop) >= 0:
                return WHOLE, records, written, 0, 0
            if committed_below > 0 and _version(pages, key, key_len) >= below:
                continue
            if at_least > 0 and _version(pages, key, key_len) < at_least:
                continue
            is_new = key_len != last_len or not _equal(pages, key, last, key_len - tail_bytes)
            if is_new and (records >= records_max or written > bytes_max):
                return MORE, records, written, key, key_len
            last, last_len = key, key_len
            if committed_below > 0:
                if is_new:
                    row, ended = row + 1, np.int64(0)
                newly = _ended_by(pages, value, value + size, committed_below, asked, ended_in, row)
                ended += max(newly, 0)
                is_done = newly >= 0 and ended == asked_count
            if copies:
                if key_len + size > len(out) - written or len(lens) - 2 * records < 2:
                    return NO_ROOM, records, written, 0, 0
                if value == key + key_len:  # as in every node but one of a big value
                    _copy(pages, key, out, written, key_len + size)
                else:
                    _copy(pages, key, out, written, key_len)
                    _copy(pages, value, out, written + key_len, size)
                lens[2 * records] = key_len
                lens[2 * records + 1] = size
            records += 1
            written += key_len + size
        while True:  # up to a branch with a next child
            if depth == 0:
                return WHOLE, records, written, 0, 0
            depth -= 1
            page, index = stack[depth], places[depth] + 1
            nodes = _nodes(pages, page, page_bytes, _BRANCH)
            if index < nodes:
                if is_done:  # a child whose successor begins in the row holds nothing else
                    high = nodes - 1
                    while index < high:
                        middle = (index + high + 1) >> 1
                        if _is_of_row(pages, page, page_bytes, middle, last, last_len, tail_bytes):
                            index = middle
                        else:
                            high = middle - 1
                break
        node = _node(pages, page, page_bytes, index)
        if node < 0:
            return STRANGE, records, written, 0, 0
        stack[depth], places[depth] = page, index
        depth += 1
        page = _u16(pages, node) | _u16(pages, node + 2) << 16 | _u16(pages, node + 4) << 32
