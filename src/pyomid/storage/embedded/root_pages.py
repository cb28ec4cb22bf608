"""LMDB's two root pages, mapped a second time: the number of the newest commit, as `mdb_env_info` tells it.

LMDB writes them in turns, each with the number of the commit whose tree it names; the greater one counts. py-lmdb tells
it too, in a dict of all it knows of the environment, which costs ten times as much as the read itself.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path
from typing import Final

import lmdb

from pyomid.owned_files import FileId

KNOWN_LMDB: Final = (0, 9)
META: Final = struct.Struct("<16x II")
"""The first page: its header, then LMDB's magic number and the version of its data format."""
KNOWN_META: Final = (0xBEEFC0DE, 1)
_NUMBER_AT: Final = 144
"""Of the commit's number in a root page: after header, magic number and version, address and size of the map, the
records of two databases, and the last page."""
_WORD_BYTES: Final = 8


def is_known_here() -> bool:
    """Whether this LMDB and this machine are ones whose pages have the known format."""
    return lmdb.version()[:2] == KNOWN_LMDB and sys.byteorder == "little" and sys.maxsize > 1 << 32


class RootPages:
    """Of one open file. Reading needs no lock, and goes on for as long as somebody holds it."""

    __slots__ = ("_first", "_second", "_words")

    def __init__(self, mapped: mmap.mmap, page_bytes: int) -> None:
        self._words = memoryview(mapped).cast("Q")
        self._first = _NUMBER_AT // _WORD_BYTES
        self._second = (page_bytes + _NUMBER_AT) // _WORD_BYTES

    def newest(self) -> int:
        words = self._words
        first, second = words[self._first], words[self._second]
        return first if first > second else second


def mapped_root_pages(file: Path, data_file: FileId, environment: lmdb.Environment) -> RootPages | None:
    """None where the file is another one by now, cannot be mapped, or is not of the known format: py-lmdb tells the
    number then."""
    if not is_known_here():
        return None
    try:
        page_bytes = int(environment.stat()["psize"])
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
            if (status.st_dev, status.st_ino) != data_file:
                return None
            mapped = mmap.mmap(opened.fileno(), 2 * page_bytes, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return None
    if any(META.unpack_from(mapped, at) != KNOWN_META for at in (0, page_bytes)):
        return None
    pages = RootPages(mapped, page_bytes)
    before, told, after = environment.info()["last_txnid"], pages.newest(), environment.info()["last_txnid"]
    return pages if before <= told <= after else None
