"""Files in a folder of one user, or of a group that shares it: links are not followed, other users cannot read.

    folder created      0700, its files 0600          shared by a group: 02770 and 0660, recorded by the mode of LAYOUT
    folder opened       its owner is this user, or it is shared with a group of this user's and the user asked for it
    file opened         O_NOFOLLOW, a regular file: through a link, its target would be overwritten

A user who may write in the folder may replace its files; so a world-writable folder is refused.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path
from typing import Final

from pyomid.errors import Misuse
from pyomid.platforms import process_state

LAYOUT_FILE: Final = "LAYOUT"
"""The file that makes a folder a database. Its mode records whether a group shares it."""

FileId = tuple[int, int]
"""Device and inode: identify a file regardless of its name."""

_OWNER_FILE, _OWNER_FOLDER = 0o600, 0o700
_GROUP_FILE, _GROUP_FOLDER = 0o660, 0o2770


def file_id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def id_at(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> FileId | None:
    """Return the id of the file at `path` (of a link itself, not its target); None if there is none."""
    try:
        return file_id(os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_shared(folder: Path) -> bool:
    """Return whether the database in `folder` was created for a group."""
    try:
        return bool(os.stat(folder / LAYOUT_FILE).st_mode & stat.S_IWGRP)
    except OSError:
        return False


def file_mode(shared: bool) -> int:
    return _GROUP_FILE if shared else _OWNER_FILE


def folder_mode(shared: bool) -> int:
    return _GROUP_FOLDER if shared else _OWNER_FOLDER


def open_own(path: str | os.PathLike[str], flags: int, *, shared: bool = False, dir_fd: int | None = None) -> int:
    """Open a regular file and return its descriptor. A new file belongs to the owner, or to the group too.

    Raises `Misuse` for a link and for anything but a regular file; otherwise `OSError` as `os.open` does.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, file_mode(shared), dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Misuse(f"{path} is a link, which pyomid does not follow: remove it", path=str(path)) from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Misuse(f"{path} is not a regular file: remove it", path=str(path))
        if shared and flags & os.O_CREAT and status.st_uid == os.geteuid():
            os.fchmod(fd, _GROUP_FILE)  # the umask removed the group's bits
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_folder(path: Path, *, shared: bool) -> None:
    """Create the folder for its owner (or the group) alone; parents that are missing get the umask's mode. An existing
    empty folder gets this mode too; a folder that is not empty keeps its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_OWNER_FOLDER, exist_ok=True)
    status = os.stat(path)
    if status.st_uid == os.geteuid() and not any(path.iterdir()):
        os.chmod(path, folder_mode(shared))


def check_owner(folder: Path, *, shared: bool) -> None:
    """Raise `Misuse` if the folder is world-writable, or another user's and not shared with this one."""
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise Misuse(f"{folder} is not a folder", folder=str(folder))
    if status.st_mode & stat.S_IWOTH:
        raise Misuse(
            f"folder {folder} is world-writable, so that anyone may replace a database in it: name a folder of your "
            f"own (a new one inside it will do), or chmod o-w {folder}",
            folder=str(folder),
        )
    if status.st_uid == os.geteuid():
        return
    owner, me = user_text(status.st_uid), user_text(os.geteuid())
    if not shared:
        raise Misuse(
            f"folder {folder} belongs to {owner}, not to you ({me}): connect as its owner, or, if a group shares it, "
            "with option folderAccess=group",
            folder=str(folder),
        )
    if not is_shared(folder) or (os.geteuid() != 0 and status.st_gid not in (os.getegid(), *os.getgroups())):
        raise Misuse(
            f"folder {folder} belongs to {owner}, and is not shared with a group of yours ({me}): its owner must "
            "create it with option folderAccess=group",
            folder=str(folder),
        )


def user_text(uid: int) -> str:
    """Return the user by name, or by number if it has no name."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def process_text(pid: int) -> str:
    """Return the state of a process of this machine, for messages."""
    state = process_state(pid)
    if not state:
        return "it cannot be found on this machine"
    return {"T": "it is stopped", "t": "it is stopped", "D": "it waits for a disk", "Z": "it is dead"}.get(
        state, "it is running"
    )


def sync_folder(path: Path) -> None:
    """Make the names of the files in the folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
