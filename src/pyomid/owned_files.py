"""Files in a folder of one user, or of a group that shares it: no link is followed, no other user reads.

    folder made         0700, its files 0600          shared by a group: 02770 and 0660, which LAYOUT's own mode records
    folder opened       its owner is this user, or it is shared with a group of this user's and the user asked for it
    file opened         O_NOFOLLOW, a regular file: a link would have its target overwritten

A user who may write in the folder may replace its files; so a folder that everybody may write in is refused.
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
"""The file that makes a folder a database. Its mode says for which users."""

FileId = tuple[int, int]
"""Device and inode: a file, whatever its name."""

_OWNER_FILE, _OWNER_FOLDER = 0o600, 0o700
_GROUP_FILE, _GROUP_FOLDER = 0o660, 0o2770


def file_id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def id_at(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> FileId | None:
    """The id of the file at `path`, of a link itself too; None if there is none."""
    try:
        return file_id(os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_shared(folder: Path) -> bool:
    """Whether the database in `folder` was made for a group."""
    try:
        return bool(os.stat(folder / LAYOUT_FILE).st_mode & stat.S_IWGRP)
    except OSError:
        return False


def file_mode(shared: bool) -> int:
    return _GROUP_FILE if shared else _OWNER_FILE


def folder_mode(shared: bool) -> int:
    return _GROUP_FOLDER if shared else _OWNER_FOLDER


def open_own(path: str | os.PathLike[str], flags: int, *, shared: bool = False, dir_fd: int | None = None) -> int:
    """`os.open` of a regular file that is not a link. A new file is the owner's, or the group's too.

    `OSError` as the system raises it, but `Misuse` for a link and for anything that is not a file.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, file_mode(shared), dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Misuse(f"{path} is a link, and a link is never followed there: remove it", path=str(path)) from error
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Misuse(f"{path} is not a file: remove it", path=str(path))
        if shared and flags & os.O_CREAT and status.st_uid == os.geteuid():
            os.fchmod(fd, _GROUP_FILE)  # the umask took the group's part away
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_folder(path: Path, *, shared: bool) -> None:
    """The folder exists on return, for its owner (or the group) alone; its parents follow the umask. An empty folder
    gets this mode, too; a folder that holds other things keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_OWNER_FOLDER, exist_ok=True)
    status = os.stat(path)
    if status.st_uid == os.geteuid() and not any(path.iterdir()):
        os.chmod(path, folder_mode(shared))


def check_owner(folder: Path, *, shared: bool) -> None:
    """`Misuse` if the folder is another user's and not shared with this one, or if everybody may write in it."""
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise Misuse(f"{folder} is not a folder", folder=str(folder))
    if status.st_mode & stat.S_IWOTH:
        raise Misuse(
            f"everybody may write in the folder {folder}, and replace a database in it: name a folder of your own "
            f"(a new one inside it is made so), or chmod o-w {folder}",
            folder=str(folder),
        )
    if status.st_uid == os.geteuid():
        return
    owner, me = user_text(status.st_uid), user_text(os.geteuid())
    if not shared:
        raise Misuse(
            f"folder {folder} belongs to {owner}, not to you ({me}): connect as its owner, or, where a group shares "
            "it, with option folderAccess=group",
            folder=str(folder),
        )
    if not is_shared(folder) or (os.geteuid() != 0 and status.st_gid not in (os.getegid(), *os.getgroups())):
        raise Misuse(
            f"folder {folder} belongs to {owner}, and is not shared with a group of yours ({me}): its owner makes it "
            "with option folderAccess=group",
            folder=str(folder),
        )


def user_text(uid: int) -> str:
    """The user by name, or by number if it has no name."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def process_text(pid: int) -> str:
    """What a process of this machine does; for messages."""
    state = process_state(pid)
    if not state:
        return "it is not seen from here"
    return {"T": "it is stopped", "t": "it is stopped", "D": "it waits for a disk", "Z": "it is dead"}.get(
        state, "it is alive"
    )


def sync_folder(path: Path) -> None:
    """Makes durable which files have which names in the folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
