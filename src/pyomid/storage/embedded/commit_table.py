"""`CommitTable` over LMDB: the TSO writes, everybody else maps it read-only.

    commits    start, 8 bytes big-endian → commit timestamp, 8 bytes little-endian, CRC-32 of both, 4 bytes
    marks      start, 8 bytes big-endian → nothing; nearly always empty

One write transaction covers the entries of a flush, the marks that refuse some of them and the epoch they are
written for: no seal and no later leader can come between.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final
from zlib import crc32

from pyomid.errors import Corruption
from pyomid.storage.embedded.environments import MAP_BYTES_DEFAULT, Transaction, release
from pyomid.storage.embedded.epoch_row import check_epoch
from pyomid.storage.embedded.layout import COMMITS, MARKS, open_commits, open_folder
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

_START: Final = struct.Struct(">Q")
_COMMIT: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<QI")
ENTRY_BYTES: Final = _START.size + _ENTRY.size
"""Key and value of one entry, without LMDB's page overhead."""
_DELETES_MAX: Final = 20_000
"""Deletes of one write transaction; the TSO's next flush waits for it."""
_READS_MAX: Final = 10_000
"""Entries that `entries` takes from one read transaction."""


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
        keys = [_START.pack(start) for start in starts]

        def read(transaction: Transaction) -> list[int]:
            get, marks = transaction.get, self._marks_if_any(transaction)
            found = [get(key, db=self._commits) for key in keys]
            commits = [
                NOT_FOUND if value is None else _commit_of(key, value) for key, value in zip(keys, found, strict=True)
            ]
            if marks is None:
                return commits
            return [commit if get(key, db=marks) is None else SEALED for key, commit in zip(keys, commits, strict=True)]

        return self._environment.read(read)

    def put(self, entries: Sequence[tuple[int, int]]) -> list[int]:
        items = sorted(_entry(start, commit) for start, commit in entries)

        def write(transaction: Transaction) -> list[int]:
            self._check_epoch(transaction)
            accepted, refused = self._without_marked(transaction, items)
            with transaction.cursor(self._commits) as cursor:
                append = bool(accepted) and (not cursor.last() or cursor.key() < accepted[0][0])
                cursor.putmulti(accepted, append=append and _is_ascending(accepted))
            return refused

        return self._environment.write(write, records=len(items)) if items else []

    def _without_marked(
        self, transaction: Transaction, items: list[tuple[bytes, bytes]]
    ) -> tuple[list[tuple[bytes, bytes]], list[int]]:
        marks = self._marks_if_any(transaction)
        if marks is None:
            return items, []
        marked = {key for key, _ in items if transaction.get(key, db=marks) is not None}
        refused = [_START.unpack(key)[0] for key, _ in items if key in marked]
        return [item for item in items if item[0] not in marked], refused

    def put_unless_sealed(self, start: int, commit_ts: int) -> bool:
        return not self.put([(start, commit_ts)])

    def put_branches(self, branches: Sequence[int], commit_ts: int) -> None:
        items = sorted(_entry(branch, commit_ts) for branch in branches)

        def write(transaction: Transaction) -> None:
            self._check_epoch(transaction)
            marks = self._marks_if_any(transaction)
            for key, value in items:
                if marks is not None:
                    transaction.delete(key, db=marks)
                transaction.put(key, value, db=self._commits)

        self._environment.write(write, records=len(items))

    def seal(self, start: int) -> SealOutcome:
        key = _START.pack(start)

        def write(transaction: Transaction) -> SealOutcome:
            self._check_epoch(transaction)
            marks = self._environment.databases[MARKS]
            value = transaction.get(key, db=self._commits)
            if value is not None and transaction.get(key, db=marks) is None:
                return SealOutcome(placed=False, commit_ts=_commit_of(key, value))
            transaction.put(key, b"", db=marks)
            return SealOutcome(placed=True)

        return self._environment.write(write)

    def delete(self, starts: Sequence[int]) -> None:
        keys = sorted(_START.pack(start) for start in starts)
        for first in range(0, len(keys), _DELETES_MAX):
            self._delete(keys[first : first + _DELETES_MAX])

    def _delete(self, keys: list[bytes]) -> None:
        def write(transaction: Transaction) -> None:
            self._check_epoch(transaction)
            commits = self._commits
            for key in keys:
                transaction.delete(key, db=commits)

        self._environment.write(write, records=len(keys))

    def delete_below(self, horizon: int) -> int:
        """In pieces, oldest first: a commit waits for one piece at most."""
        total = 0
        while gone := self._environment.write(lambda transaction: self._delete_piece(transaction, horizon)):
            total += gone
        return total

    def _delete_piece(self, transaction: Transaction, horizon: int) -> int:
        """An entry beside its mark (a zombie's, before marks were checked) counts once, as in `count`.

        A cursor that deleted the last entry stands nowhere and has an empty key.
        """
        self._check_epoch(transaction)
        stop, gone = _START.pack(max(horizon, 0)), 0
        marks = self._environment.databases[MARKS]
        has_marks = self._marks_if_any(transaction) is not None
        with transaction.cursor(self._commits) as cursor:
            more = cursor.first()
            while more and gone < _DELETES_MAX and b"" != cursor.key() < stop:
                if has_marks:
                    transaction.delete(cursor.key(), db=marks)
                more = cursor.delete()
                gone += 1
        with transaction.cursor(marks) as cursor:
            more = cursor.first()
            while more and gone < _DELETES_MAX and b"" != cursor.key() < stop:
                more = cursor.delete()
                gone += 1
        return gone

    def entries(self) -> Iterator[tuple[int, int]]:
        """In the order of starts, a piece at a time."""
        return self._entries()

    def _entries(self) -> Iterator[tuple[int, int]]:
        after = 0
        while piece := self._environment.read(partial(self._entries_from, start=after)):
            yield from piece
            after = piece[-1][0] + 1

    def _entries_from(self, transaction: Transaction, start: int) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for database in (self._commits, self._environment.databases[MARKS]):
            with transaction.cursor(database) as cursor:
                if cursor.set_range(_START.pack(start)):
                    for key, value in islice(cursor.iternext(), _READS_MAX):
                        found[_START.unpack(key)[0]] = _commit_of(key, value) if value else SEALED
        return sorted(found.items())[:_READS_MAX]

    def count(self) -> int:
        def read(transaction: Transaction) -> int:
            entries: int = transaction.stat(self._commits)["entries"]
            marks = self._marks_if_any(transaction)
            if marks is None:
                return entries
            with transaction.cursor(marks) as cursor:
                keys = list(cursor.iternext(values=False))
            return entries + sum(transaction.get(key, db=self._commits) is None for key in keys)

        return self._environment.read(read)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            release(self._environment)

    @property
    def _commits(self) -> Any:
        return self._environment.databases[COMMITS]

    def _marks_if_any(self, transaction: Transaction) -> Any:
        """None while no mark stands at all: the usual case, and then nobody looks for one."""
        marks = self._environment.databases[MARKS]
        return marks if transaction.stat(marks)["entries"] else None

    def _check_epoch(self, transaction: Transaction) -> None:
        if self._epoch is not None:
            check_epoch(self._environment, transaction, self._epoch)


def _entry(start: int, commit_ts: int) -> tuple[bytes, bytes]:
    key = _START.pack(start)
    return key, _ENTRY.pack(commit_ts, crc32(_COMMIT.pack(commit_ts), crc32(key)))


def _commit_of(key: bytes, value: bytes) -> int:
    if len(value) != _ENTRY.size or crc32(value[:8], crc32(key)).to_bytes(4, "little") != value[8:]:
        start = int.from_bytes(key)
        raise Corruption(f"commit-table entry of start {start}: its checksum does not match", start_ts=start)
    return int.from_bytes(value[:8], "little")


def _is_ascending(items: list[tuple[bytes, bytes]]) -> bool:
    """Sorted items whose keys are unique too, as appending asks."""
    return all(left[0] < right[0] for left, right in pairwise(items))
