"""The description of a backup, its file BACKUP, and the chain of backups that an incremental one needs.

A full backup has a copy of the environment. An incremental one has the differences from the backup before it
(`difference`). A BACKUP has the SHA-256 of each file of its backup, and of the BACKUP before it. So the last BACKUP
determines every byte of the chain. Backups of layout 1 have a second environment with the commits: they can be
restored, but not extended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyomid.errors import Corruption, Misuse, OmidError
from pyomid.storage.embedded.layout import (
    BACKUP_FILE,
    DATA_FOLDER,
    FORMER_FOLDER,
    LAYOUT_VERSION,
    check_finished,
    unusable,
    write_durably,
)
from pyomid.types import Backup

DATA_FILE: Final = "data.mdb"
CHANGES_FILE: Final = "changes"
LINKS_MAX = 200
"""The longest chain. The next backup opens the changes of all links at once, and a process on macOS has 256
descriptors. Besides, a missing link makes all later ones useless."""
_FORMAT: Final = 3
"""The format of BACKUP. 1 and 2 were full and incremental backups of layout 1."""

FileSum = tuple[int, str]
"""Size in bytes, and SHA-256."""


@dataclass(frozen=True)
class Link:
    """One backup of a chain."""

    folder: Path
    backup: Backup
    layout: int
    files: dict[str, FileSum]
    digest: str
    """The SHA-256 of its BACKUP, by which the next backup names it."""
    former_digest: str | None
    former_taken: str
    records: list[int]
    """The number of records of each LMDB database, in the order of `DATABASES`."""

    @property
    def is_whole(self) -> bool:
        return self.former_digest is None


def file_names(*, is_whole: bool, layout: int = LAYOUT_VERSION) -> list[str]:
    """Return the files of a backup, except its description."""
    names = [f"{DATA_FOLDER}/{DATA_FILE if is_whole else CHANGES_FILE}"]
    return [*names, f"{FORMER_FOLDER}/{DATA_FILE}"] if layout == 1 else names


def describe(path: Path, backup: Backup, files: dict[str, FileSum], former: Link | None, records: list[int]) -> None:
    """Write BACKUP. Durable on return."""
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


def read_link(path: Path) -> Link:
    """Read a backup's description. `Misuse` unless the folder is a complete backup."""
    check_finished(path)
    try:
        text = (path / BACKUP_FILE).read_bytes()
        content = json.loads(text)
        found = int(content["format"]), int(content["layout"])
        if found[0] > _FORMAT or found[1] > LAYOUT_VERSION:
            raise Misuse(f"{path} was written by a later version of pyomid: restore it with that", folder=str(path))
        since = content.get("since", {})
        return Link(
            path,
            Backup(**content["backup"]),
            found[1],
            {name: tuple(content["files"][name]) for name in file_names(is_whole=not since, layout=found[1])},
            hashlib.sha256(text).hexdigest(),
            since["digest"] if since else None,
            since["taken"] if since else "",
            [int(count) for count in content.get("records", [])],
        )
    except FileNotFoundError:
        raise Misuse(f"{path} is not a backup: it has no file {BACKUP_FILE}", folder=str(path)) from None
    except OSError as error:
        raise unusable(path, error) from error
    except Misuse:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{path / BACKUP_FILE} is damaged: {error!r}", folder=str(path)) from error


def chain_of(path: Path) -> list[Link]:
    """Return the backups that this one needs, the full one first and this one last. `Misuse` if one is missing."""
    links = [read_link(path)]
    while not links[0].is_whole:
        links.insert(0, _former_of(links[0]))
    return links


def _former_of(link: Link) -> Link:
    """Find the backup before `link`: at its former path, or in the same parent folder as the link."""
    for folder in _places(link):
        with suppress(OmidError):  # an unreadable folder is not the wanted backup
            former = read_link(folder)
            if _is_meant(former, link):
                return former
    raise Misuse(
        f"{link.folder} holds the changes since the backup of {link.former_taken}, which was in {link.backup.since} "
        f"and is neither there nor next to {link.folder}: put it back, unchanged, in either place, or restore an older "
        "backup",
        folder=str(link.folder),
        missing=link.backup.since,
    )


def _is_meant(former: Link, link: Link) -> bool:
    return former.digest == link.former_digest


def _places(link: Link) -> Iterator[Path]:
    yield Path(str(link.backup.since))
    with suppress(OSError):
        yield from sorted(link.folder.parent.iterdir())


def file_sum(path: Path) -> FileSum:
    with open(path, "rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def check_file(link: Link, name: str) -> None:
    """Raise `Corruption` if the file has changed since it was written."""
    path = link.folder / name
    try:
        found = file_sum(path)
    except FileNotFoundError:
        raise Corruption(f"{path} is missing", folder=str(link.folder)) from None
    except OSError as error:
        raise unusable(link.folder, error) from error
    check_sum(path, found, link.files[name])


def check_sum(path: Path, found: FileSum, written: FileSum) -> None:
    if found != written:
        raise Corruption(f"{path} has changed since the backup was written: its checksum differs")
