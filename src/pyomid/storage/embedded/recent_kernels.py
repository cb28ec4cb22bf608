"""The shared index of recent commits, a word at a time: where the slot of a start lies, and what is done to many.

    table    65 536 records of 16 words, open addressing, neighbours kept side by side
    record   bucket + 1 (0: free), then the slots of 15 neighbouring timestamps: commit, SEALED, or 0

`place_few`, `find_few` and `clear_few` are the plain twins, over a memoryview of the same words: for a few starts they
are faster than arrays are made, and a process that only ever has a few never loads the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyomid.compiled import kernel
from pyomid.types import SEALED, TIMESTAMP_STEP

SLOTS: Final = 15
"""With its key a record fills two cache lines."""
RECORD_WORDS: Final = 16
RECORDS: Final = 1 << 16
TABLE_WORDS: Final = RECORDS * RECORD_WORDS
NEIGHBOURS: Final = 16
"""Records side by side whose buckets follow each other: starts come in runs."""
_BLOCKS: Final = RECORDS // NEIGHBOURS
_SPREAD: Final = 0x9E37_79B1
_SPREAD_BITS: Final = 0xFFF_FFFF


@kernel("int64(int64[::1], int64, int64)", nogil=True, _nrt=False)
def find_record(words: Any, table: Any, bucket: Any) -> Any:
    """The first word of the bucket's record, or of the free one where it would go. Some are always free."""
    block = (((bucket // NEIGHBOURS) & _SPREAD_BITS) * _SPREAD >> 20) % _BLOCKS
    at = table + RECORD_WORDS * (NEIGHBOURS * block + bucket % NEIGHBOURS)
    while words[at] != 0 and words[at] != bucket + 1:
        at += RECORD_WORDS
        if at == table + TABLE_WORDS:
            at = table
    return at


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])", nogil=True, _nrt=False)
def place(words: Any, table: Any, starts: Any, values: Any) -> Any:
    """Each start's slot becomes its value. Returns how many records were taken for it. A reader beside it sees
    a slot as it was or as it is."""
    taken = 0
    for index in range(len(starts)):
        unit = starts[index] // TIMESTAMP_STEP
        bucket = unit // SLOTS
        at = find_record(words, table, bucket)
        words[at + 1 + unit - bucket * SLOTS] = values[index]
        if words[at] == 0:
            words[at] = bucket + 1
            taken += 1
    return taken


@kernel("void(int64[::1], int64, int64[::1], int64[::1])", nogil=True, _nrt=False)
def find(words: Any, table: Any, starts: Any, found: Any) -> Any:
    """Fills in those of `found` that are 0."""
    for index in range(len(starts)):
        if found[index] == 0:
            unit = starts[index] // TIMESTAMP_STEP
            bucket = unit // SLOTS
            at = find_record(words, table, bucket)
            if words[at] != 0:
                found[index] = words[at + 1 + unit - bucket * SLOTS]


@kernel("int64(int64[::1], int64, int64[::1], bool_[::1], int64[:, ::1])", nogil=True, _nrt=False)
def clear(words: Any, table: Any, starts: Any, is_missing: Any, cleared: Any) -> Any:
    """Slots that hold commits become 0, and a row of `cleared` each, (start, 0). Returns how many did. Those that have
    a slot, mark or commit, are not missing."""
    count = 0
    for index in range(len(starts)):
        start = starts[index]
        unit = start // TIMESTAMP_STEP
        bucket = unit // SLOTS
        at = find_record(words, table, bucket)
        slot = at + 1 + unit - bucket * SLOTS
        if words[at] == 0 or words[slot] == 0:
            continue
        is_missing[index] = False
        if words[slot] != SEALED:
            words[slot] = 0
            cleared[count, 0], cleared[count, 1] = start, 0
            count += 1
    return count


def place_few(words: memoryview, table: int, rows: Iterable[Sequence[int]]) -> int:
    taken = 0
    for start, value in rows:
        bucket, slot = divmod(start // TIMESTAMP_STEP, SLOTS)
        at = find_record.plain(words, table, bucket)
        words[at + 1 + slot] = value
        if words[at] == 0:
            words[at] = bucket + 1
            taken += 1
    return taken


def find_few(words: memoryview, table: int, starts: Iterable[int]) -> list[int]:
    """Their slots; 0 where there is nothing."""
    found = []
    for start in starts:
        bucket, slot = divmod(start // TIMESTAMP_STEP, SLOTS)
        at = find_record.plain(words, table, bucket)
        found.append(words[at + 1 + slot] if words[at] else 0)
    return found


def clear_few(words: memoryview, table: int, starts: Sequence[int], is_missing: Any) -> list[tuple[int, int]]:
    cleared = []
    for index, (start, value) in enumerate(zip(starts, find_few(words, table, starts), strict=True)):
        if value:
            is_missing[index] = False
            if value != SEALED:
                cleared.append((start, 0))
    place_few(words, table, cleared)
    return cleared
