"""Compacted commits: entries that have left the log, in LMDB, 128 starts a record.

    bucket, 8 bytes big-endian → 128 slots of 8 bytes and a checksum, all little-endian

Starts are multiples of 50, and half of all timestamps are starts. So the entries of 128 neighbouring timestamps share a
record; the slot of a start holds its commit timestamp, SEALED, or 0. Thousands of entries then change tens of records,
in order, where one record for each entry would cost one B-tree insertion each (decision 0011). A record whose slots are
all 0 is deleted. If an epoch is given, each write checks it against the leader state in its transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final
from zlib import crc32

from pyomid.arrays import NDArray, np
from pyomid.errors import Corruption
from pyomid.storage.embedded.commit_log.segment import Rows
from pyomid.storage.embedded.environment import Environment, Transaction
from pyomid.storage.embedded.layout import COMMITS
from pyomid.storage.embedded.leader_state import check_epoch, read_number
from pyomid.types import NOT_FOUND, SEALED, TIMESTAMP_STEP

Int64s = NDArray[np.int64]

_SLOTS: Final = 128
"""A record has 1032 bytes, so three share a page of LMDB; beyond 2038 bytes each would take a page of its own."""
_SPAN: Final = _SLOTS * TIMESTAMP_STEP
_SLOT_BYTES: Final = 8
_CONTENT_BYTES: Final = _SLOTS * _SLOT_BYTES
_BUCKET_BYTES: Final = _CONTENT_BYTES + 8
_KEY: Final = struct.Struct(">Q")
RECORD_TIMESTAMPS: Final = _SLOTS
"""Timestamps that share one record."""
RECORD_BYTES: Final = _KEY.size + _BUCKET_BYTES
"""Key and value of a record, without LMDB's page overhead."""
_SLOT: Final = struct.Struct("<q")
_WRITE_BUCKETS_MAX: Final = 2000
"""Records of one write transaction: the next flush waits a few milliseconds for it."""
_WRITE_ROWS_MAX: Final = 100_000
_READ_BUCKETS_MAX: Final = 500
_ENTRIES_A_RECORD: Final = 16
"""For `Environment.write`: this many entries cost about as much as a record of data."""


class CompactedCommits:
    """The commit entries of one environment."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def lookup(self, starts: Sequence[int]) -> list[int]:
        return self._environment.read(partial(self._lookup, starts=starts))

    def check_epoch(self, epoch: int | None) -> None:
        """`Deposed` if the leader state holds another epoch."""
        if epoch is not None:
            self._environment.read(lambda transaction: check_epoch(self._environment, transaction, epoch))

    def check_in_place(self) -> None:
        """`Misuse` if the folder is no longer the one that was opened."""
        self._environment.check_in_place()

    def epoch(self) -> int:
        """The leader state's value, fresh."""
        return self._environment.read(lambda transaction: read_number(self._environment, transaction, b"epoch"))

    def newest(self) -> int:
        """The greatest start that has an entry here, or more."""

        def last(transaction: Transaction) -> int:
            with transaction.cursor(self._commits) as cursor:
                return (_KEY.unpack(cursor.key())[0] + 1) * _SPAN if cursor.last() else 0

        return self._environment.read(last)

    def store(self, rows: Rows, epoch: int | None = None) -> None:
        """Sets each start's slot to its value; durable on return. In several transactions, ascending."""
        for first in range(0, len(rows), _WRITE_ROWS_MAX):
            part = rows[first : first + _WRITE_ROWS_MAX]
            self._change(part[:, 0], partial(_set, part[:, 1]), epoch)

    def delete(self, starts: Int64s, epoch: int | None = None) -> None:
        """Marks stay."""
        if len(starts):
            self._change(starts, _without_commits, epoch)

    def delete_below(self, horizon: int, epoch: int | None = None) -> int:
        """In several transactions, oldest first, so that another write waits for one of them at most."""
        total = 0
        while True:
            gone, is_done = self._environment.write(
                partial(self._delete_some, horizon=horizon, epoch=epoch), records=_WRITE_BUCKETS_MAX
            )
            total += gone
            if is_done:
                return total

    def entries(self) -> Iterator[tuple[int, int]]:
        """In the order of starts, a bounded number at a time."""
        after = 0
        while part := self._environment.read(partial(self._buckets_from, bucket=after)):
            for bucket, content in part:
                slots = np.frombuffer(content, dtype="<i8")
                for slot in np.flatnonzero(slots).tolist():
                    yield bucket * _SPAN + slot * TIMESTAMP_STEP, int(slots[slot])
            after = part[-1][0] + 1

    def _lookup(self, transaction: Transaction, *, starts: Sequence[int]) -> list[int]:
        buckets: dict[int, bytes | None] = {}
        found = []
        for start in starts:
            bucket, slot = divmod(start // TIMESTAMP_STEP, _SLOTS)
            if bucket not in buckets:
                buckets[bucket] = self._bucket(transaction, bucket)
            content = buckets[bucket]
            found.append(NOT_FOUND if content is None else _SLOT.unpack_from(content, slot * _SLOT_BYTES)[0])
        return found

    # Buckets

    def _change(self, starts: Int64s, change: Callable[[Int64s], Int64s], epoch: int | None) -> None:
        """In one transaction: `change` gets the slots of `starts` and returns their new values."""
        units = starts // TIMESTAMP_STEP
        buckets, place = np.unique(units // _SLOTS, return_inverse=True)
        slot = units % _SLOTS

        def write(transaction: Transaction) -> None:
            self._check_epoch(transaction, epoch)
            content = self._load(transaction, buckets.tolist())
            before = content.copy()
            content[place, slot] = change(content[place, slot])
            changed = np.flatnonzero((content != before).any(axis=1))
            self._store(transaction, buckets[changed].tolist(), content[changed])

        self._environment.write(write, records=len(buckets) + len(starts) // _ENTRIES_A_RECORD)

    def _load(self, transaction: Transaction, buckets: list[int]) -> Int64s:
        """The slots of the buckets, one row for each; zeros if there is no record."""
        empty = bytes(_CONTENT_BYTES)
        found = [self._bucket(transaction, bucket) or empty for bucket in buckets]
        content = np.frombuffer(bytearray().join(found), dtype="<i8").astype(np.int64, copy=False)
        return content.reshape(-1, _SLOTS)

    def _store(self, transaction: Transaction, buckets: list[int], content: Int64s) -> None:
        data = content.astype("<i8", copy=False).tobytes()
        is_used = np.asarray(content.any(axis=1)).tolist()
        items = []
        for index, bucket in enumerate(buckets):
            key = _KEY.pack(bucket)
            if not is_used[index]:
                transaction.delete(key, db=self._commits)
            else:
                items.append((key, _record(bucket, data[index * _CONTENT_BYTES : (index + 1) * _CONTENT_BYTES])))
        with transaction.cursor(self._commits) as cursor:
            cursor.putmulti(items)

    def _bucket(self, transaction: Transaction, bucket: int) -> bytes | None:
        """Its slots, checked."""
        key = _KEY.pack(bucket)
        value = transaction.get(key, db=self._commits)
        return None if value is None else _checked(key, value)

    def _delete_some(self, transaction: Transaction, *, horizon: int, epoch: int | None) -> tuple[int, bool]:
        """Deletes entries and invalidation markers: how many, and whether they were the last below the horizon."""
        self._check_epoch(transaction, epoch)
        gone = 0
        last, slots_below = divmod(-(-horizon // TIMESTAMP_STEP), _SLOTS)
        with transaction.cursor(self._commits) as cursor:
            more = cursor.first()
            for _ in range(_WRITE_BUCKETS_MAX):
                if not more or cursor.key() >= _KEY.pack(last):
                    return gone + self._clear_slots(transaction, last, slots_below), True
                gone += int(np.count_nonzero(np.frombuffer(_checked(cursor.key(), cursor.value()), dtype="<i8")))
                more = cursor.delete() and cursor.key() != b""
        return gone, False

    def _clear_slots(self, transaction: Transaction, bucket: int, stop: int) -> int:
        """The first `stop` slots of one bucket."""
        content = self._load(transaction, [bucket])
        gone = int(np.count_nonzero(content[:, :stop]))
        if gone:
            content[:, :stop] = NOT_FOUND
            self._store(transaction, [bucket], content)
        return gone

    def _buckets_from(self, transaction: Transaction, *, bucket: int) -> list[tuple[int, bytes]]:
        with transaction.cursor(self._commits) as cursor:
            if not cursor.set_range(_KEY.pack(bucket)):
                return []
            items = islice(cursor.iternext(), _READ_BUCKETS_MAX)
            return [(_KEY.unpack(key)[0], _checked(key, value)) for key, value in items]

    @property
    def _commits(self) -> Any:
        return self._environment.databases[COMMITS]

    def _check_epoch(self, transaction: Transaction, epoch: int | None) -> None:
        if epoch is not None:
            check_epoch(self._environment, transaction, epoch)


def _set(values: Int64s, slots: Int64s) -> Int64s:
    return values


def _without_commits(slots: Int64s) -> Int64s:
    return np.where(slots == SEALED, SEALED, NOT_FOUND)


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
