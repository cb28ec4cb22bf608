"""The differences between a folder's present state and that of a backup, record by record, as a file.

LMDB's records are compared byte by byte, regardless of their meaning: cells, dropped or recreated tables, catalog,
commits, idempotency keys, index rows, expiry floors. So a restore reproduces the backup's moment exactly, and nothing
from between the two states needs to be kept (decision 0092).

The changes are in the order of databases and keys:

    number of the database   1 byte, as in `DATABASES`
    length of the key        2 bytes, little-endian
    length of the value      4 bytes, little-endian; all ones: the record was deleted
    key, value

The present data are compared with the full backup, record by record. The changes in the incremental backups since then,
a short list, decide which of the differences are old, and which other records must be written:

    differs from the full backup   changed since the full backup   written
    yes                            no                              the present record
    yes                            yes, to the same                nothing
    yes                            yes, to something else          the present record
    no                             yes                             the present record, equal to that in the full backup
"""

from __future__ import annotations

import heapq
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Final

import lmdb

from pyomid.crashpoints import crash_point
from pyomid.errors import Corruption
from pyomid.storage.embedded.environment import DATA_FILE, Environment, HeldState, Transaction, mapped
from pyomid.storage.embedded.layout import DATABASES
from pyomid.system import open_own

_HEAD: Final = struct.Struct("<BHI")
_GONE: Final = 0xFFFFFFFF
_BUFFER_BYTES: Final = 1 << 20
_BATCH: Final = 5_000
"""Changes applied in one transaction."""

Change = tuple[int, bytes, bytes | None]
"""Number of the database, key, value; None: the record was deleted."""
Records = Iterator[tuple[bytes, bytes]]

_reading = threading.Lock()
"""Serializes backups that extend the same one: lmdb opens no file twice in a process."""


def write_changes(held: HeldState, whole_folder: Path, former_changes: list[Path], path: Path) -> None:
    """Write the changes since the last backup of a chain into the file `path`. Not synced.

    `whole_folder`: the environment in the full backup; `former_changes`: the files of the later ones, oldest first."""
    with _reading, _opened(whole_folder) as whole, whole.begin() as former:
        changes = _since(
            _differences(held, whole, former), newest([read_changes(each) for each in former_changes]), held
        )
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", _BUFFER_BYTES) as file:
            for number, key, value in changes:
                file.write(_HEAD.pack(number, len(key), _GONE if value is None else len(value)))
                file.write(key)
                file.write(value or b"")
    crash_point("storage.backup.compared")


def apply_changes(environment: Environment, path: Path) -> None:
    """Apply the changes of a file. Durable on return."""
    changes = read_changes(path)
    while batch := list(islice(changes, _BATCH)):

        def write(transaction: Transaction, batch: list[Change] = batch) -> None:
            for number, key, value in batch:
                database = environment.databases[DATABASES[number]]
                if value is None:
                    transaction.delete(key, db=database)
                else:
                    transaction.put(key, value, db=database)

        environment.write(write)


def read_changes(path: Path) -> Iterator[Change]:
    """Yield the changes of a file. `Corruption` if it is truncated; the caller checks its checksum."""
    with open(path, "rb", _BUFFER_BYTES) as file:
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                raise Corruption(f"{path} is truncated: it ends within a change")
            number, key_bytes, value_bytes = _HEAD.unpack(head)
            key = file.read(key_bytes)
            value = None if value_bytes == _GONE else file.read(value_bytes)
            if number >= len(DATABASES) or len(key) < key_bytes or (value is not None and len(value) < value_bytes):
                raise Corruption(f"{path} is damaged in the change of {key[:60]!r}")
            yield number, key, value


def newest(files: list[Iterator[Change]]) -> Iterator[Change]:
    """Merge the changes of several files, the oldest file first: yield each record's last change."""

    def ranked(rank: int, changes: Iterator[Change]) -> Iterator[tuple[int, bytes, int, bytes | None]]:
        return ((number, key, rank, value) for number, key, value in changes)

    merged = heapq.merge(*(ranked(-rank, changes) for rank, changes in enumerate(files)), key=itemgetter(0, 1, 2))
    for (number, key), same in groupby(merged, key=itemgetter(0, 1)):
        yield number, key, next(same)[3]


def _since(found: Iterable[Change], former: Iterator[Change], held: HeldState) -> Iterator[Change]:
    """Yield the changes since the last backup. `found`: the differences from the full backup; `former`: the changes
    between that and the last one."""
    change = next(former, None)
    for now in found:
        while change is not None and change[:2] < now[:2]:
            yield change[0], change[1], held.get(DATABASES[change[0]], change[1])
            change = next(former, None)
        if change is not None and change[:2] == now[:2]:
            if change[2] != now[2]:
                yield now
            change = next(former, None)
        else:
            yield now
    while change is not None:
        yield change[0], change[1], held.get(DATABASES[change[0]], change[1])
        change = next(former, None)


def _differences(held: HeldState, whole: lmdb.Environment, former: Transaction) -> Iterator[Change]:
    for number, name in enumerate(DATABASES):
        with former.cursor(whole.open_db(name, txn=former, create=False)) as cursor, held.records(name) as records:
            for key, value in differences(cursor.iternext(), records):
                yield number, key, value


def differences(old: Records, new: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the changes that turn `old` into `new`; both in the order of keys."""
    before, now = next(old, None), next(new, None)
    while before is not None or now is not None:
        if before == now:
            for before in old:
                now = next(new, None)
                if before != now:
                    break
            else:
                before, now = None, next(new, None)
        elif now is None or (before is not None and before[0] < now[0]):
            assert before is not None
            yield before[0], None
            before = next(old, None)
        else:
            yield now
            if before is not None and before[0] == now[0]:
                before = next(old, None)
            now = next(new, None)


def _opened(folder: Path) -> lmdb.Environment:
    """Open a backup's environment. It never changes, so it needs no locks and may be on a read-only file system."""
    try:
        return lmdb.open(os.fspath(folder), readonly=True, lock=False, create=False, max_dbs=len(DATABASES))
    except lmdb.Error as error:
        raise mapped(error, folder / DATA_FILE) from error
