"""The shared index of recent commits, a word at a time: where the slot of a start lies, and what is done to many.

    table    65 536 records of 16 words, open addressing, neighbours kept side by side
    record   bucket + 1 (0: free), then the slots of 15 neighbouring timestamps: commit, SEALED, or 0

A slot is stored before its record's key, and the key is loaded before the slot, each so that other processors see
it in this order (`memory_order`).

`place_few`, `find_few` and `clear_few` are the reference implementation, over a memoryview of the same words. For a
few starts they take less time than to make arrays, and a process that only ever has a few never loads the compiler.
They are only for processors that keep this order by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pyomid.errors import Corruption
from pyomid.kernels.compiled import kernel
from pyomid.storage.embedded.commit_log.memory_order import load_acquire, store_release
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

NO_ROOM: Final = -1
"""No record is free, which no writer leaves so: the words are damaged."""


@kernel("int64(int64[::1], int64, int64)", nogil=True, _nrt=False)
def find_record(words: Any, table: Any, bucket: Any) -> Any:
    """The first word of the bucket's record, or of the free one where it would go; or NO_ROOM."""
    block = (((bucket // NEIGHBOURS) & _SPREAD_BITS) * _SPREAD >> 20) % _BLOCKS
    at = table + RECORD_WORDS * (NEIGHBOURS * block + bucket % NEIGHBOURS)
    for _ in range(RECORDS):
        key = load_acquire(words, at)
        if key == 0 or key == bucket + 1:
            return at
        at += RECORD_WORDS
        if at == table + TABLE_WORDS:
            at = table
    return NO_ROOM


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])", nogil=True, _nrt=False)
def place(words: Any, table: Any, starts: Any, values: Any) -> Any:
    """Each start's slot becomes its value. Returns how many records were taken for it, or NO_ROOM. A reader beside it
    sees a slot as it was or as it is."""
    taken = 0
    for index in range(len(starts)):
        unit = starts[index] // TIMESTAMP_STEP
        bucket = unit // SLOTS
        at = find_record(words, table, bucket)
        if at < 0:
            return NO_ROOM
        store_release(words, at + 1 + unit - bucket * SLOTS, values[index])
        if words[at] == 0:
            store_release(words, at, bucket + 1)
            taken += 1
    return taken


@kernel("int64(int64[::1], int64, int64[::1], int64[::1])", nogil=True, _nrt=False)
def find(words: Any, table: Any, starts: Any, found: Any) -> Any:
    """Fills in those of `found` that are 0. Returns 0, or NO_ROOM."""
    for index in range(len(starts)):
        if found[index] == 0:
            unit = starts[index] // TIMESTAMP_STEP
            bucket = unit // SLOTS
            at = find_record(words, table, bucket)
            if at < 0:
                return NO_ROOM
            if load_acquire(words, at) != 0:
                found[index] = load_acquire(words, at + 1 + unit - bucket * SLOTS)
    return 0


@kernel("int64(int64[::1], int64, int64[::1], bool_[::1], int64[:, ::1])", nogil=True, _nrt=False)
def clear(words: Any, table: Any, starts: Any, is_missing: Any, cleared: Any) -> Any:
    """Slots that hold commits become 0, and a row of `cleared` each, (start, 0). Returns how many did, or NO_ROOM.
    Those that have a slot, invalidation marker or commit, are not missing."""
    count = 0
    for index in range(len(starts)):
        start = starts[index]
        unit = start // TIMESTAMP_STEP
        bucket = unit // SLOTS
        at = find_record(words, table, bucket)
        if at < 0:
            return NO_ROOM
        slot = at + 1 + unit - bucket * SLOTS
        if words[at] == 0 or words[slot] == 0:
            continue
        is_missing[index] = False
        if words[slot] != SEALED:
            store_release(words, slot, 0)
            cleared[count, 0], cleared[count, 1] = start, 0
            count += 1
    return count


def no_room() -> Corruption:
    return Corruption(
        "the index of recent commits has no free record, which no TSO leaves so: it is damaged. Stop the processes of"
        " this folder and remove its file `recent`; the next TSO makes it again from the log"
    )


def _found_record(words: memoryview, table: int, bucket: int) -> int:
    """`find_record`, or `Corruption`."""
    block = (((bucket // NEIGHBOURS) & _SPREAD_BITS) * _SPREAD >> 20) % _BLOCKS
    first = at = table + RECORD_WORDS * (NEIGHBOURS * block + bucket % NEIGHBOURS)
    while (key := words[at]) != 0 and key != bucket + 1:
        at += RECORD_WORDS
        if at == table + TABLE_WORDS:
            at = table
        if at == first:
            raise no_room()
    return at


def place_few(words: memoryview, table: int, rows: Iterable[Sequence[int]]) -> int:
    taken = 0
    for start, value in rows:
        bucket, slot = divmod(start // TIMESTAMP_STEP, SLOTS)
        at = _found_record(words, table, bucket)
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
        at = _found_record(words, table, bucket)
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
