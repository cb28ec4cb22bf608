"""Commit-table entries in LMDB, as functions of a transaction: they are committed atomically with its other writes.

    bucket, 8 bytes, big-endian     128 slots of 8 bytes and a checksum, all little-endian

Starts are multiples of 50, and half of all timestamps are starts. The entries of 128 neighbouring timestamps share a
record; the slot of a start has its commit timestamp, SEALED, or 0. So thousands of entries change only tens of records;
a record per entry would cost a B-tree insertion each (decision 0109). A record whose slots are all 0 is deleted.

`commits` is the handle of the database, `layout.COMMITS`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Corruption
from pyomid.storage.embedded.environment import Transaction
from pyomid.types import NOT_FOUND, SEALED, TIMESTAMP_STEP, SealOutcome

Int64s = NDArray[np.int64]
Rows = NDArray[np.int64]
"""(start, value) per row."""

_SLOTS: Final = 128
"""A record has 1032 bytes, so three fit a page of LMDB; a record over 2038 bytes would take a page of its own."""
_SPAN: Final = _SLOTS * TIMESTAMP_STEP
_SLOT_BYTES: Final = 8
_CONTENT_BYTES: Final = _SLOTS * _SLOT_BYTES
_BUCKET_BYTES: Final = _CONTENT_BYTES + 8
_EMPTY: Final = bytes(_CONTENT_BYTES)
_KEY: Final = struct.Struct(">Q")
RECORD_TIMESTAMPS: Final = _SLOTS
"""Timestamps that share one record."""
RECORD_BYTES: Final = _KEY.size + _BUCKET_BYTES
"""The size of a record's key and value, without LMDB's page overhead."""
_SLOT: Final = struct.Struct("<q")
_FEW: Final = 32
_ENTRIES_A_RECORD: Final = 16
"""This many entries cost about as much as a record of data."""


def records_of(starts: Int64s) -> int:
    """Return the cost of writing these starts' entries, in records of data, for `Environment.write`."""
    return 1 + len(starts) // _ENTRIES_A_RECORD


def find_entries(transaction: Transaction, commits: Any, starts: Sequence[int]) -> list[int]:
    """Return each start's commit timestamp, SEALED or NOT_FOUND."""
    buckets: dict[int, bytes | None] = {}
    found = []
    for start in starts:
        bucket, slot = divmod(start // TIMESTAMP_STEP, _SLOTS)
        if bucket not in buckets:
            buckets[bucket] = _bucket(transaction, commits, bucket)
        content = buckets[bucket]
        found.append(NOT_FOUND if content is None else _SLOT.unpack_from(content, slot * _SLOT_BYTES)[0])
    return found


def put_entries(transaction: Transaction, commits: Any, rows: Rows) -> list[int]:
    """Put entries. Return the starts that an invalidation marker refused. If a start is listed twice, its last row
    counts."""
    starts = rows[:, 0]
    found = _change(transaction, commits, starts, rows[:, 1], _PUT)
    return [start for start, value in zip(starts.tolist(), found, strict=True) if value == SEALED]


def replace_entries(transaction: Transaction, commits: Any, rows: Rows) -> None:
    """Set each start's slot to its value, also over a marker."""
    _change(transaction, commits, rows[:, 0], rows[:, 1], _REPLACE)


def seal_starts(transaction: Transaction, commits: Any, starts: Int64s) -> list[SealOutcome]:
    """Place markers for starts without a commit."""
    return [
        SealOutcome(placed=True) if value in (NOT_FOUND, SEALED) else SealOutcome(placed=False, commit_ts=value)
        for value in _change(transaction, commits, starts, np.full_like(starts, SEALED), _SEAL)
    ]


def delete_entries(transaction: Transaction, commits: Any, starts: Int64s) -> None:
    """Delete the entries of these starts; markers stay."""
    _change(transaction, commits, starts, np.full_like(starts, NOT_FOUND), _PUT)


def delete_some_below(transaction: Transaction, commits: Any, horizon: int, records_max: int) -> tuple[int, bool]:
    """Delete entries and markers below the horizon, oldest first. Return how many, and whether none is left."""
    gone = 0
    last, slots_below = divmod(-(-horizon // TIMESTAMP_STEP), _SLOTS)
    with transaction.cursor(commits) as cursor:
        more = cursor.first()
        for _ in range(records_max):
            if not more or cursor.key() >= _KEY.pack(last):
                return gone + _clear_slots(transaction, commits, last, slots_below), True
            gone += int(np.count_nonzero(np.frombuffer(_checked(cursor.key(), cursor.value()), dtype="<i8")))
            more = cursor.delete() and cursor.key() != b""
    return gone, False


def entries_from(
    transaction: Transaction, commits: Any, bucket: int, records_max: int
) -> tuple[list[tuple[int, int]], int | None]:
    """Return the entries and markers of a bounded number of records, in the order of starts, and the bucket to continue
    from, or None at the end."""
    with transaction.cursor(commits) as cursor:
        if not cursor.set_range(_KEY.pack(bucket)):
            return [], None
        items = islice(cursor.iternext(), records_max)
        records = [(_KEY.unpack(key)[0], _checked(key, value)) for key, value in items]
    found = []
    for number, content in records:
        slots = np.frombuffer(content, dtype="<i8")
        for slot in np.flatnonzero(slots).tolist():
            found.append((number * _SPAN + slot * TIMESTAMP_STEP, int(slots[slot])))
    return found, records[-1][0] + 1


class _Rule(NamedTuple):
    """The new value of a slot, by its present value and the requested one; for one slot and for arrays."""

    one: Callable[[int, int], int]
    many: Callable[[Int64s, Int64s], Int64s]


_PUT: Final = _Rule(
    lambda found, value: SEALED if found == SEALED else value,
    lambda found, values: np.where(found == SEALED, SEALED, values),
)
_SEAL: Final = _Rule(
    lambda found, value: value if found == NOT_FOUND else found,
    lambda found, values: np.where(found == NOT_FOUND, values, found),
)
_REPLACE: Final = _Rule(lambda found, value: value, lambda found, values: values)


def _change(transaction: Transaction, commits: Any, starts: Int64s, values: Int64s, rule: _Rule) -> list[int]:
    """Change the slots of `starts`, and return their former values. A few starts are faster without arrays."""
    if len(starts) <= _FEW:
        return _change_few(transaction, commits, zip(starts.tolist(), values.tolist(), strict=True), rule)
    units = starts // TIMESTAMP_STEP
    buckets, place = np.unique(units // _SLOTS, return_inverse=True)
    slot = units % _SLOTS
    content = _load(transaction, commits, buckets.tolist())
    before = content.copy()
    found = before[place, slot]
    content[place, slot] = rule.many(found, values)
    changed = np.flatnonzero((content != before).any(axis=1))
    _store(transaction, commits, buckets[changed].tolist(), content[changed])
    held: list[int] = found.tolist()
    return held


def _change_few(transaction: Transaction, commits: Any, rows: Iterable[tuple[int, int]], rule: _Rule) -> list[int]:
    contents: dict[int, bytearray] = {}
    changed: set[int] = set()
    held = []
    for start, value in rows:
        bucket, slot = divmod(start // TIMESTAMP_STEP, _SLOTS)
        if (content := contents.get(bucket)) is None:
            content = contents[bucket] = bytearray(_bucket(transaction, commits, bucket) or _EMPTY)
        (found,) = _SLOT.unpack_from(content, slot * _SLOT_BYTES)
        held.append(found)
        if (wanted := rule.one(found, value)) != found:
            _SLOT.pack_into(content, slot * _SLOT_BYTES, wanted)
            changed.add(bucket)
    for bucket in changed:
        if contents[bucket] == _EMPTY:
            transaction.delete(_KEY.pack(bucket), db=commits)
        else:
            transaction.put(_KEY.pack(bucket), _record(bucket, bytes(contents[bucket])), db=commits)
    return held


def _load(transaction: Transaction, commits: Any, buckets: list[int]) -> Int64s:
    """Return the slots of the buckets, one row per bucket; zeros if there is no record."""
    found = [_bucket(transaction, commits, bucket) or _EMPTY for bucket in buckets]
    content = np.frombuffer(bytearray().join(found), dtype="<i8").astype(np.int64, copy=False)
    return content.reshape(-1, _SLOTS)


def _store(transaction: Transaction, commits: Any, buckets: list[int], content: Int64s) -> None:
    data = content.astype("<i8", copy=False).tobytes()
    is_used = np.asarray(content.any(axis=1)).tolist()
    items = []
    for index, bucket in enumerate(buckets):
        key = _KEY.pack(bucket)
        if not is_used[index]:
            transaction.delete(key, db=commits)
        else:
            items.append((key, _record(bucket, data[index * _CONTENT_BYTES : (index + 1) * _CONTENT_BYTES])))
    with transaction.cursor(commits) as cursor:
        cursor.putmulti(items)


def _clear_slots(transaction: Transaction, commits: Any, bucket: int, stop: int) -> int:
    """Clear the first `stop` slots of one bucket. Return how many were in use."""
    content = _load(transaction, commits, [bucket])
    gone = int(np.count_nonzero(content[:, :stop]))
    if gone:
        content[:, :stop] = NOT_FOUND
        _store(transaction, commits, [bucket], content)
    return gone


def _bucket(transaction: Transaction, commits: Any, bucket: int) -> bytes | None:
    """Return the bucket's slots, their checksum verified; None if there is no record."""
    key = _KEY.pack(bucket)
    value = transaction.get(key, db=commits)
    return None if value is None else _checked(key, value)


def _record(bucket: int, slots: bytes) -> bytes:
    return slots + crc32(slots, crc32(_KEY.pack(bucket))).to_bytes(8, "little")


def _checked(key: bytes, value: bytes) -> bytes:
    slots = value[:_CONTENT_BYTES]
    if len(value) != _BUCKET_BYTES or crc32(slots, crc32(key)) != int.from_bytes(value[_CONTENT_BYTES:], "little"):
        first = int.from_bytes(key) * _SPAN
        raise Corruption(
            f"commit-table entries of starts {first} … {first + _SPAN - TIMESTAMP_STEP}: the checksum does not match",
            start_ts=first,
        )
    return slots
