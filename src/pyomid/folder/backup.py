"""Back up a folder as of one moment, while other processes write to it, and restore a folder from a backup.

The backup is a copy of one state of the folder's LMDB environment: cells, branches, clock, watermarks and catalog as of
one LMDB transaction (B1). It equals what a kill of all processes at that moment would have left (decision 0125). An
incremental backup has only the records that differ from the preceding backup. A restored folder is another database,
with a new id.

A backup has no file LAYOUT, so it cannot be opened as a database. Its file BACKUP has the SHA-256 of each of its files,
and of the preceding BACKUP. So the last BACKUP determines every byte of the chain. An incomplete folder has a file
UNFINISHED, which is removed last.

LMDB's records are compared byte by byte, regardless of their meaning: cells, dropped or recreated tables, catalog,
commits, idempotency keys, index rows, expiry floors. So a restore reproduces the backup's moment exactly, and nothing
that was written between the two states needs to be kept (decision 0092). An incremental backup is one file of changes,
in the order of databases and keys:

    number of the database   1 byte, as in `DATABASES`
    length of the key        2 bytes, little-endian
    length of the value      4 bytes, little-endian; all ones if the record was deleted
    key, value

The present data are compared with the full backup, record by record. The changes in the later incremental backups, a
short list, decide which differences are already backed up, and which other records must be written:

    differs from the full backup   changed since the full backup   written
    yes                            no                              the current record
    yes                            yes, to the same                nothing
    yes                            yes, to something else          the current record
    no                             yes                             the current record, equal to that in the full backup
"""

from __future__ import annotations

import fcntl
import hashlib
import heapq
import json
import os
import shutil
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import lmdb

from pyomid.config import path_of
from pyomid.crashpoints import crash_point
from pyomid.errors import Corruption, Misuse, OmidError
from pyomid.folder.environment import Environment, HeldState, Transaction, mapped, open_environment, release
from pyomid.folder.folder_state import ID_NAME, new_identity, read_identity
from pyomid.folder.layout import (
    BACKUP_FILE,
    DATA_FOLDER,
    DATABASES,
    EPOCH,
    LAYOUT_VERSION,
    LOCK_FILE,
    UNFINISHED_FILE,
    UNFINISHED_SUFFIX,
    check_finished,
    is_there,
    locked,
    make_database,
    open_data,
    open_folder,
    unusable,
    write_durably,
)
from pyomid.folder.lmdb_files import DATA_FILE, UNNAMED, open_database, open_lmdb, records_in
from pyomid.system import LAYOUT_FILE, check_owner, make_folder, open_own, sync_folder
from pyomid.types import Backup, Progress

_COPY_BYTES: Final = 1 << 20
_MARK: Final = "pyomid: being written\n"
CHANGES_FILE: Final = "changes"
LINKS_MAX = 200
"""The longest chain. The next backup opens the changes of all links at once, and a process on macOS has 256
descriptors. Besides, if one link is missing, all later ones are useless."""
_FORMAT: Final = 3
"""The format version of the file BACKUP."""

FileSum = tuple[int, str]
"""A file's size in bytes and its SHA-256."""


@dataclass(frozen=True)
class Link:
    """One backup of a chain."""

    folder: Path
    backup: Backup
    files: dict[str, FileSum]
    digest: str
    """The SHA-256 of this backup's BACKUP; the next backup refers to it."""
    former_digest: str | None
    former_taken: str
    records: list[int]
    """The number of records of each LMDB database, in the order of `DATABASES`."""

    @property
    def is_whole(self) -> bool:
        return self.former_digest is None


def back_up(
    folder: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    snapshot_ts: int,
    since: str | os.PathLike[str] | None = None,
) -> Backup:
    """Copy the database in `folder` as of one moment into `destination`, a missing or empty folder. With `since`, an
    earlier backup of the database, copy only the changes since that backup.

    Durable on return. `snapshot_ts` is a start that was handed out before, so all commits below it are durable.
    """
    source, path = open_folder(folder, create=False), path_of(destination).absolute()
    with ExitStack() as last_first:
        data = open_data(source)
        last_first.callback(release, data)
        chain = [] if since is None else _whole_chain(path_of(since).resolve(), data)
        last_first.enter_context(_being_written(path, shared=False))
        crash_point("storage.backup.begun")
        database_id, records = _copy(data, path, chain)
        crash_point("storage.backup.completed")
        with _mapped_errors(path):
            name = _file_name(is_whole=not chain)
            files = {name: _file_sum(path / name)}
        made = Backup(
            folder=os.fspath(source),
            database_id=database_id.hex(),
            snapshot_ts=snapshot_ts,
            taken=datetime.now(UTC).isoformat(timespec="seconds"),
            size_bytes=sum(size for size, _ in files.values()),
            since=os.fspath(chain[-1].folder) if chain else None,
        )
        with _mapped_errors(path):
            _describe(path, made, files, chain[-1] if chain else None, records)
        crash_point("storage.backup.described")
    with suppress(OSError):
        os.unlink(path / LOCK_FILE)
    return made


def _whole_chain(since: Path, data: Environment) -> list[Link]:
    """Return the backups that the next one extends. Check that all are of this database, present and unchanged, so that
    an incremental backup never extends a chain that cannot be restored."""
    chain = _chain_of(since)
    found, known = data.read(read_identity, data.databases[EPOCH]).hex(), chain[-1].backup.database_id
    if found != known:
        raise Misuse(
            f"{since} is a backup of database {known}, not of this database, {found}; omit since to take a full backup",
            folder=os.fspath(since),
        )
    if len(chain) >= LINKS_MAX:
        raise Misuse(
            f"{since} needs {len(chain) - 1} earlier backups, which is the maximum for a chain; omit since to take a "
            "full backup",
            folder=os.fspath(since),
        )
    for link in chain:
        for name in link.files:
            _check_file(link, name)
    return chain


def restore(
    backup: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    shared: bool = False,
    progress: Progress | None = None,
) -> Backup:
    """Restore a backup into a missing or empty folder, durably on return. `progress` is called while the data file is
    copied.

    Raises `Misuse` if the backup, or one that it needs, is missing or incomplete, and `Corruption` if their files have
    changed.
    """
    path = Path(folder).absolute()
    chain = _chain_of(path_of(backup).absolute())
    with _being_written(path, shared=shared):
        crash_point("storage.restore.begun")
        make_folder(path / DATA_FOLDER, shared=shared)
        (file,) = chain[0].files
        found = _copied(chain[0].folder / file, path / file, shared=shared, progress=progress)
        _check_sum(chain[0].folder / file, found, chain[0].files[file])
        crash_point("storage.restore.copied")
        with _mapped_errors(path):
            _apply(chain, path)
        crash_point("storage.restore.applied")
        with _mapped_errors(path), locked(path / LOCK_FILE, shared=shared):
            make_database(path, shared=shared)
        crash_point("storage.restore.made")
    return chain[-1].backup


def _apply(chain: list[Link], path: Path) -> None:
    """Apply the changes of the later backups in order, then make the folder another database."""
    data = open_environment(path / DATA_FOLDER, DATABASES)
    try:
        for link in chain[1:]:
            _check_file(link, f"{DATA_FOLDER}/{CHANGES_FILE}")
            _apply_changes(data, _changes_file(link))
            if (found := _counts(data)) != link.records:
                raise Corruption(f"the backup {link.folder} restores {found} records, not {link.records}")
        data.write(partial(new_identity, database=data.databases[EPOCH]))
    finally:
        release(data)


def _counts(data: Environment) -> list[int]:
    held = HeldState(data)
    try:
        held.hold()
        return held.counts()
    finally:
        held.end()


def _copy(data: Environment, path: Path, chain: list[Link]) -> tuple[bytes, list[int]]:
    """Copy one state durably: all of it, or its changes since the chain. Return the database's id, and the number of
    records of each LMDB database."""
    held = HeldState(data)
    try:
        held.hold()
        crash_point("storage.backup.held")
        with _mapped_errors(path):
            make_folder(path / DATA_FOLDER, shared=False)
            if chain:
                changes = [_changes_file(link) for link in chain[1:]]
                _write_changes(held, chain[0].folder / DATA_FOLDER, changes, path / DATA_FOLDER / CHANGES_FILE)
            else:
                held.copy_to(path / DATA_FOLDER)
                os.chmod(path / DATA_FOLDER / DATA_FILE, 0o600)
            found = held.get(EPOCH, ID_NAME) or b"", held.counts()
            held.check()
    finally:
        held.end()
    crash_point("storage.backup.copied")
    with _mapped_errors(path):
        copied = path / _file_name(is_whole=not chain)
        _sync(copied)
        sync_folder(copied.parent)
    return found


# ---------------------------------------------------------------- descriptions and chains


def _file_name(*, is_whole: bool) -> str:
    """Return the name of the one file that a backup has besides its description."""
    return f"{DATA_FOLDER}/{DATA_FILE if is_whole else CHANGES_FILE}"


def _changes_file(link: Link) -> Path:
    return link.folder / DATA_FOLDER / CHANGES_FILE


def _describe(path: Path, backup: Backup, files: dict[str, FileSum], former: Link | None, records: list[int]) -> None:
    """Write the file BACKUP, durably on return."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "layout": LAYOUT_VERSION,
        "backup": {name: value for name in Backup.__slots__ if (value := getattr(backup, name)) != ()},
        "files": files,
        "records": records,
    }
    if former is not None:
        content["since"] = {"digest": former.digest, "taken": former.backup.taken}
    write_durably(path / BACKUP_FILE, json.dumps(content, indent=1) + "\n", shared=False)


def _read_link(path: Path) -> Link:
    """Read a backup's description. Raises `Misuse` unless the folder is a complete backup."""
    check_finished(path)
    try:
        text = (path / BACKUP_FILE).read_bytes()
        content = json.loads(text)
        found = int(content["format"]), int(content["layout"])
        if found != (_FORMAT, LAYOUT_VERSION):
            raise Misuse(
                f"{path} was written by another version of pyomid; restore it with that version", folder=str(path)
            )
        since = content.get("since", {})
        return Link(
            path,
            Backup(**content["backup"]),
            {(name := _file_name(is_whole=not since)): tuple(content["files"][name])},
            hashlib.sha256(text).hexdigest(),
            since["digest"] if since else None,
            since["taken"] if since else "",
            [int(count) for count in content["records"]],
        )
    except FileNotFoundError:
        raise Misuse(f"{path} is not a backup: it has no file {BACKUP_FILE}", folder=str(path)) from None
    except OSError as error:
        raise unusable(path, error) from error
    except Misuse:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{path / BACKUP_FILE} is damaged: {error!r}", folder=str(path)) from error


def _chain_of(path: Path) -> list[Link]:
    """Return the backups that this one needs, from the full one to this one. Raises `Misuse` if one is missing."""
    links = [_read_link(path)]
    while not links[0].is_whole:
        links.insert(0, _former_of(links[0]))
    return links


def _former_of(link: Link) -> Link:
    """Return the backup that precedes `link`. It is at its former path, or in the same parent folder as `link`."""
    for folder in _places(link):
        with suppress(OmidError):  # an unreadable folder is not the backup that we look for
            former = _read_link(folder)
            if _is_meant(former, link):
                return former
    raise Misuse(
        f"{link.folder} holds only the changes since the backup of {link.former_taken}, which is missing: that backup "
        f"was in {link.backup.since}, and is neither there nor next to {link.folder}. Put it back unchanged in one of "
        "these two places, or restore an older backup",
        folder=str(link.folder),
        missing=link.backup.since,
    )


def _is_meant(former: Link, link: Link) -> bool:
    """B5: whether `former` is exactly the backup that `link` continues."""
    return former.digest == link.former_digest


def _places(link: Link) -> Iterator[Path]:
    yield Path(str(link.backup.since))
    with suppress(OSError):
        yield from sorted(link.folder.parent.iterdir())


def _file_sum(path: Path) -> FileSum:
    with open(path, "rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(link: Link, name: str) -> None:
    """Raise `Corruption` if the file has changed since the backup was written."""
    path = link.folder / name
    try:
        found = _file_sum(path)
    except FileNotFoundError:
        raise Corruption(f"{path} is missing", folder=str(link.folder)) from None
    except OSError as error:
        raise unusable(link.folder, error) from error
    _check_sum(path, found, link.files[name])


def _check_sum(path: Path, found: FileSum, written: FileSum) -> None:
    if found != written:
        raise Corruption(f"{path} has changed since the backup was written: its checksum differs")


# ---------------------------------------------------------------- incomplete folders


@contextmanager
def _being_written(path: Path, *, shared: bool) -> Iterator[None]:
    """Mark the folder, which was missing or empty, as incomplete until the end of the block. After an error its content
    is removed. After a kill every process refuses the folder (B2), until the next writer removes the content. The mark
    is removed last, because the folder may be in use once it is gone."""
    is_new = not is_there(path)
    with _mapped_errors(path):
        make_folder(path, shared=shared)
        check_owner(path, shared=False)
        _is_unfinished(path)  # check before anything is written into a folder that is not ours
        with locked(path / LOCK_FILE, shared=shared):
            mark = _marked(path)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _clear(path)
            os.unlink(path / LOCK_FILE)
            os.unlink(path / UNFINISHED_FILE)
            if is_new:
                path.rmdir()
        raise
    else:
        with _mapped_errors(path):
            os.unlink(path / UNFINISHED_FILE)
            sync_folder(path)
            sync_folder(path.parent)
    finally:
        os.close(mark)


def _marked(path: Path) -> int:
    """Return the open mark file, locked and durable, in an otherwise empty folder. The caller holds the folder's
    lock."""
    is_unfinished = _is_unfinished(path)
    file = open_own(path / UNFINISHED_FILE, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Misuse(f"another process is writing into {path}", folder=str(path)) from None
        if is_unfinished:
            _clear(path)
        os.pwrite(file, _MARK.encode(), 0)
        os.fsync(file)
        sync_folder(path)
    except BaseException:
        os.close(file)
        raise
    return file


def _is_unfinished(path: Path) -> bool:
    """Return whether a kill left the folder incomplete. Raises `Misuse` if it is neither incomplete nor empty."""
    is_unfinished = is_there(path / UNFINISHED_FILE)
    if not is_unfinished and (there := sorted(set(os.listdir(path)) - {LOCK_FILE})):
        raise Misuse(f"{path} is not empty ({', '.join(there[:3])}): name a new folder", folder=str(path))
    return is_unfinished


def _clear(path: Path) -> None:
    """Empty the folder. The files that make it a database or a backup go first."""
    for name in (LAYOUT_FILE, BACKUP_FILE):
        for file in (path / name, (path / name).with_suffix(UNFINISHED_SUFFIX)):
            with suppress(FileNotFoundError):
                os.unlink(file)
    with suppress(FileNotFoundError):
        shutil.rmtree(path / DATA_FOLDER)


@contextmanager
def _mapped_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unusable(path, error) from error


# ---------------------------------------------------------------- changes

_HEAD: Final = struct.Struct("<BHI")
_GONE: Final = 0xFFFFFFFF
_BUFFER_BYTES: Final = 1 << 20
_CHANGES_PER_TRANSACTION: Final = 5_000

Change = tuple[int, bytes, bytes | None]
"""The number of the database, the key, and the value, or None if the record was deleted."""
Records = Iterator[tuple[bytes, bytes]]

_reading = threading.Lock()
"""Serializes backups that extend the same backup, because lmdb opens no file twice in a process."""


def _write_changes(held: HeldState, whole_folder: Path, former_changes: list[Path], path: Path) -> None:
    """Write the changes since the last backup of a chain into the file `path`. The file is not synced.

    `whole_folder` has the environment of the full backup; `former_changes` are the files of the later ones, oldest
    first.
    """
    with _reading, _opened(whole_folder) as whole, whole.begin() as former:
        changes = _since(
            _differences(held, whole, former), newest([_read_changes(each) for each in former_changes]), held
        )
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", _BUFFER_BYTES) as file:
            for number, key, value in changes:
                file.write(_HEAD.pack(number, len(key), _GONE if value is None else len(value)))
                file.write(key)
                file.write(value or b"")
    crash_point("storage.backup.compared")


def _apply_changes(environment: Environment, path: Path) -> None:
    """Apply the changes of a file, durably on return."""
    changes = _read_changes(path)
    while batch := list(islice(changes, _CHANGES_PER_TRANSACTION)):

        def write(transaction: Transaction, batch: list[Change] = batch) -> None:
            for number, key, value in batch:
                database = environment.databases[DATABASES[number]]
                if value is None:
                    transaction.delete(key, db=database)
                else:
                    transaction.put(key, value, db=database)

        environment.write(write)


def _read_changes(path: Path) -> Iterator[Change]:
    """Yield the changes of a file. Raises `Corruption` if it is truncated; the caller checks its checksum."""
    with open(path, "rb", _BUFFER_BYTES) as file:
        while head := file.read(_HEAD.size):
            if len(head) < _HEAD.size:
                raise Corruption(f"{path} is truncated: it ends within a change")
            number, key_bytes, value_bytes = _HEAD.unpack(head)
            key = file.read(key_bytes)
            value = None if value_bytes == _GONE else file.read(value_bytes)
            if number >= len(DATABASES) or len(key) < key_bytes or (value is not None and len(value) < value_bytes):
                raise Corruption(f"{path} is damaged: the change of record {key[:60]!r} is malformed")
            yield number, key, value


def newest(files: list[Iterator[Change]]) -> Iterator[Change]:
    """Merge the changes of several files, given from the oldest to the newest, and yield each record's last change."""

    def ranked(rank: int, changes: Iterator[Change]) -> Iterator[tuple[int, bytes, int, bytes | None]]:
        return ((number, key, rank, value) for number, key, value in changes)

    merged = heapq.merge(*(ranked(-rank, changes) for rank, changes in enumerate(files)), key=itemgetter(0, 1, 2))
    for (number, key), same in groupby(merged, key=itemgetter(0, 1)):
        yield number, key, next(same)[3]


def _since(found: Iterable[Change], former: Iterator[Change], held: HeldState) -> Iterator[Change]:
    """B5: yield the changes since the last backup. `found` are the differences from the full backup, and `former` the
    changes from the full backup to the last one."""
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
        database, others = open_database(whole, name, transaction=former), DATABASES if name == UNNAMED else ()
        with former.cursor(database) as cursor, held.records(name) as records:
            for key, value in differences(records_in(cursor, others), records):
                yield number, key, value


def differences(old: Records, new: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the changes that turn `old` into `new`. Both must be in the order of keys."""
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
    """Open a backup's environment and return it. A backup never changes, so it needs no locks and may be on a read-only
    file system."""
    try:
        return open_lmdb(folder, readonly=True, lock=False, create=False, max_dbs=len(DATABASES))
    except lmdb.Error as error:
        raise mapped(error, folder / DATA_FILE) from error


# ---------------------------------------------------------------- files


def _copied(source: Path, target: Path, *, shared: bool, progress: Progress | None = None) -> tuple[int, str]:
    """Copy a file durably. Return the size and checksum of the bytes read."""
    digest, size = hashlib.sha256(), 0
    if not is_there(source):
        raise Corruption(f"{source} is missing", folder=str(source.parent.parent))
    with _mapped_errors(target):
        with (
            open(source, "rb") as read,
            open(open_own(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, shared=shared), "wb") as written,
        ):
            total = os.fstat(read.fileno()).st_size
            while part := read.read(_COPY_BYTES):
                digest.update(part)
                size += written.write(part)
                if progress is not None:
                    progress(source.name, size, total)
            written.flush()
            os.fsync(written.fileno())
        sync_folder(target.parent)
    return size, digest.hexdigest()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
