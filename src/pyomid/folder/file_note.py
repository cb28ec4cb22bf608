"""The note of a folder's files, which distinguishes them from copies.

A copy that another tool makes during writes mixes pages of different moments: LMDB reuses pages within a few commits,
so the copy may have an old root over new pages. Nothing in the file shows that, and LMDB does not detect it. A complete
copy, put back in place of the original, would hand out timestamps a second time. So two files name each other (B4):

    files.json                              names data.mdb
    record `note` in data.mdb (EPOCH)       names files.json: the current one, and the next

A file's name here is its time of birth, which only the file system sets (`system.file_birth`). An inode number alone is
no such name: a copy soon gets the freed number of the original, and an overlay that is mounted again may have other
numbers. It counts only where no birth is known. The device is not part of the name, because its number changes at a
reboot; neither is the time of the last change, because a `chown -R` changes it.

    a copy elsewhere, or in place of the removed files      data.mdb has another birth than files.json says
    a copy written over the files, which keep their births  data.mdb names a former files.json

To detect the second kind of copy, a new files.json replaces the current one at each opening, about once in a second of
work, and at the end (`NoteKeeper`). data.mdb names the new file before it replaces the old one.

A folder without a note is new, or an operator removed the note to declare a copy good. Such a folder becomes another
database.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from pyomid.errors import Misuse, StoreFull, Unavailable
from pyomid.folder import folder_state
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import (
    DATA_FOLDER,
    EPOCH,
    LOCK_FILE,
    UNFINISHED_SUFFIX,
    is_there,
    locked,
    unusable,
    written_durably,
)
from pyomid.folder.lmdb_files import DATA_FILE
from pyomid.system import file_birth, is_shared

NOTE_FILE: Final = "files.json"
_NOTE_BYTES_MAX: Final = 4096
_RECORD: Final = b"note"
_INODE: Final = "inode"
_RENEW_EVERY_S: Final = 1.0
_LOOKS: Final = 5
"""How often the note is compared: it may be renewed twice between two reads."""


def has_note(folder: Path) -> bool:
    """Return whether the note names the folder's data file; False if there is no note, or it cannot be read. Raises
    `Misuse` if the note names another file. Call it before the data file is opened."""
    try:
        noted = dict(json.loads((folder / NOTE_FILE).read_bytes()[:_NOTE_BYTES_MAX])["data"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
    except OSError as error:
        raise unusable(folder, error) from error
    if not _is_same(noted, _name(folder, folder / DATA_FOLDER / DATA_FILE)):
        raise _is_a_copy(folder)
    return True


def check_note(folder: Path, environment: Environment) -> None:
    """Raise `Misuse` unless the data file names the folder's note. Another process may be renewing the note
    meanwhile."""
    for _ in range(_LOOKS):
        names = environment.read(lambda transaction: transaction.get(_RECORD, b"[]", db=environment.databases[EPOCH]))
        present = _name(folder, folder / NOTE_FILE)
        if any(_is_same(name, present) for name in json.loads(names)):
            return
    raise _is_a_copy(folder)


def settle_note(folder: Path, environment: Environment, *, is_noted: bool) -> None:
    """Renew the note of a folder that was opened. If there is no note, make the folder another database. Raises
    `Misuse` if the files are a copy. `is_noted` is the earlier result of `has_note`, because an overlay copies the data
    file when it is opened."""
    if not is_noted:
        with locked(folder / LOCK_FILE, shared=is_shared(folder)):
            if not has_note(folder):
                another = partial(folder_state.new_identity, database=environment.databases[EPOCH])
                return _renew(folder, environment, environment.write, another)
            # another process has noted them meanwhile
    check_note(folder, environment)
    _renew_at_once(folder, environment)


class NoteKeeper:
    """Renews the note of an open folder while the folder's clock advances. `clock` is its value at the note's last
    renewal."""

    def __init__(self, folder: Path, environment: Environment, clock: int) -> None:
        self._folder, self._environment = folder, environment
        self._renewed_at, self._renewed_s = clock, time.monotonic()

    def renew(self, clock: int) -> None:
        """Renew the note if the clock has advanced since the last renewal, and a second has passed."""
        if clock != self._renewed_at and time.monotonic() > self._renewed_s + _RENEW_EVERY_S:
            self._renewed_at, self._renewed_s = clock, time.monotonic()
            with locked(self._folder / LOCK_FILE, shared=is_shared(self._folder), wait=False) as is_ours:
                if is_ours:
                    _renew(self._folder, self._environment, self._environment.write, lambda transaction: None)

    def close(self, clock: int) -> None:
        """Renew the note at the end of the work, if the clock has advanced since the last renewal."""
        if clock != self._renewed_at:
            _renew_at_once(self._folder, self._environment)


def _renew_at_once(folder: Path, environment: Environment) -> None:
    """Renew the note, unless another process renews it or writes, or nothing can be written. So a process that stands
    still delays nobody who opens the folder."""
    with suppress(Unavailable, StoreFull), locked(folder / LOCK_FILE, shared=is_shared(folder), wait=False) as is_ours:
        if is_ours:
            _renew(folder, environment, environment.write_at_once, lambda transaction: None)


def _renew(
    folder: Path,
    environment: Environment,
    run: Callable[[Callable[[Transaction], None]], None],
    work: Callable[[Transaction], None],
) -> None:
    """Make `run` do `work` in a durable write transaction that also names a new note; then that note replaces the
    current one. The caller holds the folder's lock. If the new note cannot be written, for example on a full disk, the
    present one stays."""
    note = folder / NOTE_FILE
    with ExitStack() as stack:
        environment.read(lambda transaction: None)  # raises if another folder has replaced this one
        present = [_name(folder, note)] if is_there(note) else []
        text = json.dumps({"data": _name(folder, folder / DATA_FOLDER / DATA_FILE)})
        try:
            with suppress(FileNotFoundError):  # left by a killed process; the data file may name it already
                os.unlink(note.with_suffix(UNFINISHED_SUFFIX))
            written = stack.enter_context(written_durably(note, text, shared=is_shared(folder)))
        except OSError as error:
            if not present:
                raise unusable(folder, error) from error
            return
        names = json.dumps([*present, _name(folder, written)]).encode()

        def write(transaction: Transaction) -> None:
            transaction.put(_RECORD, names, db=environment.databases[EPOCH])
            work(transaction)

        run(write)
        try:
            stack.close()
        except OSError as error:
            raise unusable(folder, error) from error


def _name(folder: Path, file: Path) -> dict[str, int]:
    try:
        return {_INODE: os.stat(file).st_ino} | file_birth(file)
    except OSError as error:
        raise unusable(folder, error) from error


def _is_same(noted: dict[str, int], found: dict[str, int]) -> bool:
    """Return whether two names are of one file. They are compared by what both say of its birth, or else by the inode
    number."""
    known = (noted.keys() & found.keys()) - {_INODE} or {_INODE}
    return all(noted.get(each) == found[each] for each in known)


def _is_a_copy(folder: Path) -> Misuse:
    return Misuse(
        f"{folder} is a copy of a database's files and may be inconsistent; copy a database with `pyomid backup` and "
        "`pyomid restore` instead. If no process had the folder open while it was copied, or if the copy is a "
        f"file-system snapshot, remove {folder / NOTE_FILE}; then the copy opens as another database",
        folder=str(folder),
    )
