"""`LeaderState` over LMDB, with these records:

epoch, ceiling, watermark, horizon,
retention_ms                          name → 8 bytes, big-endian
L start                               a lease
P start                               a pending record: its branches, 8 bytes each
id                                    the database's id
note                                  the births of `files.json` (`file_note`)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pyomid.errors import Corruption, Misuse
from pyomid.ports import LeaderState
from pyomid.storage.checks import deposed
from pyomid.storage.embedded.environment import MAP_BYTES_DEFAULT, Environment, Transaction, release
from pyomid.storage.embedded.file_note import check_note, renew_note
from pyomid.storage.embedded.layout import EPOCH, open_data, open_folder
from pyomid.types import LeaderRecord, LeaderStateChanges, PendingCommit

T = TypeVar("T")
_NUMBER: Final = struct.Struct(">Q")
_LEASE: Final = b"L"
ID_NAME: Final = b"id"
_PENDING: Final = b"P"


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
        self._path = path
        self._environment = open_data(path, map_bytes=map_bytes)
        self._writable = writable
        self._closed = False

    def database_id(self) -> bytes:
        def write(transaction: Transaction) -> bytes:
            database = self._environment.databases[EPOCH]
            transaction.put(ID_NAME, os.urandom(16), overwrite=False, db=database)
            return bytes(transaction.get(ID_NAME, db=database))

        def read(transaction: Transaction) -> bytes:
            return bytes(transaction.get(ID_NAME, b"", db=self._environment.databases[EPOCH]))

        return self._environment.read(read) or self._write(write)

    def check_note(self, *, is_noted: bool) -> None:
        """`Misuse` if the files are a copy (`file_note`); without a note, make the folder another database. Call before
        serving anybody."""
        if is_noted:
            check_note(self._path, self._environment)
        else:
            forget_identity(self._environment)

    def _write(self, work: Callable[[Transaction], T], *, renews_note: bool = False) -> T:
        if not self._writable:
            raise Misuse(f"the leader state in {self._path} is open for reading only: only the TSO writes it")
        return renew_note(self._path, self._environment, work) if renews_note else self._environment.write(work)

    def read(self) -> LeaderRecord:
        return self._environment.read(self._state)

    def read_watermarks(self) -> tuple[int, int]:
        return self._environment.read(self._watermarks)

    def _watermarks(self, transaction: Transaction) -> tuple[int, int]:
        return self._number(transaction, b"watermark"), self._number(transaction, b"horizon")

    def take_over(self, *, expected: int, epoch: int, ceiling: int) -> bool:
        def write(transaction: Transaction) -> bool:
            if self._number(transaction, b"epoch") != expected or self._number(transaction, b"ceiling") > epoch:
                return False
            self._put(transaction, b"epoch", epoch)
            self._put(transaction, b"ceiling", ceiling)
            return True

        return self._write(write, renews_note=True)

    def update(self, epoch: int, changes: LeaderStateChanges) -> None:
        def write(transaction: Transaction) -> None:
            check_epoch(self._environment, transaction, epoch)
            self._apply(transaction, changes)

        self._write(write, renews_note=changes.ceiling is not None)

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
        """Yield the records whose names begin with `kind`, ascending."""
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
    """Make a copy another database: its first TSO gives it a new id. Its leases are deleted, because their holders
    use the original. Return the original's id."""

    def write(transaction: Transaction) -> bytes:
        database = environment.databases[EPOCH]
        with transaction.cursor(database) as cursor:
            leases = [key for key in cursor.iternext(values=False) if key.startswith(_LEASE)]
        for key in leases:
            transaction.delete(key, db=database)
        return transaction.pop(ID_NAME, db=database) or b""

    return environment.write(write)


def read_identity(environment: Environment) -> bytes:
    """Return the database's id; empty before its first TSO has given it one."""
    return environment.read(lambda transaction: transaction.get(ID_NAME, db=environment.databases[EPOCH]) or b"")


def read_number(environment: Environment, transaction: Transaction, name: bytes) -> int:
    """Return one number of the leader state; 0 before its first write."""
    value = transaction.get(name, db=environment.databases[EPOCH])
    if value is None:
        return 0
    if len(value) != _NUMBER.size:
        raise Corruption(f"the leader state's {name.decode()} has {len(value)} bytes, not {_NUMBER.size}")
    return int.from_bytes(value)


def check_epoch(environment: Environment, transaction: Transaction, epoch: int) -> None:
    """Raise `Deposed`, which undoes the transaction, if the leader state holds another epoch."""
    found = read_number(environment, transaction, b"epoch")
    if found != epoch:
        raise deposed(epoch, found)
