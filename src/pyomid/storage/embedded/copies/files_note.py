"""Whether a folder's files are its own, or copies of another folder's.

A copy that is made file by file beside writers is of no one moment: it may hold half a transaction, lack the newest
ones, or have pages of LMDB that do not belong together, which LMDB does not notice. Nothing in the files tells such a
copy from a good one: LMDB uses pages again within a few commits, so even one file that is read from its beginning may
have an old root and new pages behind it. So the folder's first TSO notes in `files.json` which files are the folder's,
and a TSO that starts over others refuses them. Without a note a folder is new, or an operator says by its removal that
the copy is good: then it is a database of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from pyomid.errors import Misuse
from pyomid.owned_files import is_shared
from pyomid.storage.embedded.layout import ENVIRONMENTS, unusable, write_durably

NOTE_FILE: Final = "files.json"
_NOTE_BYTES_MAX: Final = 4096


def has_note(folder: Path) -> bool:
    """Whether the note names these very files. False: there is none, or it cannot be read. `Misuse`: it names
    others."""
    try:
        noted = json.loads((folder / NOTE_FILE).read_bytes()[:_NOTE_BYTES_MAX])["files"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
    except OSError as error:
        raise unusable(folder, error) from error
    if noted != _files(folder):
        raise Misuse(
            f"{folder} is a copy of a database's files, which may be torn: copy by `pyomid backup` and `pyomid "
            "restore`; or, if nothing had the folder open from the copy's beginning to its end, remove "
            f"{folder / NOTE_FILE}, and the copy is opened as another database",
            folder=str(folder),
        )
    return True


def note_files(folder: Path) -> None:
    """Durable on return, so that a loss of power does not make a folder another database."""
    try:
        write_durably(folder / NOTE_FILE, json.dumps({"files": _files(folder)}), shared=is_shared(folder))
    except OSError as error:
        raise unusable(folder, error) from error


def _files(folder: Path) -> list[int]:
    """Which files they are. Without their device, whose number changes with the machine's start, and without the time
    of their last change, which a `chown -R` at a container's start would move."""
    try:
        return [os.stat(folder / name / "data.mdb").st_ino for name in ENVIRONMENTS]
    except OSError as error:
        raise unusable(folder, error) from error
