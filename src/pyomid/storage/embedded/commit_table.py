"""`CommitTable` over LMDB: the TSO writes, everybody else maps it read-only.

    bucket, 8 bytes big-endian → 128 slots of 8 bytes and a checksum, all little-endian

Starts are multiples of 50, and half of all timestamps are starts: so the entries of 128 neighbouring timestamps
share a record, a start's slot holding its commit timestamp, SEALED, or 0. A flush of thousands of commits touches
tens of records, in order, where an entry a record would cost a B-tree insertion each (decision 0011). A record whose
slots are all 0 is deleted.

One write transaction covers a flush, the marks that refuse some of it, and the epoch it is written for: no seal and
no later leader can come between.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pyomid.errors import Corruption, Misuse
from pyomid.storage.embedded.environments import MAP_BYTES_DEFAULT, Transaction, release
from pyomid.storage.embedded.epoch_row import check_epoch
from pyomid.storage.embedded.layout import COMMITS, open_commits, open_folder
from pyomid.types import NOT_FOUND, SEALED, TIMESTAMP_STEP, SealOutcome

T = TypeVar("T")
Int64s = NDArray[np.int64]

_SLOTS: Final = 128
"""1032 bytes: three records to a page of LMDB; beyond 2038 bytes each would take a page of its own."""
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
_PIECE_BUCKETS_MAX: Final = 2000
"""Of one write transaction: the next flush waits for it a few milliseconds."""
_READ_BUCKETS_MAX: Final = 500
_FEW_ENTRIES: Final = 8
_ENTRIES_A_RECORD: Final = 16
"""For `Environment.write`: how many entries cost about what a record costs."""


class EmbeddedCommitTable:
    """The commit table of one folder."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        writable: bool,
        create: bool = True,
        map_bytes: int = MAP_BYTES_DEFAULT,
    ) -> None:
        path = open_folder(folder, create=create)
        self._environment = open_commits(path, writable=writable, map_bytes=map_bytes)
        self._epoch: int | None = None
        self._closed = False

    def serve_epoch(self, epoch: int) -> None:
        """From now on every write is one transaction with a look at the epoch row: `Deposed` where it moved on."""
        self._epoch = epoch

    def lookup(self, starts: Sequence[int]) -> list[int]:
        return self._environment.read(partial(self._lookup, starts=starts))

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

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        if len(entries) <= _FEW_ENTRIES:
            return self._put_few(entries)
        return self.put_block(np.array(entries, dtype=np.int64).reshape(-1, 2))

    def put_block(self, entries: Int64s) -> list[int]:
        """`put` of rows (start, commit); of one start twice the last counts."""
        if len(entries) <= _FEW_ENTRIES:
            return self._put_few(entries.tolist())
        starts, commits = entries[:, 0], entries[:, 1]

        def change(slots: Int64s) -> tuple[Int64s, list[int]]:
            refused = slots == SEALED
            return np.where(refused, SEALED, commits), starts[refused].tolist()

        return self._change(starts, change)

    def _put_few(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        """`put_block` without arrays, whose fixed cost is that of some ten entries: a lone client waits for it."""
        for start, _ in entries:
            _check_start(start)

        def write(transaction: Transaction) -> list[int]:
            self._check_epoch(transaction)
            refused: list[int] = []
            buckets: dict[int, bytearray] = {}
            for start, commit_ts in entries:
                bucket, slot = divmod(start // TIMESTAMP_STEP, _SLOTS)
                slots = buckets.get(bucket)
                if slots is None:
                    found = self._bucket(transaction, bucket)
                    slots = buckets[bucket] = bytearray(_CONTENT_BYTES if found is None else found)
                if _SLOT.unpack_from(slots, slot * _SLOT_BYTES)[0] == SEALED:
                    refused.append(start)
                else:
                    _SLOT.pack_into(slots, slot * _SLOT_BYTES, commit_ts)
            for bucket in sorted(buckets):
                transaction.put(_KEY.pack(bucket), _record(bucket, bytes(buckets[bucket])), db=self._commits)
            return refused

        return self._environment.write(write, records=len(entries))

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return not self.put([(start, commit_ts)])

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        def change(slots: Int64s) -> tuple[Int64s, None]:
            return np.full(len(slots), commit_ts, dtype=np.int64), None

        self._change(np.array(branches, dtype=np.int64), change)

    def seal(self, start: int) -> SealOutcome:
        return self.seal_many([start])[0]

    def seal_many(self, starts: Sequence[int]) -> list[SealOutcome]:
        """All in one transaction: a large commit that a take-over finds undecided has thousands of branches."""

        def change(slots: Int64s) -> tuple[Int64s, list[SealOutcome]]:
            is_free = (slots == NOT_FOUND) | (slots == SEALED)
            outcomes = [
                SealOutcome(placed=True) if free else SealOutcome(placed=False, commit_ts=found)
                for free, found in zip(is_free.tolist(), slots.tolist(), strict=True)
            ]
            return np.where(is_free, SEALED, slots), outcomes

        return self._change(np.array(starts, dtype=np.int64), change) if starts else []

    def delete(self, starts: Sequence[int]) -> None:
        def change(slots: Int64s) -> tuple[Int64s, None]:
            return np.where(slots == SEALED, SEALED, NOT_FOUND), None

        if len(starts):
            self._change(np.array(starts, dtype=np.int64), change)

    def delete_below(self, horizon: int) -> int:
        """In pieces, oldest first: a commit waits for one piece at most."""
        total = 0
        while True:
            gone, is_done = self._environment.write(
                partial(self._delete_piece, horizon=horizon), records=_PIECE_BUCKETS_MAX
            )
            total += gone
            if is_done:
                return total

    def entries(self) -> Iterator[tuple[int, int]]:
        """In the order of starts, a piece at a time."""
        self._environment.read(lambda transaction: None)
        return self._entries()

    def count(self) -> int:
        return sum(1 for _ in self.entries())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            release(self._environment)

    # Buckets

    def _change(self, starts: Int64s, change: Callable[[Int64s], tuple[Int64s, T]]) -> T:
        """In one transaction: `change` gets the slots of `starts`, returns what they become and what this returns."""
        _check_starts(starts)
        units = starts // TIMESTAMP_STEP
        buckets, place = np.unique(units // _SLOTS, return_inverse=True)
        slot = units % _SLOTS

        def write(transaction: Transaction) -> T:
            self._check_epoch(transaction)
            content = self._load(transaction, buckets.tolist())
            slots, answer = change(content[place, slot])
            before = content.copy()
            content[place, slot] = slots
            changed = np.flatnonzero((content != before).any(axis=1))
            self._store(transaction, buckets[changed].tolist(), content[changed])
            return answer

        return self._environment.write(write, records=len(buckets) + len(starts) // _ENTRIES_A_RECORD)

    def _load(self, transaction: Transaction, buckets: list[int]) -> Int64s:
        """Their slots, a row a bucket; zeros where there is no record."""
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

    def _delete_piece(self, transaction: Transaction, *, horizon: int) -> tuple[int, bool]:
        """How many entries and marks went, and whether those were the last below the horizon."""
        self._check_epoch(transaction)
        gone = 0
        last, slots_below = divmod(-(-horizon // TIMESTAMP_STEP), _SLOTS)
        with transaction.cursor(self._commits) as cursor:
            more = cursor.first()
            for _ in range(_PIECE_BUCKETS_MAX):
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

    def _entries(self) -> Iterator[tuple[int, int]]:
        after = 0
        while piece := self._environment.read(partial(self._buckets_from, bucket=after)):
            for bucket, content in piece:
                slots = np.frombuffer(content, dtype="<i8")
                for slot in np.flatnonzero(slots).tolist():
                    yield bucket * _SPAN + slot * TIMESTAMP_STEP, int(slots[slot])
            after = piece[-1][0] + 1

    def _buckets_from(self, transaction: Transaction, *, bucket: int) -> list[tuple[int, bytes]]:
        with transaction.cursor(self._commits) as cursor:
            if not cursor.set_range(_KEY.pack(bucket)):
                return []
            items = islice(cursor.iternext(), _READ_BUCKETS_MAX)
            return [(_KEY.unpack(key)[0], _checked(key, value)) for key, value in items]

    @property
    def _commits(self) -> Any:
        return self._environment.databases[COMMITS]

    def _check_epoch(self, transaction: Transaction) -> None:
        if self._epoch is not None:
            check_epoch(self._environment, transaction, self._epoch)


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


def _check_starts(starts: Int64s) -> None:
    bad = starts[(starts % TIMESTAMP_STEP != 0) | (starts <= 0)]
    if len(bad):
        _check_start(int(bad[0]))


def _check_start(start: int) -> None:
    if start <= 0 or start % TIMESTAMP_STEP:
        raise Misuse(f"start {start} is not a start timestamp: those are multiples of {TIMESTAMP_STEP} above 0")
