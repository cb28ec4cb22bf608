"""Compaction's changes of many records: keys of the records of a batch, and records changed by heals and drops.

`EmbeddedStore._change_record`, which changes one, is the reference implementation.
"""

from __future__ import annotations

from typing import Any, Final

from pyomid.arrays import np
from pyomid.cells import BatchArrays
from pyomid.kernels.compiled import kernel
from pyomid.storage.embedded.native.records import (
    Bytes,
    Int,
    Int64s,
    _little_endian,
    _put_key,
    _put_little_endian,
    _put_varint,
    crc32,
    varint,
)
from pyomid.storage.embedded.records import HEADER_BYTES, TABLE_BYTES, VARINT_BYTES_MAX, VERSION_BYTES

UNCHANGED: Final = 0
CHANGED: Final = 1
EMPTIED: Final = 2
CORRUPT: Final = 3


@kernel("Tuple((uint8[::1], int64[::1]))(Fields(BatchArrays), int64[::1], int64[::1], uint8[::1])")
def record_keys(arrays: Any, records: Int64s, row_of: Int64s, prefix: Bytes) -> tuple[Bytes, Int64s]:
    """The keys of `records`, whose rows are `row_of`, one after the other, and their borders. `prefix`: the table's."""
    batch = BatchArrays(*arrays)
    buffer, row_off, row_len, rec_version = batch.buffer, batch.row_off, batch.row_len, batch.rec_version
    size = np.int64(0)
    for index in range(len(records)):
        size += 2 * np.int64(row_len[row_of[index]]) + TABLE_BYTES + 1 + VERSION_BYTES
    out = np.empty(size, dtype=np.uint8)
    bounds = np.zeros(len(records) + 1, dtype=np.int64)
    at = np.int64(0)
    for index in range(len(records)):
        row, version = row_of[index], rec_version[records[index]]
        at = _put_key(prefix, buffer, row_off[row], np.int64(row_len[row]), version, out, at)
        bounds[index + 1] = at
    return out[:at], bounds


@kernel("boolean(int64[::1], int64, int64, int64)", _nrt=False)
def _contains(numbers: Int64s, first: Int, stop: Int, number: Int) -> bool:
    for index in range(first, stop):  # noqa: SIM110 (numba compiles a loop better than a generator)
        if numbers[index] == number:
            return True
    return False


@kernel(
    "Tuple((uint8[::1], int64[::1], int64[::1]))"
    "(uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
def change_records(
    data: Bytes,
    lens: Int64s,
    commits: Int64s,
    drops: Int64s,
    drop_first: Int64s,
    heals: Int64s,
    heal_first: Int64s,
) -> Any:
    """New values of records: the bytes, their borders, and of each record what became of it.

    `data` holds key, value, key, value … of lengths `lens`. Record i loses the columns (by number)
    `drops[drop_first[i] : drop_first[i + 1]]`; it gets the commit timestamp `commits[i]` if that is not 0 and one of
    the columns `heals[heal_first[i] : heal_first[i + 1]]` is left in it.
    """
    records = len(lens) // 2
    out = np.empty(len(data) + records * VARINT_BYTES_MAX, dtype=np.uint8)
    bounds = np.zeros(records + 1, dtype=np.int64)
    states = np.zeros(records, dtype=np.int64)
    at, to = np.int64(0), np.int64(0)
    for record in range(records):
        key, value = at, at + lens[2 * record]
        stop = value + lens[2 * record + 1]
        at = stop
        bounds[record + 1] = to
        key_crc = crc32(data, key, value, np.uint32(0))
        if stop - value < HEADER_BYTES or crc32(data, value + 4, stop, key_crc) != np.uint32(
            _little_endian(data, value, 4)
        ):
            states[record] = CORRUPT
            continue
        first_drop, stop_drop = drop_first[record], drop_first[record + 1]
        left, healed, bad = np.int64(0), False, False
        count, place = varint(data, value + HEADER_BYTES, stop)
        cells = place
        for _ in range(count):
            number, place = varint(data, place, stop)
            length, place = varint(data, place, stop)
            if number < 0 or length < 0 or length - 1 > stop - place:
                bad = True
                break
            place += max(length - 1, 0)
            if not _contains(drops, first_drop, stop_drop, number):
                left += 1
                healed = healed or _contains(heals, heal_first[record], heal_first[record + 1], number)
                if healed and first_drop == stop_drop:  # only the commit timestamp changes
                    left, place = count, stop
                    break
        if bad or count < 0 or place != stop:
            states[record] = CORRUPT
            continue
        if left == 0:
            states[record] = EMPTIED
            continue
        heal = commits[record] != 0 and healed and _little_endian(data, value + 4, 8) != commits[record]
        if left == count and not heal:
            continue
        states[record] = CHANGED
        start = to
        for index in range(4, HEADER_BYTES):
            out[start + index] = data[value + index]
        if heal:
            _put_little_endian(out, start + 4, commits[record], 8)
        to = _put_varint(out, start + HEADER_BYTES, np.uint64(left))
        place = cells
        if left == count:
            for index in range(cells, stop):
                out[to + index - cells] = data[index]
            to += stop - cells
            count = np.int64(0)
        for _ in range(count):
            begin = place
            number, place = varint(data, place, stop)
            length, place = varint(data, place, stop)
            place += max(length - 1, 0)
            if not _contains(drops, first_drop, stop_drop, number):
                for index in range(begin, place):
                    out[to + index - begin] = data[index]
                to += place - begin
        _put_little_endian(out, start, np.int64(crc32(out, start + 4, to, key_crc)), 4)
        bounds[record + 1] = to
    return out[:to], bounds, states
