"""What a back-up says of itself, its file BACKUP, and the chain of back-ups that an incremental one needs.

A whole back-up has copies of both environments. An incremental one has the commits whole, which are few, and of the
data what differs from the back-up before it (`difference`), which it names by the SHA-256 of that one's BACKUP. As a
BACKUP holds the SHA-256 of each file, and of the one before, the last one's says what each byte of the chain has to be.
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
    ENVIRONMENTS,
    LAYOUT_VERSION,
    check_finished,
    unusable,
    write_durably,
)
from pyomid.types import Backup

DATA_FILE: Final = "data.mdb"
CHANGES_FILE: Final = "changes"
LINKS_MAX = 200
"""In a chain. The next one opens the changes of all of them at once, and a Mac's process has 256 descriptors; it reads
them too, and each that is missing takes all after it along."""
_WHOLE, _INCREMENTAL = 1, 2
"""Formats of BACKUP. A pyomid that knows the first alone refuses the second."""

FileSum = tuple[int, str]
"""Bytes, and their SHA-256."""


@dataclass(frozen=True)
class Link:
    """One back-up of a chain."""

    folder: Path
    backup: Backup
    layout: int
    files: dict[str, FileSum]
    digest: str
    """By which the next one names this one: the SHA-256 of its BACKUP."""
    former_digest: str | None
    former_taken: str
    records: list[int]
    """How many records each database of the data has, in the order of `ENVIRONMENTS`."""

    @property
    def is_whole(self) -> bool:
        return self.former_digest is None


def file_names(*, is_whole: bool) -> list[str]:
    """The files of a back-up besides its description."""
    if is_whole:
        return [f"{name}/{DATA_FILE}" for name in ENVIRONMENTS]
    return [f"data/{CHANGES_FILE}", f"commits/{DATA_FILE}"]


def describe(path: Path, backup: Backup, files: dict[str, FileSum], former: Link | None, records: list[int]) -> None:
    """Durable on return."""
    content: dict[str, Any] = {
        "format": _WHOLE if former is None else _INCREMENTAL,
        "layout": LAYOUT_VERSION,
        "backup": {name: value for name in Backup.__slots__ if (value := getattr(backup, name)) != ()},
        "files": files,
        "records": records,
    }
    if former is not None:
        content["since"] = {"digest": former.digest, "taken": former.backup.taken}
    write_durably(path / BACKUP_FILE, json.dumps(content, indent=1) + "\n", shared=False)


def read_link(path: Path) -> Link:
    """`Misuse` unless it is a back-up, and whole."""
    check_finished(path)
    try:
        text = (path / BACKUP_FILE).read_bytes()
        content = json.loads(text)
        found = int(content["format"]), int(content["layout"])
        if found[0] > _INCREMENTAL or found[1] > LAYOUT_VERSION:
            raise Misuse(f"{path} was written by a later pyomid: restore it with that one", folder=str(path))
        since = content.get("since", {})
        return Link(
            path,
            Backup(**content["backup"]),
            found[1],
            {name: tuple(content["files"][name]) for name in file_names(is_whole=not since)},
            hashlib.sha256(text).hexdigest(),
            since["digest"] if since else None,
            since["taken"] if since else "",
            [int(count) for count in content.get("records", [])],
        )
    except FileNotFoundError:
        raise Misuse(f"{path} is no back-up: it has no file {BACKUP_FILE}", folder=str(path)) from None
    except OSError as error:
        raise unusable(path, error) from error
    except Misuse:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"{path / BACKUP_FILE} is damaged: {error!r}", folder=str(path)) from error


def chain_of(path: Path) -> list[Link]:
    """The back-ups that this one needs, the whole one first and this one last. `Misuse` if one of them is missing."""
    links = [read_link(path)]
    while not links[0].is_whole:
        links.insert(0, _former_of(links[0]))
    return links


def _former_of(link: Link) -> Link:
    """Where it lay when the link was made, or beside the link."""
    for folder in _places(link):
        with suppress(OmidError):  # a place that cannot be read is not the one that is meant
            former = read_link(folder)
            if _is_meant(former, link):
                return former
    raise Misuse(
        f"{link.folder} holds what changed since the back-up of {link.former_taken}, which lay in {link.backup.since} "
        f"and is neither there nor beside {link.folder}: bring it back, as it was, to either place, or restore an "
        "older back-up",
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
    """`Corruption` if the file is not as it was written."""
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
        raise Corruption(f"{path} is not as the back-up was written: its checksum differs")
