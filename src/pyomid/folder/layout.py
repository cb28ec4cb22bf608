"""Create and check a folder: its layout version, and the LMDB environment in it with its databases.

A change of the bytes that `records`, `tables`, `catalog`, `branches`, `decision` or `folder_state` store must raise
`LAYOUT_VERSION`. If a version with the preceding layout was released, the change must also upgrade that in place.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import lmdb

from pyomid.errors import FolderMissing, Misuse, OmidError
from pyomid.folder.environment import MAP_BYTES_DEFAULT, READERS_MAX, Environment, mapped, open_environment
from pyomid.folder.lmdb_files import (
    DATA_FILE,
    LMDB_LOCK_FILE,
    UNNAMED,
    make_lock_file,
    open_database,
    open_lmdb,
)
from pyomid.system import (
    LAYOUT_FILE,
    check_owner,
    file_mode,
    is_shared,
    make_folder,
    network_file_system,
    open_own,
    sync_folder,
)

LAYOUT_VERSION: Final = 5
DATA_FOLDER: Final = "data"

CELLS: Final = b"cells"
TABLES: Final = b"tables"
SAMPLES: Final = b"samples"
CATALOG: Final = b"catalogue"
BRANCHES: Final = b"branches"
CLAIMS: Final = b"claims"
EPOCH: Final = UNNAMED
"""The folder's state is in the unnamed database, because every write changes a page of that database anyway."""

DATABASES: Final = (CELLS, TABLES, SAMPLES, CATALOG, BRANCHES, CLAIMS, EPOCH)
_FILE: Final = LAYOUT_FILE
_LINE: Final = "pyomid embedded layout "
LOCK_FILE: Final = "LAYOUT.lock"
BACKUP_FILE: Final = "BACKUP"
"""The description of a backup: its source, and its files with their checksums. A folder that has this file is a
backup."""
UNFINISHED_FILE: Final = "UNFINISHED"
"""This file exists while a backup or a restore writes the folder, and after one that was interrupted."""
UNFINISHED_SUFFIX: Final = ".new"
"""The suffix of a file that `write_durably` has not completed. A kill may leave such a file."""
_MAP_BYTES_TO_CREATE: Final = 1 << 20


def open_folder(folder: str | os.PathLike[str], *, create: bool = True, shared: bool | None = None) -> Path:
    """Check the folder's layout and return its path. With `create`, a missing folder is created.

    `shared` says whether the folder's group may use it (`system`), by option `folderAccess`; None keeps what was chosen
    at its creation. Raises `Misuse` if the folder is missing, not a folder, another user's, not writable, on a network
    file system, or of another layout version.
    """
    path = Path(folder).absolute()
    if kind := network_file_system(path):
        raise Misuse(
            f"{path} is on a network file system ({kind}), on which LMDB can lose commits and damage its file: put the "
            "folder on a local disk, or use HBase for several machines",
            folder=str(path),
        )
    check_finished(path)
    if not is_made(path):
        if (path / BACKUP_FILE).exists():
            raise Misuse(
                f"{path} is a backup, not a database; to make a database of it, run pyomid restore {path} "
                "omid:///FOLDER",
                folder=str(path),
            )
        if not create:
            raise FolderMissing(
                f"there is no database in {path}, and this call does not create one: check the path, or create the "
                "database first, with a write or `pyomid tables URL create …`",
                folder=str(path),
            )
        _create(path, shared=bool(shared))
    _check_owner(path, shared)
    _check_version(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise Misuse(
            f"folder {path} is not writable for this user, but even a reader must write there; give the user write "
            "access",
            folder=str(path),
        )
    return path


def check_finished(path: Path) -> None:
    """B2: raise `Misuse` if a backup or restore into this folder has not finished."""
    if is_there(path / UNFINISHED_FILE):
        raise Misuse(
            f"{path} is incomplete: a backup or restore into it is running or was interrupted; run the backup or "
            "restore again (it starts over), or remove the folder",
            folder=str(path),
        )


def open_data(folder: Path, *, map_bytes: int = MAP_BYTES_DEFAULT) -> Environment:
    """Return the environment of a folder that `open_folder` returned. Call `release` at the end."""
    return open_environment(folder / DATA_FOLDER, DATABASES, map_bytes=map_bytes)


def _check_owner(path: Path, shared: bool | None) -> None:
    was_shared = is_shared(path)
    try:
        check_owner(path, shared=was_shared if shared is None else shared)
    except OSError as error:
        raise unusable(path, error) from error
    if shared and not was_shared:
        raise Misuse(
            f"the database in {path} was created for its owner alone: to share it with a group, stop its programs, "
            f"then run chgrp -R GROUP {path}; chmod -R g+rwX {path}; chmod g+s {path} {path}/{DATA_FOLDER}",
            folder=str(path),
        )


def is_made(path: Path) -> bool:
    return is_there(path / _FILE)


def is_there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError as error:
        raise unusable(file.parent, error) from error


def _create(path: Path, *, shared: bool) -> None:
    """Create everything, the version file last. So after a crash the next process completes the folder."""
    try:
        make_folder(path, shared=shared)
        check_owner(path, shared=False)
        with locked(path / LOCK_FILE, shared=shared):
            if (path / _FILE).exists():
                return
            check_finished(path)
            make_database(path, shared=shared)
    except OSError as error:
        raise unusable(path, error) from error


def make_database(path: Path, *, shared: bool) -> None:
    """Create the environment if it is missing, then the version file. The caller holds the folder's lock."""
    _create_environment(path / DATA_FOLDER, shared=shared)
    write_durably(path / _FILE, f"{_LINE}{LAYOUT_VERSION}\n", shared=shared)


def _create_environment(path: Path, *, shared: bool) -> None:
    make_folder(path, shared=shared)
    make_lock_file(path, shared=shared)
    size, mode = _MAP_BYTES_TO_CREATE, file_mode(shared)
    try:
        with open_lmdb(path, size, max_dbs=len(DATABASES), max_readers=READERS_MAX, mode=mode) as made:
            for database in DATABASES:
                open_database(made, database, create=True)
    except lmdb.Error as error:
        raise mapped(error, path) from error
    for name in (DATA_FILE, LMDB_LOCK_FILE):
        os.chmod(path / name, mode)
    sync_folder(path)


def _check_version(path: Path) -> None:
    try:
        line = (path / _FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise unusable(path, error) from error
    version = line.removeprefix(_LINE).strip()
    if not line.startswith(_LINE) or not version.isdigit():
        raise Misuse(f"{path / _FILE} holds {line[:60]!r} instead of {_LINE + 'N'!r}, so {path} is not a pyomid folder")
    if int(version) != LAYOUT_VERSION:
        raise Misuse(
            f"folder {path} has embedded layout {version}, but this pyomid version reads layout {LAYOUT_VERSION}; use "
            "the pyomid version that made the folder, or move the tables with `pyomid export` of that version and "
            "`pyomid import` of this version",
            found=int(version),
            known=LAYOUT_VERSION,
        )


@contextmanager
def locked(path: Path, *, shared: bool, wait: bool = True) -> Iterator[bool]:
    """Lock the file for the block, and yield True. Without `wait`, yield False if another process has the lock."""
    descriptor = open_own(path, os.O_RDWR | os.O_CREAT, shared=shared)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str, *, shared: bool) -> None:
    with written_durably(path, text, shared=shared):
        pass
    sync_folder(path.parent.parent)


@contextmanager
def written_durably(path: Path, text: str, *, shared: bool) -> Iterator[Path]:
    """Write a new file durably, and yield its path. At the end of the block it replaces the file at `path`."""
    unfinished = path.with_suffix(UNFINISHED_SUFFIX)
    try:
        descriptor = open_own(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, shared=shared)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield unfinished
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    sync_folder(path.parent)


def unusable(path: Path, error: OSError) -> OmidError:
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return Misuse(f"{path} is not a folder", folder=str(path))
    if isinstance(error, PermissionError):
        return Misuse(f"folder {path} is not writable for this user: {error.strerror}", folder=str(path))
    return mapped(error, path)
