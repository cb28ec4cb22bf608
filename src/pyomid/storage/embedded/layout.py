"""The folder: its layout version, and the environments in it with their databases.

A change of anything that `keys`, `records`, `tables`, `catalogue`, `commit_table` or `epoch_row` store raises
`LAYOUT_VERSION` and adds a step to `_UPGRADES`, which turns the version before into it in place.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from pyomid.errors import Misuse, OmidError
from pyomid.storage.embedded.environments import MAP_BYTES_DEFAULT, READERS_MAX, Environment, mapped, open_environment

LAYOUT_VERSION: Final = 1
_UPGRADES: dict[int, Callable[[Path], None]] = {}
"""From version → what makes it the next one. None yet: this is the first."""

CELLS: Final = b"cells"
TABLES: Final = b"tables"
SAMPLES: Final = b"samples"
CATALOGUE: Final = b"catalogue"
COMMITS: Final = b"commits"
EPOCH: Final = b"epoch"

_ENVIRONMENTS: Final = {"data": (CELLS, TABLES, SAMPLES, CATALOGUE), "commits": (COMMITS, EPOCH)}
_FILE: Final = "LAYOUT"
_LINE: Final = "pyomid embedded layout "
_LOCK: Final = "LAYOUT.lock"
_MAP_BYTES_TO_CREATE: Final = 1 << 20


def open_folder(folder: str | os.PathLike[str], *, create: bool = True) -> Path:
    """The folder, its layout checked; made with all its environments if it is new and `create`.

    `Misuse` where it is missing, not a folder, not writable, or of another layout version.
    """
    path = Path(folder).absolute()
    if not _is_made(path):
        if not create:
            raise Misuse(f"{path} is not a pyomid folder: it has no file {_FILE}", folder=str(path))
        _create(path)
    _check_version(path)
    if not os.access(path, os.W_OK | os.X_OK):
        raise Misuse(f"folder {path} is not writable for this user: readers too take a slot in it", folder=str(path))
    return path


def open_data(folder: Path, *, map_bytes: int = MAP_BYTES_DEFAULT) -> Environment:
    return open_environment(
        folder / "data", _ENVIRONMENTS["data"], writable=True, many_writers=True, map_bytes=map_bytes
    )


def open_commits(folder: Path, *, writable: bool, map_bytes: int = MAP_BYTES_DEFAULT) -> Environment:
    return open_environment(
        folder / "commits", _ENVIRONMENTS["commits"], writable=writable, many_writers=False, map_bytes=map_bytes
    )


def _is_made(path: Path) -> bool:
    try:
        return (path / _FILE).exists()
    except OSError as error:
        raise _unusable(path, error) from error


def _create(path: Path) -> None:
    """Everything, and the version file last: a crash in between leaves a folder that the next one completes."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _locked(path / _LOCK):
            if (path / _FILE).exists():
                return
            for name, databases in _ENVIRONMENTS.items():
                _create_environment(path / name, databases)
            _write_durably(path / _FILE, f"{_LINE}{LAYOUT_VERSION}\n")
    except lmdb.Error as error:
        raise mapped(error, path) from error
    except OSError as error:
        raise _unusable(path, error) from error


def _create_environment(path: Path, databases: tuple[bytes, ...]) -> None:
    path.mkdir(exist_ok=True)
    size = _MAP_BYTES_TO_CREATE
    with lmdb.open(os.fspath(path), size, max_dbs=len(databases), max_readers=READERS_MAX) as environment:
        for database in databases:
            environment.open_db(database)
    _sync_folder(path)


def _check_version(path: Path) -> None:
    try:
        line = (path / _FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise _unusable(path, error) from error
    version = line.removeprefix(_LINE).strip()
    if not line.startswith(_LINE) or not version.isdigit():
        raise Misuse(f"{path / _FILE} does not read {_LINE + 'N'!r} but {line[:60]!r}: not a pyomid folder")
    if int(version) > LAYOUT_VERSION:
        raise Misuse(
            f"folder {path} has embedded layout {version}, this pyomid knows up to {LAYOUT_VERSION}: "
            "use the pyomid that made it, or a later one",
            found=int(version),
            known=LAYOUT_VERSION,
        )
    if int(version) < LAYOUT_VERSION:
        _upgrade(path)


def _upgrade(path: Path) -> None:
    with _locked(path / _LOCK):
        found = int((path / _FILE).read_text(encoding="utf-8").removeprefix(_LINE))
        while found < LAYOUT_VERSION:
            if found not in _UPGRADES:
                raise Misuse(f"folder {path} has embedded layout {found}, which this pyomid cannot upgrade")
            _UPGRADES[found](path)
            found += 1
            _write_durably(path / _FILE, f"{_LINE}{found}\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_durably(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".new")
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    _sync_folder(path.parent)
    _sync_folder(path.parent.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(path: Path, error: OSError) -> OmidError:
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return Misuse(f"{path} is not a folder", folder=str(path))
    if isinstance(error, PermissionError):
        return Misuse(f"folder {path} is not writable for this user: {error.strerror}", folder=str(path))
    return mapped(error, path)
