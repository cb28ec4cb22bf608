"""The kernels of `row_codec/native` one row at a time, in plain Python: reference implementations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import TOMBSTONE
from pyomid.rows.native.columns import ABSENT
from pyomid.rows.native.row_keys import ASCENDING, UNSORTED, WITH_EQUALS


def pack_cells(grid: list[list[tuple[int, int]]], sentinel: tuple[int, int]) -> list[list[tuple[int, int, int]]]:
    """Rows of (offset, length) → rows of (column, offset, length)."""
    packed = []
    for row in grid:
        cells = [(column, off, length) for column, (off, length) in enumerate(row) if length != ABSENT]
        if all(length == TOMBSTONE for _, _, length in cells):
            cells.append((len(row), *sentinel))
        packed.append(cells)
    return packed


def zero_texts(texts: list[bytes]) -> tuple[list[bool], int]:
    zero = [not text.strip(b"\x00") for text in texts]
    return zero, max((len(text) for text, is_zero in zip(texts, zero, strict=True) if is_zero), default=-1)


def fill_columns(rows: list[list[tuple[int, bytes]]], widths: list[int]) -> list[list[bytes | None]] | tuple[int, int]:
    """Each row's visible (place, value) → each place's values by row, turned round where the width is fixed;
    or row and place of the first value of a wrong length."""
    columns: list[list[bytes | None]] = [[None] * len(rows) for _ in widths]
    for index, row in enumerate(rows):
        for place, value in row:
            if widths[place] and len(value) != widths[place]:
                return index, place
            columns[place][index] = value[::-1] if widths[place] else value
    return columns


def gather_texts(values: list[bytes | None], *, is_text: bool) -> list[bytes]:
    texts = [value or b"" for value in values]
    return [text[:-1] if is_text and not text.strip(b"\x00") else text for text in texts]


def put_decimal(unscaled: int, scale: int) -> bytes:
    size = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() + 8) // 8
    return scale.to_bytes(4, "big", signed=True) + unscaled.to_bytes(size, "big", signed=True)


def gather_decimal(stored: bytes | None, scale: int) -> bytes | None:
    """16 bytes, or None where they do not fit."""
    if stored is None:
        return bytes(16)
    if not 5 <= len(stored) <= 20 or stored[:4] != scale.to_bytes(4, "big", signed=True):
        return None
    return int.from_bytes(stored[4:], "big", signed=True).to_bytes(16, "little", signed=True)


def put_blocks(out: NDArray[np.uint8], places: NDArray[np.int64], blocks: NDArray[np.uint8]) -> None:
    for row, block in enumerate(blocks):
        out[places[row] : places[row] + len(block)] = block
        places[row] += len(block)


def take_blocks(
    buffer: NDArray[np.uint8], places: NDArray[np.int64], ends: NDArray[np.int64], out: NDArray[np.uint8]
) -> int:
    width = out.shape[1]
    for row in range(len(out)):
        if places[row] + width > ends[row]:
            return row
        out[row] = buffer[places[row] : places[row] + width]
        places[row] += width
    return -1


def escaped(text: bytes, *, inverted: bool) -> bytes:
    """One text as it stands in a key."""
    escaped = text.replace(b"\x00", b"\x00\xff") + b"\x00\x01"
    return bytes(255 - byte for byte in escaped) if inverted else escaped


def unescaped(key: bytes, *, inverted: bool) -> tuple[bytes, bytes] | None:
    """The first text of a key and what follows it; None without an ending."""
    plain = bytes(255 - byte for byte in key) if inverted else key
    at = 0
    while (zero := plain.find(b"\x00", at)) >= 0 and plain[zero + 1 : zero + 2] == b"\xff":
        at = zero + 2
    if zero < 0 or plain[zero + 1 : zero + 2] != b"\x01":
        return None
    return plain[:zero].replace(b"\x00\xff", b"\x00"), key[zero + 2 :]


def key_order(keys: list[bytes]) -> int:
    if sorted(keys) != keys:
        return UNSORTED
    return ASCENDING if len(set(keys)) == len(keys) else WITH_EQUALS


def last_of_equals(keys: list[bytes]) -> list[bool]:
    return [index + 1 == len(keys) or keys[index + 1] != key for index, key in enumerate(keys)]
