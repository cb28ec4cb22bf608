"""Whether a folder's files are those that its TSOs served, or copies of them, and whether such a copy is whole.

A copy that is made file by file beside writers is of no one moment: it may hold half a transaction, lack the newest
ones, or have pages of LMDB that do not belong together, which LMDB does not notice. So the folder's TSO notes in
`at-rest.json` which files are its own and, whenever no client is connected, the state in which they are:

    number of LMDB's last transaction, of each environment;   generation and end of each segment of the log

Each of these only grows. So a copy whose files have the noted state is what the folder was at that moment, whenever and
in whichever order its files were copied: after the note nothing was written before a file was copied, and LMDB's number
is in a file's first pages, which are copied first. A TSO that starts over other files than the noted ones, in another
state, refuses them.

The note is never synced, and it may lag: then a good copy is refused, and a bad one never taken. One that cannot be
read counts as none: what a loss of power left must not keep a folder from being opened.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any, Final

from pyomid.errors import Misuse
from pyomid.owned_files import LAYOUT_FILE, is_shared, open_own
from pyomid.storage.embedded.commit_log.index import LOG_FILES
from pyomid.storage.embedded.commit_log.segment import ROW_BYTES, read_segment

NOTE_FILE: Final = "at-rest.json"
_NOTE_BYTES_MAX: Final = 4096
_ENVIRONMENTS: Final = ("data", "commits")
_PAGE_BYTES_AT: Final = 40
"""In LMDB's first page: the size of its pages, in the second of which is the other root."""
_TXNID_AT: Final = 144
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")


class RestNote:
    """The note of one folder, for its TSO, which holds the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._alone = threading.Lock()
        self._files: list[int] | None = None
        self._looked: Any = None
        """What told cheaply that nothing had changed since the note."""

    def check(self) -> bool:
        """Whether the files are a copy, whole and of one moment. `Misuse` if they are a copy and may not be."""
        try:
            said = json.loads((self._folder / NOTE_FILE).read_bytes()[:_NOTE_BYTES_MAX])
            files, state = said["files"], said["state"]
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError):
            return False  # after a loss of power it may be empty: copies of it are whole
        if files == _files(self._folder):
            return False
        if state is None or state != _state(self._folder):
            raise Misuse(
                f"{self._folder} is a copy of a folder's files that were in use, so it may hold half a transaction: "
                "copy a folder in use by `pyomid backup`. If no process used it while it was copied, or a snapshot of "
                f"the file system was copied, remove {self._folder / NOTE_FILE}: then it is opened as it is",
                folder=str(self._folder),
            )
        return True

    def look(self, *, is_at_rest: bool) -> None:
        """Notes what has changed. `is_at_rest`: no client is connected. Thread-safe."""
        with self._alone:
            self._look(is_at_rest=is_at_rest)

    def _look(self, *, is_at_rest: bool) -> None:
        files, looked = _files(self._folder), _changes(self._folder) if is_at_rest else None
        if files == self._files and (looked is None or looked == self._looked):
            return
        state = _state(self._folder) if is_at_rest else None
        if is_at_rest and _changes(self._folder) != looked:
            return  # somebody writes
        self._write({"files": files, "state": state})
        self._files, self._looked = files, looked

    def _write(self, said: dict[str, Any]) -> None:
        unfinished = self._folder / f"{NOTE_FILE}.new"
        file = open_own(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, shared=is_shared(self._folder))
        with open(file, "w") as written:
            json.dump(said, written)
        os.replace(unfinished, self._folder / NOTE_FILE)


def _files(folder: Path) -> list[int]:
    """Which files they are. Without their device, whose number changes with the machine's start, and without the time
    of their last change, which a `chown -R` at a container's start would move."""
    paths = [folder / LAYOUT_FILE, *(_data_file(folder, name) for name in _ENVIRONMENTS)]
    return [os.stat(path).st_ino for path in paths]


def _changes(folder: Path) -> list[Any]:
    logs = [os.stat(path).st_mtime_ns if path.exists() else 0 for path in _logs(folder)]
    return [*(_last_transaction(_data_file(folder, name)) for name in _ENVIRONMENTS), *logs]


def _state(folder: Path) -> dict[str, Any]:
    segments = [read_segment(path) for path in _logs(folder)]
    return {
        **{name: _last_transaction(_data_file(folder, name)) for name in _ENVIRONMENTS},
        "log": [[generation, ROW_BYTES * sum(map(len, records)), len(records)] for generation, records in segments],
    }


def _logs(folder: Path) -> list[Path]:
    return [folder / "commits" / name for name in LOG_FILES]


def _data_file(folder: Path, environment: str) -> Path:
    return folder / environment / "data.mdb"


def _last_transaction(path: Path) -> int:
    """The number of the last one committed, out of LMDB's two root pages."""
    with open(path, "rb") as file:
        pages = file.read(_TXNID_AT + _U64.size)
        file.seek(_U32.unpack_from(pages, _PAGE_BYTES_AT)[0] + _TXNID_AT)
        other = file.read(_U64.size)
    return max(_U64.unpack_from(pages, _TXNID_AT)[0], _U64.unpack(other)[0]) if len(other) == _U64.size else 0
