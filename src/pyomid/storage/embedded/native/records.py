"""Many records at once between LMDB's bytes and a `CellBatch`. The reference implementation is `records`."""

from __future__ import annotations

from typing import Any, Final

from pyomid.arrays import NDArray, np
from pyomid.cells import TOMBSTONE, BatchArrays
from pyomid.kernels.compiled import READ_BYTES, kernel
from pyomid.storage.embedded.records import (
    ESCAPED_ROW_BYTES_MAX,
    HEADER_BYTES,
    KEY_BYTES_MIN,
    TABLE_BYTES,
    VARINT_BYTES_MAX,
    VERSION_BYTES,
)
from pyomid.types import TIMESTAMP_MAX

# Indices in the inner loops are unsigned: to a signed one numba adds the test whether it counts from the array's end,
# and with it a loop that copies bytes is no longer one that the compiler can do many bytes at a time (18 times slower).
# Which arrays and machine integers these are is said by each kernel's signature; the type checker cannot follow
# numba from `np.int64` to `int` and back.
Bytes = Any
Int64s = Any
Int32s = Any
Int = Any

GOOD: Final = 0
BAD_CHECKSUM: Final = 1
BAD_GRAMMAR: Final = 2
UNKNOWN_COLUMN: Final = 3
BAD_KEY: Final = 4

ROW_TOO_LONG: Final = 1
ROW_EMPTY: Final = 2
ROW_OUT_OF_ORDER: Final = 3
VALUE_TOO_LONG: Final = 4
VALUE_EMPTY: Final = 5
VALUE_OF_FAMILY: Final = 6

_STEP: Final = 16


def _crc_tables() -> NDArray[np.uint32]:
    """CRC-32 as zlib has it, sixteen bytes a step ("slicing by 16", Kounavis and Berry 2005)."""
    tables = np.zeros((_STEP, 256), dtype=np.uint32)
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = (state >> 1) ^ (0xEDB88320 if state & 1 else 0)
        tables[0, byte] = state
    for step in range(1, _STEP):
        before = tables[step - 1]
        tables[step] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables


_CRC: Final = _crc_tables()


@kernel("uint32(uint8[::1], int64, int64, uint32)", _nrt=False)
def crc32(data: Bytes, first: Int, stop: Int, before: Int) -> Any:
    """`zlib.crc32(data[first:stop], before)`. Sixteen bytes a step, then eight, four, one."""
    state = before ^ np.uint32(0xFFFFFFFF)
    low = np.uint32(255)
    at, left = np.uint64(first), np.uint64(stop - first)
    while left >= np.uint64(16):
        state = (
            _CRC[15, np.uint64((state ^ data[at]) & low)]
            ^ _CRC[14, np.uint64(((state >> np.uint32(8)) ^ data[at + np.uint64(1)]) & low)]
            ^ _CRC[13, np.uint64(((state >> np.uint32(16)) ^ data[at + np.uint64(2)]) & low)]
            ^ _CRC[12, np.uint64(((state >> np.uint32(24)) ^ data[at + np.uint64(3)]) & low)]
            ^ _CRC[11, np.uint64(data[at + np.uint64(4)])]
            ^ _CRC[10, np.uint64(data[at + np.uint64(5)])]
            ^ _CRC[9, np.uint64(data[at + np.uint64(6)])]
            ^ _CRC[8, np.uint64(data[at + np.uint64(7)])]
            ^ _CRC[7, np.uint64(data[at + np.uint64(8)])]
            ^ _CRC[6, np.uint64(data[at + np.uint64(9)])]
            ^ _CRC[5, np.uint64(data[at + np.uint64(10)])]
            ^ _CRC[4, np.uint64(data[at + np.uint64(11)])]
            ^ _CRC[3, np.uint64(data[at + np.uint64(12)])]
            ^ _CRC[2, np.uint64(data[at + np.uint64(13)])]
            ^ _CRC[1, np.uint64(data[at + np.uint64(14)])]
            ^ _CRC[0, np.uint64(data[at + np.uint64(15)])]
        )
        at += np.uint64(16)
        left -= np.uint64(16)
    if left >= np.uint64(8):
        state = (
            _CRC[7, np.uint64((state ^ data[at]) & low)]
            ^ _CRC[6, np.uint64(((state >> np.uint32(8)) ^ data[at + np.uint64(1)]) & low)]
            ^ _CRC[5, np.uint64(((state >> np.uint32(16)) ^ data[at + np.uint64(2)]) & low)]
            ^ _CRC[4, np.uint64(((state >> np.uint32(24)) ^ data[at + np.uint64(3)]) & low)]
            ^ _CRC[3, np.uint64(data[at + np.uint64(4)])]
            ^ _CRC[2, np.uint64(data[at + np.uint64(5)])]
            ^ _CRC[1, np.uint64(data[at + np.uint64(6)])]
            ^ _CRC[0, np.uint64(data[at + np.uint64(7)])]
        )
        at += np.uint64(8)
        left -= np.uint64(8)
    if left >= np.uint64(4):
        state = (
            _CRC[3, np.uint64((state ^ data[at]) & low)]
            ^ _CRC[2, np.uint64(((state >> np.uint32(8)) ^ data[at + np.uint64(1)]) & low)]
            ^ _CRC[1, np.uint64(((state >> np.uint32(16)) ^ data[at + np.uint64(2)]) & low)]
            ^ _CRC[0, np.uint64(((state >> np.uint32(24)) ^ data[at + np.uint64(3)]) & low)]
        )
        at += np.uint64(4)
        left -= np.uint64(4)
    while left > np.uint64(0):
        state = (state >> np.uint32(8)) ^ _CRC[0, np.uint64((state ^ data[at]) & low)]
        at += np.uint64(1)
        left -= np.uint64(1)
    return state ^ np.uint32(0xFFFFFFFF)


@kernel(f"UniTuple(int64, 2)({READ_BYTES}, int64, int64)", _nrt=False)
def varint(data: Bytes, at: Int, stop: Int) -> tuple[Int, Int]:
    """The number and where it ends; (-1, at) where it does not end before `stop`."""
    number = np.int64(0)
    for index in range(VARINT_BYTES_MAX):
        if at + index >= stop:
            break
        byte = np.int64(data[at + index])
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    return np.int64(-1), at


@kernel("int64(uint8[::1], int64[::1])", _nrt=False)
def _cells_max(data: Bytes, lens: Int64s) -> Int:
    """How many cells the records say they have; a lie is cut to what fits, and found when decoding."""
    total, at = np.int64(0), np.int64(0)
    for record in range(len(lens) // 2):
        at += lens[2 * record]
        stop = at + lens[2 * record + 1]
        count, _ = varint(data, min(at + HEADER_BYTES, stop), stop)
        total += max(min(count, (stop - at) // 2), 0)
        at = stop
    return total


@kernel("boolean(uint8[::1], int64, int64, int64)", _nrt=False)
def _equal(data: Bytes, left: Int, right: Int, length: Int) -> bool:
    """From the end: rows next to each other have long beginnings in common."""
    for back in range(length):
        index = length - 1 - back
        if data[np.uint64(left + index)] != data[np.uint64(right + index)]:
            return False
    return True


@kernel("int64(uint8[::1], int64, int64)", _nrt=False)
def _little_endian(data: Bytes, at: Int, size: Int) -> Int:
    number = np.int64(0)
    for index in range(size):
        number |= np.int64(data[np.uint64(at + index)]) << (8 * index)
    return number


@kernel("int64(uint8[::1], int64)", _nrt=False)
def _key_version(data: Bytes, stop: Int) -> Int:
    inverted = np.int64(0)
    for index in range(VERSION_BYTES):
        inverted = (inverted << 8) | np.int64(data[np.uint64(stop - VERSION_BYTES + index)])
    return TIMESTAMP_MAX - inverted


@kernel("int32(uint8[::1], int64, int64)", _nrt=False)
def _unescape(data: Bytes, at: Int, length: Int) -> Int:
    """In place; returns the row's own length."""
    first, stop = np.uint64(at), np.uint64(at + length)
    index = first
    while index < stop and data[index] != 0:
        index += np.uint64(1)
    out = index
    while index < stop:
        byte = data[index]
        data[out] = byte
        index += np.uint64(2) if byte == 0 else np.uint64(1)
        out += np.uint64(1)
    return np.int32(out - first)


@kernel(
    "Tuple((int64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1], int32[::1], int64[::1],"
    " int32[::1], int64, int64))(uint8[::1], int64[::1], int32[::1])"
)
def decode_records(data: Bytes, lens: Int64s, column_of: Int32s) -> Any:
    """The arrays of a `CellBatch` over `data`, then a status, and the record that it is about.

    `data` holds key, value, key, value … of the lengths `lens`, in the order of keys, whole rows; keys are
    unescaped in place if all is well. `column_of` maps a column's number to its index, -1 where it is not wanted;
    rows without wanted cells are left out.
    """
    records_in = len(lens) // 2
    cells_max = _cells_max(data, lens)
    row_off = np.empty(records_in, dtype=np.int64)
    row_len = np.empty(records_in, dtype=np.int32)
    row_rec = np.zeros(records_in + 1, dtype=np.int64)
    rec_version = np.empty(records_in, dtype=np.int64)
    rec_commit = np.empty(records_in, dtype=np.int64)
    rec_cell = np.zeros(records_in + 1, dtype=np.int64)
    cell_col = np.empty(cells_max, dtype=np.int32)
    cell_off = np.empty(cells_max, dtype=np.int64)
    cell_len = np.empty(cells_max, dtype=np.int32)
    rows, records, cells = np.int64(0), np.int64(0), np.int64(0)
    status, bad_record = np.int64(GOOD), np.int64(-1)
    at = np.int64(0)
    for record in range(records_in):
        key, key_len = at, lens[2 * record]
        value = key + key_len
        stop = value + lens[2 * record + 1]
        at = stop
        if stop - value < HEADER_BYTES or crc32(
            data, value + 4, stop, crc32(data, key, value, np.uint32(0))
        ) != np.uint32(_little_endian(data, value, 4)):
            status, bad_record = np.int64(BAD_CHECKSUM), np.int64(record)
            break
        if key_len < KEY_BYTES_MIN or data[value - VERSION_BYTES - 1] != 0 or data[value - VERSION_BYTES] >= 0x80:
            status, bad_record = np.int64(BAD_KEY), np.int64(record)
            break
        first_cell = cells
        count, place = varint(data, value + HEADER_BYTES, stop)
        for _ in range(count):
            number, length = np.int64(-1), np.int64(-1)
            near = np.uint64(place)
            if place + 1 < stop and (data[near] | data[near + np.uint64(1)]) < 0x80:  # nearly always: one byte each
                number, length = np.int64(data[near]), np.int64(data[near + np.uint64(1)])
                place += 2
            else:
                number, place = varint(data, place, stop)
                length, place = varint(data, place, stop)
            if number < 0 or length < 0 or length - 1 > stop - place or cells >= cells_max:
                status, bad_record = np.int64(BAD_GRAMMAR), np.int64(record)
                break
            if number >= len(column_of):
                status, bad_record = np.int64(UNKNOWN_COLUMN), np.int64(record)
                break
            column = column_of[np.uint64(number)]
            if column >= 0:
                cell = np.uint64(cells)
                cell_col[cell] = column
                cell_off[cell] = place
                cell_len[cell] = np.int32(length - 1) if length > 0 else np.int32(TOMBSTONE)
                cells += 1
            place += max(length - 1, 0)
        if status == GOOD and (count < 0 or place != stop):
            status, bad_record = np.int64(BAD_GRAMMAR), np.int64(record)
        if status != GOOD:
            break
        if cells == first_cell:
            continue
        escaped, escaped_len = key + TABLE_BYTES, key_len - TABLE_BYTES - 1 - VERSION_BYTES
        if rows == 0 or row_len[rows - 1] != escaped_len or not _equal(data, row_off[rows - 1], escaped, escaped_len):
            row_off[rows] = escaped
            row_len[rows] = escaped_len
            rows += 1
        rec_version[records] = _key_version(data, value)
        rec_commit[records] = _little_endian(data, value + 4, 8)
        records += 1
        rec_cell[records] = cells
        row_rec[rows] = records
    if status == GOOD:
        for row in range(rows):
            row_len[row] = _unescape(data, row_off[row], np.int64(row_len[row]))
    return (
        row_off[:rows],
        row_len[:rows],
        row_rec[: rows + 1],
        rec_version[:records],
        rec_commit[:records],
        rec_cell[: records + 1],
        cell_col[:cells],
        cell_off[:cells],
        cell_len[:cells],
        status,
        bad_record,
    )


@kernel(f"void({READ_BYTES}, int64, uint8[::1], int64, int64)", _nrt=False)
def _copy(buffer: Bytes, at: Int, out: Bytes, to: Int, length: Int) -> None:
    source, target = np.uint64(at), np.uint64(to)
    for index in range(np.uint64(length)):
        out[target + index] = buffer[source + index]


@kernel("int64(uint8[::1], int64, uint64)", _nrt=False)
def _put_varint(out: Bytes, at: Int, number: Any) -> Int:
    while number >= np.uint64(0x80):
        out[at] = np.uint8(number & np.uint64(0x7F)) | np.uint8(0x80)
        number >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(number)
    return at + 1


@kernel(f"int64({READ_BYTES}, int64, int64, uint8[::1], int64)", _nrt=False)
def _put_escaped(buffer: Bytes, at: Int, length: Int, out: Bytes, to: Int) -> Int:
    source, target = np.uint64(at), np.uint64(to)
    for _ in range(length):
        byte = buffer[source]
        out[target] = byte
        source += np.uint64(1)
        target += np.uint64(1)
        if byte == 0:
            out[target] = 255
            target += np.uint64(1)
    return np.int64(target)


@kernel("void(uint8[::1], int64, int64, int64)", _nrt=False)
def _put_little_endian(out: Bytes, at: Int, number: Int, size: Int) -> None:
    for index in range(size):
        out[at + index] = np.uint8((number >> (8 * index)) & 255)


@kernel(f"int64(uint8[::1], {READ_BYTES}, int64, int64, int64, uint8[::1], int64)", _nrt=False)
def _put_key(prefix: Bytes, buffer: Bytes, row_at: Int, row_len: Int, version: Int, out: Bytes, to: Int) -> Int:
    """The key of a row and version, as `records` has it; returns where it ends."""
    for index in range(len(prefix)):
        out[to + index] = prefix[index]
    to = _put_escaped(buffer, row_at, row_len, out, to + len(prefix))
    out[to] = 0
    inverted = TIMESTAMP_MAX - version
    for index in range(VERSION_BYTES):
        out[to + 1 + index] = np.uint8((inverted >> (8 * (VERSION_BYTES - 1 - index))) & 255)
    return to + 1 + VERSION_BYTES


@kernel(f"int64({READ_BYTES}, int64, int64, int64, int64)", _nrt=False)
def _compare(data: Bytes, left: Int, left_len: Int, right: Int, right_len: Int) -> Int:
    one, other = np.uint64(left), np.uint64(right)
    for index in range(np.uint64(min(left_len, right_len))):
        if data[one + index] != data[other + index]:
            return np.int64(data[one + index]) - np.int64(data[other + index])
    return left_len - right_len


@kernel("UniTuple(int64, 3)(Fields(BatchArrays), boolean[::1], int64)", _nrt=False)
def check_batch(arrays: Any, is_family: Any, value_bytes_max: Int) -> tuple[Int, Int, Int]:
    """GOOD, or the rule that is broken; then the row and the cell that break it (-1: none).

    `is_family` marks columns with an empty qualifier.
    """
    batch = BatchArrays(*arrays)
    buffer, row_off, row_len, row_rec = batch.buffer, batch.row_off, batch.row_len, batch.row_rec
    rec_cell, cell_col, cell_len = batch.rec_cell, batch.cell_col, batch.cell_len
    for row in range(len(row_off)):
        at, length = row_off[row], np.int64(row_len[row])
        if length == 0:
            return ROW_EMPTY, row, -1
        escaped = length
        for index in range(at, at + length):
            escaped += buffer[index] == 0
        if escaped > ESCAPED_ROW_BYTES_MAX:
            return ROW_TOO_LONG, row, -1
        if row > 0 and _compare(buffer, row_off[row - 1], np.int64(row_len[row - 1]), at, length) >= 0:
            return ROW_OUT_OF_ORDER, row, -1
        for cell in range(rec_cell[row_rec[row]], rec_cell[row_rec[row + 1]]):
            if cell_len[cell] == 0:
                return VALUE_EMPTY, row, cell
            if cell_len[cell] > value_bytes_max:
                return VALUE_TOO_LONG, row, cell
            if cell_len[cell] != TOMBSTONE and is_family[cell_col[cell]]:
                return VALUE_OF_FAMILY, row, cell
    return GOOD, -1, -1


@kernel(
    "Tuple((uint8[::1], int64[::1], boolean[::1]))"
    "(Fields(BatchArrays), int64, int64, uint8[::1], int64[::1], int64, uint32)"
)
def encode_rows(
    arrays: Any, first: Int, stop: Int, prefix: Bytes, number_of: Int64s, version: Int, sample_mask: Any
) -> tuple[Bytes, Int64s, Any]:
    """Rows `first` … `stop` of a checked batch as records under `version`, without a commit timestamp.

    `prefix` is the table's, `number_of` the table's number of each of the batch's columns. Returns the bytes, their
    borders (key i is bounds[2i] : bounds[2i+1], its value up to bounds[2i+2]) and which rows are samples: those the CRC
    of whose row prefix has none of the bits of `sample_mask`.
    """
    batch = BatchArrays(*arrays)
    buffer, row_off, row_len, row_rec = batch.buffer, batch.row_off, batch.row_len, batch.row_rec
    rec_cell, cell_col, cell_off, cell_len = batch.rec_cell, batch.cell_col, batch.cell_off, batch.cell_len
    size = np.int64(0)
    for row in range(first, stop):
        size += 2 * np.int64(row_len[row]) + TABLE_BYTES + VERSION_BYTES + HEADER_BYTES + 2 * VARINT_BYTES_MAX
        for cell in range(rec_cell[row_rec[row]], rec_cell[row_rec[row + 1]]):
            size += np.int64(max(cell_len[cell], 0)) + 2 * VARINT_BYTES_MAX
    out = np.empty(size, dtype=np.uint8)
    bounds = np.zeros(2 * (stop - first) + 1, dtype=np.int64)
    samples = np.zeros(stop - first, dtype=np.bool_)
    at = np.int64(0)
    for row in range(first, stop):
        key = at
        value = _put_key(prefix, buffer, row_off[row], np.int64(row_len[row]), version, out, key)
        prefix_crc = crc32(out, key, value - VERSION_BYTES, np.uint32(0))
        samples[row - first] = (prefix_crc & sample_mask) == 0
        key_crc = crc32(out, value - VERSION_BYTES, value, prefix_crc)
        _put_little_endian(out, value + 4, 0, 8)
        first_cell, stop_cell = rec_cell[row_rec[row]], rec_cell[row_rec[row + 1]]
        at = _put_varint(out, value + HEADER_BYTES, np.uint64(stop_cell - first_cell))
        for cell in range(first_cell, stop_cell):
            at = _put_varint(out, at, np.uint64(number_of[cell_col[cell]]))
            length = np.int64(cell_len[cell])
            at = _put_varint(out, at, np.uint64(length + 1))
            if length > 0:
                _copy(buffer, cell_off[cell], out, at, length)
                at += length
        _put_little_endian(out, value, np.int64(crc32(out, value + 4, at, key_crc)), 4)
        bounds[2 * (row - first) + 1] = value
        bounds[2 * (row - first) + 2] = at
    return out[:at], bounds, samples
