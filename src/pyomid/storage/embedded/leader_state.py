"""`LeaderState` over LMDB, in the commit table's environment, so that one transaction can span both.

epoch, ceiling, watermark, horizon,
retention_ms                          name → 8 bytes, big-endian
L start                               a lease
P start                               a pending record: its branches, 8 bytes each
T start                               a time point: milliseconds since 1970
id                                    the database's
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from pyomid.errors import Corruption
from pyomid.ports import LeaderState
from pyomid.storage.checks import deposed
from pyomid.storage.embedded.environment import MAP_BYTES_DEFAULT, Commit, Environment, Transaction, release
from pyomid.storage.embedded.layout import EPOCH, open_commits, open_folder
from pyomid.types import LeaderRecord, LeaderStateChanges, PendingCommit, TimePoint

_NUMBER: Final = struct.Struct(">Q")
_LEASE: Final = b"L"
_ID: Final = b"id"
_PENDING: Final = b"P"
_TIME: Final = b"T"


class EmbeddedLeaderState(LeaderState):
    """The leader state of one folder."""

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
        self._watermarks: tuple[Commit | None, tuple[int, int]] = (None, (0, 0))
        self._closed = False

    def database_id(self) -> bytes:
        def write(transaction: Transaction) -> bytes:
            database = self._environment.databases[EPOCH]
            transaction.put(_ID, os.urandom(16), overwrite=False, db=database)
            return bytes(transaction.get(_ID, db=database))

        def read(transaction: Transaction) -> bytes:
            return bytes(transaction.get(_ID, b"", db=self._environment.databases[EPOCH]))

        return self._environment.read(read) or self._environment.write(write)

    def forget_identity(self) -> None:
        """Of a folder whose files were copied, before anybody is served: it is another database."""
        forget_identity(self._environment)

    def read(self) -> LeaderRecord:
        return self._environment.read(self._state)

    def read_watermarks(self) -> tuple[int, int]:
        """As long as nothing was committed since they were read, they are what they were."""
        commit, watermarks = self._watermarks
        if commit is not None and self._environment.newest_commit() == commit:
            return watermarks
        commit, watermarks = self._environment.read(self._watermarks_at)
        self._watermarks = commit, watermarks
        return watermarks

    def _watermarks_at(self, transaction: Transaction) -> tuple[Commit | None, tuple[int, int]]:
        found = self._number(transaction, b"watermark"), self._number(transaction, b"horizon")
        return self._environment.commit_of(transaction), found

    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        def write(transaction: Transaction) -> bool:
            if self._number(transaction, b"epoch") != expected or self._number(transaction, b"ceiling") > epoch:
                return False
            self._put(transaction, b"epoch", epoch)
            self._put(transaction, b"ceiling", ceiling)
            return True

        return self._environment.write(write)

    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        def write(transaction: Transaction) -> None:
            check_epoch(self._environment, transaction, epoch)
            self._apply(transaction, changes)

        self._environment.write(write)

    def note_time(self, point: TimePoint, gone: Sequence[int] = ()) -> None:
        def write(transaction: Transaction) -> None:
            for start_ts in gone:
                transaction.delete(_TIME + _NUMBER.pack(start_ts), db=self._environment.databases[EPOCH])
            self._put(transaction, _TIME + _NUMBER.pack(point.start_ts), point.wall_ms)

        self._environment.write(write)

    def time_points(self) -> list[TimePoint]:
        return self._environment.read(
            lambda transaction: [
                TimePoint(int.from_bytes(key[1:]), int.from_bytes(value))
                for key, value in self._named(transaction, _TIME)
            ]
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            release(self._environment)

    def _apply(self, transaction: Transaction, changes: LeaderStateChanges) -> None:
        database = self._environment.databases[EPOCH]
        for name in ("ceiling", "watermark", "horizon", "retention_ms"):
            if (value := getattr(changes, name)) is not None:
                self._put(transaction, name.encode(), value)
        for start in changes.leases_removed:
            transaction.delete(_LEASE + _NUMBER.pack(start), db=database)
        for start in changes.leases_added:
            transaction.put(_LEASE + _NUMBER.pack(start), b"", db=database)
        for start in changes.pending_removed:
            transaction.delete(_PENDING + _NUMBER.pack(start), db=database)
        for record in changes.pending_added:
            branches = struct.pack(f">{len(record.branches)}Q", *record.branches)
            transaction.put(_PENDING + _NUMBER.pack(record.start_ts), branches, db=database)

    def _state(self, transaction: Transaction) -> LeaderRecord:
        leases = {int.from_bytes(key[1:]) for key, _ in self._named(transaction, _LEASE)}
        pending = [
            PendingCommit(int.from_bytes(key[1:]), struct.unpack(f">{len(value) // 8}Q", value))
            for key, value in self._named(transaction, _PENDING)
        ]
        return LeaderRecord(
            epoch=self._number(transaction, b"epoch"),
            ceiling=self._number(transaction, b"ceiling"),
            watermark=self._number(transaction, b"watermark"),
            horizon=self._number(transaction, b"horizon"),
            leases=frozenset(leases),
            pending=tuple(pending),
            retention_ms=self._number(transaction, b"retention_ms"),
        )

    def _named(self, transaction: Transaction, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Records whose names begin with that letter, ascending."""
        with transaction.cursor(self._environment.databases[EPOCH]) as cursor:
            if cursor.set_range(kind):
                for key, value in cursor:
                    if not key.startswith(kind):
                        return
                    yield bytes(key), bytes(value)

    def _number(self, transaction: Transaction, name: bytes) -> int:
        return read_number(self._environment, transaction, name)

    def _put(self, transaction: Transaction, name: bytes, value: int) -> None:
        transaction.put(name, _NUMBER.pack(value), db=self._environment.databases[EPOCH])


def forget_identity(environment: Environment) -> bytes:
    """Of a copy: it is another database, whose first TSO gives it an id. Its leases are of no use, since their holders
    know the database that was copied. Returns that one's id."""

    def write(transaction: Transaction) -> bytes:
        database = environment.databases[EPOCH]
        with transaction.cursor(database) as cursor:
            leases = [key for key in cursor.iternext(values=False) if key.startswith(_LEASE)]
        for key in leases:
            transaction.delete(key, db=database)
        return transaction.pop(_ID, db=database) or b""

    return environment.write(write)


def read_identity(environment: Environment) -> bytes:
    """The database's id; empty before its first TSO gave it one."""
    return environment.read(lambda transaction: transaction.get(_ID, db=environment.databases[EPOCH]) or b"")


def read_number(environment: Environment, transaction: Transaction, name: bytes) -> int:
    """One number of the leader state; 0 before it was first written."""
    value = transaction.get(name, db=environment.databases[EPOCH])
    if value is None:
        return 0
    if len(value) != _NUMBER.size:
        raise Corruption(f"the leader state's {name.decode()} has {len(value)} bytes instead of {_NUMBER.size}")
    return int.from_bytes(value)


def check_epoch(environment: Environment, transaction: Transaction, epoch: int) -> None:
    """`Deposed` if the leader state holds another epoch; it ends the transaction."""
    found = read_number(environment, transaction, b"epoch")
    if found != epoch:
        raise deposed(epoch, found)
