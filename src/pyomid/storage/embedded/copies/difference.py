"""What differs between the data of one moment and that of a back-up, record by record, as a file.

Records of LMDB are compared as they are, whatever they mean: cells, tables that were dropped or made again, catalog,
idempotency keys, rows of indexes, floors. So what is restored is the held moment to the byte, and nothing needs to be
kept of what lay between the two (decision 0092).

The changes are in the order of databases and keys:

    number of the database   1 byte, as in `ENVIRONMENTS`
    length of the key        2 bytes, little-endian
    length of the value      4 bytes, little-endian; all ones: the record is not there any more
    key, value

The long loop compares the held data with the whole back-up. What the back-ups since then changed is a short list, which
decides what of the found differences is old, and what else has to be told:

    differs from the whole one   changed since the whole one   told
    yes                          no                            as it is now
    yes                          yes, to the same              nothing
    yes                          yes, to something else        as it is now
    no                           yes                           as it is now, which is as it was in the whole one
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
from pyomid.owned_files import open_own
from pyomid.storage.embedded.copies.description import CHANGES_FILE, DATA_FILE, Link
from pyomid.storage.embedded.environment import Environment, HeldState, Transaction, mapped
from pyomid.storage.embedded.layout import ENVIRONMENTS

_HEAD: Final = struct.Struct("<BHI")
_GONE: Final = 0xFFFFFFFF
_BUFFER_BYTES: Final = 1 << 20
_BATCH: Final = 5_000
"""Changes that are applied in one transaction."""
_DATABASES: Final = ENVIRONMENTS["data"]

Change = tuple[int, bytes, bytes | None]
"""Number of the database, key, value; None: the record is not there any more."""
Records = Iterator[tuple[bytes, bytes]]

_reading = threading.Lock()
"""lmdb opens no file twice in a process: two back-ups that go on from the same one take turns."""


def write_changes(held: HeldState, chain: list[Link], folder: Path) -> None:
    """Writes what the held data has changed since the last back-up of the chain. Not synced."""
    path = folder / CHANGES_FILE
    with _reading, _opened(chain[0].folder / "data") as whole, whole.begin() as former:
        found = _differences(held, whole, former)
        told = _since(found, newest([read_changes(link.folder / "data" / CHANGES_FILE) for link in chain[1:]]), held)
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", _BUFFER_BYTES) as file:
            for number, key, value in told:
                file.write(_HEAD.pack(number, len(key), _GONE if value is None else len(value)))
                file.write(key)
                file.write(value or b"")
    crash_point("storage.backup.compared")


def apply_changes(environment: Environment, path: Path) -> None:
    """Durable on return."""
    changes = read_changes(path)
    while batch := list(islice(changes, _BATCH)):

        def write(transaction: Transaction, batch: list[Change] = batch) -> None:
            for number, key, value in batch:
                database = environment.databases[_DATABASES[number]]
                if value is None:
                    transaction.delete(key, db=database)
                else:
                    transaction.put(key, value, db=database)

        environment.write(write)


def read_changes(path: Path) -> Iterator[Change]:
    """`Corruption` for a file that ends amid a change; its checksum is for the caller to look at."""
    with open(path, "rb", _BUFFER_BYTES) as file:
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                raise Corruption(f"{path} ends amid a change")
            number, key_bytes, value_bytes = _HEAD.unpack(head)
            key = file.read(key_bytes)
            value = None if value_bytes == _GONE else file.read(value_bytes)
            if number >= len(_DATABASES) or len(key) < key_bytes or (value is not None and len(value) < value_bytes):
                raise Corruption(f"{path} is damaged in the change of {key[:60]!r}")
            yield number, key, value


def newest(files: list[Iterator[Change]]) -> Iterator[Change]:
    """Of several files, the oldest first: each record's last change."""

    def ranked(rank: int, changes: Iterator[Change]) -> Iterator[tuple[int, bytes, int, bytes | None]]:
        return ((number, key, rank, value) for number, key, value in changes)

    merged = heapq.merge(*(ranked(-rank, changes) for rank, changes in enumerate(files)), key=itemgetter(0, 1, 2))
    for (number, key), same in groupby(merged, key=itemgetter(0, 1)):
        yield number, key, next(same)[3]


def _since(found: Iterable[Change], former: Iterator[Change], held: HeldState) -> Iterator[Change]:
    """`found`: what differs from the whole back-up; `former`: what changed between that and the last one."""
    change = next(former, None)
    for now in found:
        while change is not None and change[:2] < now[:2]:
            yield change[0], change[1], held.get(_DATABASES[change[0]], change[1])
            change = next(former, None)
        if change is not None and change[:2] == now[:2]:
            if change[2] != now[2]:
                yield now
            change = next(former, None)
        else:
            yield now
    while change is not None:
        yield change[0], change[1], held.get(_DATABASES[change[0]], change[1])
        change = next(former, None)


def _differences(held: HeldState, whole: lmdb.Environment, former: Transaction) -> Iterator[Change]:
    for number, name in enumerate(_DATABASES):
        with former.cursor(whole.open_db(name, txn=former, create=False)) as cursor, held.records(name) as records:
            for key, value in differences(cursor.iternext(), records):
                yield number, key, value


def differences(old: Records, new: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """What makes `new` of `old`; both in the order of keys."""
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
    """A back-up's environment, which never changes: without locks, so that it may lie where nothing can be written."""
    try:
        return lmdb.open(os.fspath(folder), readonly=True, lock=False, create=False, max_dbs=len(_DATABASES))
    except lmdb.Error as error:
        raise mapped(error, folder / DATA_FILE) from error
