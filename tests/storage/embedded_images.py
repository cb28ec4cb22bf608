"""Copies of an embedded folder as a crash at this moment would leave it."""

from __future__ import annotations

import shutil
from pathlib import Path

LOCK_FILES = ("lock.mdb",)
"""Not copied: to open and close one in the process that holds it would end its lock (POSIX)."""


def image_after_kill(folder: Path, copy: Path) -> Path:
    """The writer is dead, the machine lives: what it wrote is there, synced or not."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*LOCK_FILES, "*.sock"))
    return copy
