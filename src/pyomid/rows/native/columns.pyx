"""Conversion of many rows at once: a frame's columns to cells, and cells to Arrow columns."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from pyomid.native.batch cimport TOMBSTONE, Batch, batch_of

# From a grid of cells, columns by rows with gaps, to a batch's cell arrays without gaps

cpdef enum:
    ABSENT = -2  # length that marks a grid entry without a cell; below TOMBSTONE


def pack_cells(
    const int64_t[:, ::1] grid_off, const int32_t[:, ::1] grid_len, int64_t sentinel_off, int32_t sentinel_len,
    int64_t[::1] rec_cell, int32_t[::1] cell_col, int64_t[::1] cell_off, int32_t[::1] cell_len,
):
    """Fill the four arrays; return the number of cells. Each row needs room for one cell more than the grid is wide.

    The grid is columns by rows. A row without any value gets the sentinel, column number `len(grid)`.
    """
    cdef int64_t columns = grid_off.shape[0], written = 0, row, column
    cdef bint has_value
    rec_cell[0] = 0
    with nogil:
        for row in range(grid_off.shape[1]):
            has_value = False
            for column in range(columns):
                if grid_len[column, row] == ABSENT:
                    continue
                cell_col[written], cell_off[written] = <int32_t> column, grid_off[column, row]
                cell_len[written] = grid_len[column, row]
                has_value = has_value or cell_len[written] != TOMBSTONE
                written += 1
            if not has_value:
                cell_col[written], cell_off[written] = <int32_t> columns, sentinel_off
                cell_len[written] = sentinel_len
                written += 1
            rec_cell[row + 1] = written
    return written


# Values of zero bytes only, which are stored with one more zero byte (`rows.values`)


cdef bint is_zero(const uint8_t *data, int64_t size) noexcept nogil:
    cdef int64_t at
    for at in range(size):
        if data[at] != 0:
            return False
    return True


def zero_texts(const uint8_t[::1] data, const int64_t[::1] offsets, uint8_t[::1] zero):
    """Mark the values that are empty or have only zero bytes; return the length of the longest of them, or -1."""
    cdef int64_t longest = -1, row, size
    with nogil:
        for row in range(zero.shape[0]):
            size = offsets[row + 1] - offsets[row]
            zero[row] = is_zero(&data[offsets[row]], size)
            if zero[row]:
                longest = max(longest, size)
    return longest


# From visible cells to Arrow columns: one pass over a batch, in the order of its cells. Fixed-width values are written
# to their position in Arrow's buffer, little-endian; for the other columns the cell of each row is recorded


cdef inline void put_reversed(uint8_t *out, const uint8_t *value, int64_t width) noexcept nogil:
    cdef int64_t byte
    for byte in range(width):
        out[byte] = value[width - 1 - byte]


def fill_columns(
    tuple arrays, const int64_t[::1] visible, const int64_t[::1] row_cell, const int64_t[::1] rows, tuple places,
    tuple filled,
):
    """Write the values of `rows` to columns; `visible[row_cell[r] : row_cell[r + 1]]` are row r's visible cells.

    `places` maps the wanted columns: `place_of` gives the place p of a column by its number in the batch, -1 if it is
    not wanted; `width_of[p]` is the width of its values in bytes, 0 if variable; `at_of[p]` is where its values begin
    in `fixed`, or its row in `chosen`.

    `filled` holds the results, by place p and row i: `fixed`, values of fixed width, that of row i at
    `at_of[p] + i * width_of[p]`; `chosen[at_of[p], i]`, the cell of a value of variable width; `valid`, the validity
    bitmap of each place; `present`, the number of its set bits. The caller fills `chosen` with -1 and the others with
    zeros.

    Return (-1, -1), or (i, p) of the first value of fixed width with another length: that of `rows[i]` at place p.
    """
    cdef Batch batch = batch_of(arrays)
    cdef const int64_t[::1] place_of = places[0], width_of = places[1], at_of = places[2]
    cdef uint8_t[::1] fixed = filled[0]
    cdef int64_t[:, ::1] chosen = filled[1]
    cdef uint8_t[:, ::1] valid = filled[2]
    cdef int64_t[::1] present = filled[3]
    cdef int64_t index, at, cell, place, width
    cdef const uint8_t *value
    cdef uint8_t *out
    with nogil:
        for index in range(rows.shape[0]):
            for at in range(row_cell[rows[index]], row_cell[rows[index] + 1]):
                cell = visible[at]
                place = place_of[batch.cell_col[cell]]
                if place < 0:
                    continue
                valid[place, index >> 3] |= 1 << (index & 7)
                present[place] += 1
                width = width_of[place]
                if width == 0:
                    chosen[at_of[place], index] = cell
                    continue
                if batch.cell_len[cell] != width:
                    with gil:
                        return index, place
                value, out = batch.buffer + batch.cell_off[cell], &fixed[at_of[place] + index * width]
                if width == 4:  # for a constant width the compiler reverses the bytes with one instruction
                    put_reversed(out, value, 4)
                elif width == 8:
                    put_reversed(out, value, 8)
                else:
                    put_reversed(out, value, width)
    return -1, -1


# Stored strings and binaries of one column, concatenated for Arrow


def text_offsets(
    const uint8_t[::1] buffer, const int64_t[::1] cell_off, const int32_t[::1] cell_len, const int64_t[::1] chosen,
    int64_t[::1] offsets, bint is_text,
):
    """Fill the offsets of the values in the column's data; return their total length. Null (-1) has length 0.

    `is_text`: a value of zero bytes only is one byte shorter than its stored form.
    """
    cdef int64_t total = 0, row, cell, size
    offsets[0] = 0
    with nogil:
        for row in range(chosen.shape[0]):
            cell = chosen[row]
            if cell >= 0:
                size = cell_len[cell]
                total += size
                if is_text and size > 0 and is_zero(&buffer[cell_off[cell]], size):
                    total -= 1
            offsets[row + 1] = total
    return total


def copy_texts(
    const uint8_t[::1] buffer, const int64_t[::1] cell_off, const int64_t[::1] chosen, const int64_t[::1] offsets,
    uint8_t[::1] out,
):
    """Copy each value to its offset."""
    cdef int64_t row
    with nogil:
        for row in range(chosen.shape[0]):
            if chosen[row] >= 0:
                memcpy(&out[offsets[row]], &buffer[cell_off[chosen[row]]], offsets[row + 1] - offsets[row])


# Decimals: scale in four bytes, then the unscaled number in as few bytes as possible (Java's `toByteArray`)


def put_decimals(
    const uint8_t[:, ::1] unscaled, int32_t scale, uint8_t[::1] out, int64_t[::1] offsets, int32_t[::1] lengths
):
    """Write every number (16 bytes, little-endian) in its stored form; return the number of bytes written.

    `out` needs room for 20 bytes per row.
    """
    cdef int64_t written = 0, row
    cdef int top, sign
    with nogil:
        for row in range(lengths.shape[0]):
            sign = 0xFF if unscaled[row, 15] & 0x80 else 0x00
            top = 15
            while top > 0 and unscaled[row, top] == sign and (unscaled[row, top - 1] ^ sign) & 0x80 == 0:
                top -= 1
            offsets[row] = written
            put_reversed(&out[written], <const uint8_t *> &scale, 4)
            put_reversed(&out[written + 4], &unscaled[row, 0], top + 1)
            lengths[row] = top + 5
            written += top + 5
    return written


def gather_decimals(
    const uint8_t[::1] buffer, const int64_t[::1] cell_off, const int32_t[::1] cell_len, const int64_t[::1] chosen,
    int32_t scale, uint8_t[:, ::1] out,
):
    """Fill `out` with unscaled numbers, 16 bytes, little-endian; return -1, or the first row with another scale or an
    invalid length."""
    cdef int64_t row, cell, size, byte
    cdef const uint8_t *value
    cdef int sign
    for row in range(chosen.shape[0]):
        cell = chosen[row]
        if cell < 0:
            out[row] = 0
            continue
        value, size = &buffer[cell_off[cell]], cell_len[cell] - 4
        if size < 1 or size > 16:
            return row
        for byte in range(4):
            if value[byte] != <uint8_t> (scale >> 8 * (3 - byte)):
                return row
        sign = 0xFF if value[4] & 0x80 else 0x00
        for byte in range(16):
            out[row, byte] = value[3 + size - byte] if byte < size else <uint8_t> sign
    return -1
