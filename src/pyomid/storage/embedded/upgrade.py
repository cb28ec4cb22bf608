"""Upgrades of a folder of an earlier layout, in place.

Layout 1 had a second environment, `commits`, with commit table and leader state, and before it a log of the newest
commits in two segments. The step to layout 2, with what a kill leaves behind each line:

    nobody has the folder open: both LMDB lock files are locked        layout 1
    `commits` and the log's rows are copied into `data`                layout 1: its programs do not see the copy,
                                                                       and the next upgrade begins by dropping it
    LAYOUT says 2                                                      layout 2, and `commits` is there
    `commits` is removed                                               layout 2

The step to layout 3 only changes the version, because programs of layout 2 cannot read dense records. Existing records
are pairs (`records`) and stay as they are.

A program of layout 1 that opens the folder meanwhile waits for LMDB's lock file, and then finds no `commits`.
A segment of the log, all numbers of 8 bytes, little-endian:

    block 0     magic, generation, whether its records still count (1, 0), CRC-32 of the three
    then        records, one after the other:           generation, number of rows, CRC-32, rows (start, value)

The log ends at the first record with a wrong generation or checksum. If a valid record follows it, the log is damaged,
because each record was written only after the one before it was durable.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import lmdb
import numpy as np

from pyomid.crashpoints import crash_point
from pyomid.errors import Corruption, Unavailable
from pyomid.storage.embedded.commit_entries import Rows, replace_entries
from pyomid.storage.embedded.environment import MAP_BYTES_DEFAULT, make_lock_file, mapped
from pyomid.storage.embedded.layout import (
    COMMITS,
    DATA_FOLDER,
    DATABASES,
    EPOCH,
    FORMER_FOLDER,
    has_note,
    unusable,
    write_version,
)
from pyomid.system import open_own, sync_folder

DATABASES_1: Final = DATABASES[:4]
"""The LMDB databases of layout 1 in `data`."""
LOG_FILES: Final = ("recent-log.0", "recent-log.1")
_SEGMENT_BYTES: Final = 4 << 20
_BLOCK_BYTES: Final = 4096
_MAGIC: Final = 0x31_47_4F_4C_44_49_4D_4F
_HEADER: Final = struct.Struct("<QQQQ")
_RECORD: Final = struct.Struct("<QQQ")
_ROW_BYTES: Final = 16
_RECORDS_COPIED: Final = 10_000
_ROWS_COPIED: Final = 100_000


def upgrade_1(path: Path, *, shared: bool) -> None:
    """Upgrade layout 1 to layout 2. `Unavailable` while another process has the folder open."""
    try:
        with _alone(path, (DATA_FOLDER, FORMER_FOLDER), shared=shared):
            crash_point("storage.upgrade.begun")
            has_note(path, (DATA_FOLDER, FORMER_FOLDER))
            _copy_commits(path, logged_rows(path / FORMER_FOLDER))
            crash_point("storage.upgrade.copied")
            write_version(path, 2, shared=shared)
            crash_point("storage.upgrade.decided")
            remove_former(path)
    except lmdb.Error as error:
        raise mapped(error, path / DATA_FOLDER) from error
    except OSError as error:
        raise unusable(path, error) from error


def upgrade_2(path: Path, *, shared: bool) -> None:
    """Upgrade layout 2 to layout 3. `Unavailable` while another process has the folder open."""
    try:
        with _alone(path, (DATA_FOLDER,), shared=shared):
            write_version(path, 3, shared=shared)
    except OSError as error:
        raise unusable(path, error) from error


UPGRADES: Final[dict[int, Callable[..., None]]] = {1: upgrade_1, 2: upgrade_2}
"""Version → the function that upgrades a folder from it to the next version."""


def remove_former(path: Path) -> None:
    """Remove the former environment, which an upgrade to layout 2 leaves if it is killed at its end."""
    shutil.rmtree(path / FORMER_FOLDER, ignore_errors=True)
    sync_folder(path)


@contextmanager
def _alone(path: Path, folders: Sequence[str], *, shared: bool) -> Iterator[None]:
    """Lock out all programs of the folder: LMDB locks the first byte of its lock file while any process has the
    environment open."""
    with ExitStack() as held:
        for name in folders:
            make_lock_file(path / name, shared=shared)
            file = open_own(path / name / "lock.mdb", os.O_RDWR, shared=shared)
            held.callback(os.close, file)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            except (BlockingIOError, PermissionError) as error:
                raise Unavailable(
                    f"the database in {path} is of an earlier pyomid, and a program has it open: end all programs that "
                    "use it, and its TSO (pyomid tso, which ends by itself some time after the last of them); then it "
                    "is upgraded when it is opened",
                    folder=str(path),
                ) from error
        yield


def _copy_commits(path: Path, rows: Rows) -> None:
    """Copy commits and leader state into `data`. Durable on return. LMDB takes no locks, because `_alone` has them."""
    options: dict[str, Any] = {"lock": False, "create": False, "max_dbs": len(DATABASES)}
    former = lmdb.open(os.fspath(path / FORMER_FOLDER), readonly=True, **options)
    with closing(former), closing(_opened_data(path, options)) as data:
        for name in (COMMITS, EPOCH):
            source, target = former.open_db(name, create=False), data.open_db(name)
            with data.begin(write=True) as transaction:
                transaction.drop(target, delete=False)
            with former.begin() as reading:
                records = reading.cursor(source).iternext()
                while part := list(islice(records, _RECORDS_COPIED)):
                    with data.begin(write=True) as transaction, transaction.cursor(target) as cursor:
                        cursor.putmulti(part, append=True)
        commits, leader_state = data.open_db(COMMITS), data.open_db(EPOCH)
        for first in range(0, len(rows), _ROWS_COPIED):
            with data.begin(write=True) as transaction:
                replace_entries(transaction, commits, rows[first : first + _ROWS_COPIED])
        with data.begin(write=True) as transaction:
            # Later than the last commit: values dated by it live longer, never shorter.
            now = (time.time_ns() // 1_000_000).to_bytes(8)
            transaction.put(b"changed", now, db=leader_state)


def _opened_data(path: Path, options: dict[str, Any]) -> lmdb.Environment:
    """Open `data` with the largest map that fits this process's address space."""
    map_bytes = MAP_BYTES_DEFAULT
    while True:
        try:
            return lmdb.open(os.fspath(path / DATA_FOLDER), map_size=map_bytes, **options)
        except (MemoryError, lmdb.MemoryError, lmdb.Error):
            map_bytes //= 4
            if map_bytes < 1 << 28:
                raise


# ---------------------------------------------------------------- the log of layout 1


def logged_rows(folder: Path) -> Rows:
    """Return the last row of each start in both segments, also rows with value 0, sorted by start."""
    oldest_first = sorted(map(_read_segment, (folder / name for name in LOG_FILES)), key=lambda segment: segment[0])
    parts = [rows for _, records in oldest_first for rows in records]
    if not parts:
        return np.empty((0, 2), dtype=np.int64)
    newest_first = np.concatenate(parts)[::-1]
    _, first = np.unique(newest_first[:, 0], return_index=True)
    rows: Rows = newest_first[first]
    return rows


def _read_segment(path: Path) -> tuple[int, list[Rows]]:
    """Return the newest generation, and its records that count, in order. `Corruption` for damage that no interrupted
    write can leave."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, []
    if len(data) == _SEGMENT_BYTES and not any(data[: _HEADER.size]):  # made, and never begun
        return 0, []
    magic, generation, counts, checksum = _HEADER.unpack(data[: _HEADER.size].ljust(_HEADER.size, b"\0"))
    if magic != _MAGIC or checksum != crc32(data[:24]):
        raise _damaged(path, "its header")
    if not counts:
        return generation, []
    if len(data) != _SEGMENT_BYTES:
        raise _damaged(path, f"it has {len(data)} bytes instead of {_SEGMENT_BYTES}")
    records = list(_records(data, generation))
    end = _BLOCK_BYTES + sum(_RECORD.size + rows.nbytes for rows in records)
    if _has_record_after(data, generation, end):
        raise _damaged(path, f"the record at byte {end}, with others after it")
    return generation, records


def _damaged(path: Path, what: str) -> Corruption:
    return Corruption(
        f"the log of commits {path} is damaged: {what}; what was acknowledged may be in it", folder=str(path.parent)
    )


def _records(data: bytes, generation: int) -> Iterator[Rows]:
    at = _BLOCK_BYTES
    while (rows := _record_at(data, generation, at)) is not None:
        yield rows
        at += _RECORD.size + rows.nbytes


def _record_at(data: bytes, generation: int, at: int) -> Rows | None:
    """Return the record at this offset; None if there is no complete record of this generation."""
    begin = at + _RECORD.size
    if begin > len(data):
        return None
    found, count, checksum = _RECORD.unpack_from(data, at)
    end = begin + count * _ROW_BYTES
    if found != generation or end > len(data) or checksum != crc32(data[begin:end], crc32(data[at : at + 16])):
        return None
    return np.frombuffer(data, dtype="<i8", count=2 * count, offset=begin).reshape(-1, 2).astype(np.int64)


def _has_record_after(data: bytes, generation: int, end: int) -> bool:
    words = np.frombuffer(data, dtype="<u8", count=len(data) // 8)
    later = end // 8 + 1 + np.flatnonzero(words[end // 8 + 1 :] == generation)
    return any(_record_at(data, generation, 8 * at) is not None for at in later.tolist())
