"""Copies of an embedded folder as a crash at this moment would leave it."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from pyomid.storage.embedded.commit_log.index import INDEX_FILE

LOCK_FILES = ("recent.lock", "lock.mdb")
"""Not copied: to open and close one in the process that holds it would end its lock (POSIX)."""


def image_after_kill(folder: Path, copy: Path) -> Path:
    """The writer is dead, the machine lives: what it wrote is there, synced or not, and the index is believed."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*LOCK_FILES, "*.sock"))
    return copy


def image_after_power_loss(folder: Path, copy: Path) -> Path:
    """The index is of another boot."""
    image_after_kill(folder, copy)
    if (copy / "commits" / INDEX_FILE).exists():
        with open(copy / "commits" / INDEX_FILE, "r+b") as index:
            index.write(struct.pack("<qq", 0, 0))
    return copy
