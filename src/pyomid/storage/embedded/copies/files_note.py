"""Detect whether a folder's files are copies of another folder's.

A copy that another tool makes during writes mixes pages of different moments: LMDB reuses pages within a few commits,
so the copy may have an old root over new pages. Nothing in the file shows that, and LMDB does not detect it. So the
folder's first TSO notes in `files.json` which file is the folder's, and a TSO that finds another file refuses it. A
folder without a note is new, or an operator removed the note to declare the copy good: then it is a database of its
own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from pyomid.errors import Misuse
from pyomid.storage.embedded.layout import DATA_FOLDER, unusable, write_durably
from pyomid.system import is_shared

NOTE_FILE: Final = "files.json"
_NOTE_BYTES_MAX: Final = 4096


def has_note(folder: Path, names: tuple[str, ...] = (DATA_FOLDER,)) -> bool:
    """Whether the note names the files of these folders; a note of layout 1 names one more file after them.

    False: there is no note, or it cannot be read. `Misuse`: it names other files.
    """
    try:
        noted = json.loads((folder / NOTE_FILE).read_bytes()[:_NOTE_BYTES_MAX])["files"]
        noted = list(noted)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
    except OSError as error:
        raise unusable(folder, error) from error
    if noted[: len(names)] != _files(folder, names):
        raise Misuse(
            f"{folder} is a copy of a database's files, which may be torn: copy with `pyomid backup` and `pyomid "
            "restore`; or, if no process had the folder open while it was copied, remove "
            f"{folder / NOTE_FILE}: then the copy opens as another database",
            folder=str(folder),
        )
    return True


def note_files(folder: Path) -> None:
    """Note the folder's files. Durable on return, so that a loss of power does not make the folder another database."""
    try:
        write_durably(
            folder / NOTE_FILE, json.dumps({"files": _files(folder, (DATA_FOLDER,))}), shared=is_shared(folder)
        )
    except OSError as error:
        raise unusable(folder, error) from error


def _files(folder: Path, names: tuple[str, ...]) -> list[int]:
    """Return the files' inodes. Without the device, whose number changes at a reboot, and without the change time,
    which a `chown -R` at a container's start would change."""
    try:
        return [os.stat(folder / name / "data.mdb").st_ino for name in names]
    except OSError as error:
        raise unusable(folder, error) from error
