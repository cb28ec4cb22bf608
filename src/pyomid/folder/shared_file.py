"""The file that the processes of a folder share while they have it open. Its content is hints, never the truth.

    word 0            layout of this file
    word 1            number of turns that have ended; a process that waits for a turn waits until this word changes
    word 2            the number of places that were ever taken
    word 3            the file's id, drawn at random
    places, from 4096 on, 64 bytes each:  word 0   a start at or below the oldest open one of its process, or 0
                                          word 1   process id
                                          word 2   state of its requests, and their number
                                          word 3   when that start began: nanoseconds of the boot clock
    areas of the first 256 places, after all places, 16 KiB each: length (8), number (8), checksum (8), requests

A process takes a place when it opens the folder. Its lock on the place's byte shows that it lives, and ends with the
process (`system.lock_byte`). The file is sparse: each process allocates its place and area. A process may get no place
(too many processes, no room on the disk). Then it takes the turn itself for each commit. Its snapshots are not
protected from cleaning by others, so a read may raise `SnapshotTooOld`.

State and number are one word, changed by compare-and-swap:

    EMPTY ──post──▶ POSTED ──a holder gathers──▶ TAKEN ──its transaction is durable──▶ DONE ──the owner reads──▶ EMPTY
      ▲                │
      └──withdraw──────┘

A holder writes the outcomes beside the cells, under the file's id and the place, with the number. Before a holder
performs requests, it looks for their outcomes there; the owner reads the outcomes there (folder.md, L3). Numbers count
up from a random one. So they are unique even if the file was deleted and two groups of processes use different files
over one database.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from pyomid.folder.native import shared_words
from pyomid.system import is_byte_locked, is_shared, lock_byte, open_own, reserve

SHARED_FILE: Final = "shared"
PLACES: Final = 4096
AREAS: Final = 256
AREA_BYTES: Final = 16 << 10
_HEAD_BYTES: Final = 4096
_PLACE_BYTES: Final = 64
_FIRST_AREA: Final = _HEAD_BYTES + PLACES * _PLACE_BYTES
FILE_BYTES: Final = _FIRST_AREA + AREAS * AREA_BYTES
_LAYOUT: Final = 0x7079_6F6D_6964_0002
_AT_LAYOUT, _AT_TURNS, _AT_PLACES, _AT_ID = range(4)
_OLDEST, _PID, _STATE, _SINCE = range(4)
EMPTY, POSTED, TAKEN, DONE = range(4)
_PLACE_WORDS: Final = _PLACE_BYTES // 8
_FIRST_STATE: Final = _HEAD_BYTES // 8 + _STATE
_NUMBER_MAX: Final = (1 << 60) - 1
_CONTENT: Final = struct.Struct("<QQQ")
ROOM: Final = AREA_BYTES - _CONTENT.size


class Place(NamedTuple):
    """A place in one shared file."""

    file: int
    number: int


class Posted(NamedTuple):
    """Requests that one process posted for others to perform."""

    place: Place
    number: int
    content: bytes


class SharedFile:
    """This process's view of the file, and its place in it. Thread-safe, if only one thread at a time posts."""

    def __init__(self, folder: Path) -> None:
        """Raises `OSError` if the file cannot be opened or has no room."""
        self._opened = FileIO(_opened(folder), "r+")  # if an interrupt loses it, its finalizer leaves the place
        self._file = self._opened.fileno()
        self.place: int | None = None
        self._first_word = 0
        """The index of the first word of this process's place."""
        try:
            self._words = _mapped(folder)
            if self._words.load(_AT_LAYOUT) == 0:
                self._words.swap(_AT_LAYOUT, 0, _LAYOUT)
            self._is_known = self._words.load(_AT_LAYOUT) == _LAYOUT
            if self._is_known and self._words.load(_AT_ID) == 0:
                self._words.swap(_AT_ID, 0, random.SystemRandom().randrange(1, 1 << 63))
            self._id = self._words.load(_AT_ID)
            self._number = random.SystemRandom().randrange(1, _NUMBER_MAX >> 1)
            self._last_posted = 0
            if self._is_known:
                self._take_place()
        except BaseException:
            self._opened.close()
            raise

    def _take_place(self) -> None:
        for place in range(PLACES):
            if lock_byte(self._file, place):
                self._make_room(place)
                word = self._word(place, _STATE)
                self._words.store(self._word(place, _OLDEST), 0)
                self._words.store(self._word(place, _PID), os.getpid())
                self._words.store(word, self._words.load(word) & ~3)  # set EMPTY, and keep the number
                while (known := self._words.load(_AT_PLACES)) <= place:
                    self._words.swap(_AT_PLACES, known, place + 1)
                self.place, self._first_word = place, self._word(place, 0)
                return

    def _make_room(self, place: int) -> None:
        """Allocate the parts of the file that this process writes, because touching a mapped hole on a full disk would
        kill it. Other processes only read there."""
        reserve(self._file, _PLACE_BYTES, _HEAD_BYTES + place * _PLACE_BYTES)
        if place < AREAS:
            reserve(self._file, AREA_BYTES, _FIRST_AREA + place * AREA_BYTES)

    def lives(self, place: int) -> bool:
        """Return whether a living process has this place."""
        return place == self.place or is_byte_locked(self._file, place)

    @staticmethod
    def _word(place: int, which: int) -> int:
        return (_HEAD_BYTES + place * _PLACE_BYTES) // 8 + which

    def _places(self, most: int = PLACES) -> range:
        return range(min(self._words.load(_AT_PLACES), most)) if self._is_known else range(0)

    # Open starts

    def hold(self, start_ts: int, since_ns: int = 0) -> None:
        """Note a start at or below the oldest open one of this process, and since when it is open; 0 if none is
        open."""
        if self.place is not None:
            self._words.store(self._first_word + _SINCE, since_ns)
            self._words.store(self._first_word + _OLDEST, start_ts)

    def held(self) -> int:
        return 0 if self.place is None else self._words.load(self._first_word + _OLDEST)

    def open_starts(self) -> list[tuple[int, int, int]]:
        """Return (process id, oldest open start, since when) for every living process that has an open start."""
        found: list[tuple[int, int, int]] = []
        for place in self._places():
            oldest = self._words.load(self._word(place, _OLDEST))
            if oldest and self.lives(place):
                pid, since_ns = (self._words.load(self._word(place, which)) for which in (_PID, _SINCE))
                found.append((pid, oldest, since_ns))
        return found

    def processes(self) -> list[int]:
        return [self._words.load(self._word(place, _PID)) for place in self._places() if self.lives(place)]

    # The end of turns

    def turns(self) -> int:
        return self._words.load(_AT_TURNS)

    def end_turn(self) -> None:
        if self._is_known:
            self._words.add(_AT_TURNS, 1)
            self._words.wake(_AT_TURNS)

    def wait(self, seen: int, seconds: float) -> None:
        """Wait, at most this long, until a turn has ended since `turns` returned `seen`."""
        self._words.wait(_AT_TURNS, seen, seconds)

    # The owner's side

    def prepared(self, content: bytes) -> Posted | None:
        """Write requests into this process's area, and return them. Returns None if the process has no area, or the
        requests are too long. Nobody takes them before `post`."""
        if self.place is None or self.place >= AREAS or len(content) > ROOM:
            return None
        self._number += 1
        at = _FIRST_AREA + self.place * AREA_BYTES
        head = _CONTENT.pack(len(content), self._number, _checksum(self._number, content))
        self._words.put(at, head + content)
        return Posted(Place(self._id, self.place), self._number, content)

    def post(self, posted: Posted) -> None:
        """Let other processes perform the prepared requests. The caller must have stored the result of `prepared`
        already, because an interrupt could lose it."""
        word, value = self._word(posted.place.number, _STATE), posted.number << 2 | POSTED
        self._last_posted = posted.number  # no call up to the store: an interrupt comes before both, or after both
        self._words.store(word, value)

    def is_done(self, number: int) -> bool:
        """Return whether a holder says that it performed this process's requests. If that is true, their outcome is in
        the database."""
        return self._words.load(self._word(self.place or 0, _STATE)) == number << 2 | DONE

    def withdraw(self, number: int) -> bool:
        """Withdraw the posted requests, if no holder has taken them yet (L6). Returns whether nobody can perform them
        any more."""
        word = self._word(self.place or 0, _STATE)
        return self._last_posted != number or self._words.swap(word, number << 2 | POSTED, number << 2 | EMPTY)

    def clear(self, number: int) -> None:
        """Empty this process's area, after the process has read the outcome."""
        self._words.store(self._word(self.place or 0, _STATE), number << 2 | EMPTY)

    # The holder's side

    def gather(self) -> Iterator[Posted]:
        """Take the requests that living processes posted, and yield them (L5)."""
        for place in self._places(AREAS):
            word = _FIRST_STATE + place * _PLACE_WORDS
            value = self._words.load(word)
            if value & 3 != POSTED or place == self.place or not self.lives(place):
                continue
            number = value >> 2
            if self._words.swap(word, value, number << 2 | TAKEN):
                content = self._content(place, number)
                if content is not None:
                    yield Posted(Place(self._id, place), number, content)

    def mark_done(self, posted: Posted) -> None:
        """Mark posted requests as done, so that their owner learns that the outcomes are durable."""
        word, number = self._word(posted.place.number, _STATE), posted.number
        self._words.swap(word, number << 2 | TAKEN, number << 2 | DONE)

    def give_back(self, posted: Posted) -> None:
        """Return requests that this holder could not perform to their owner, or another holder. Nothing of them was
        written."""
        word, number = self._word(posted.place.number, _STATE), posted.number
        self._words.swap(word, number << 2 | TAKEN, number << 2 | POSTED)

    def _content(self, place: int, number: int) -> bytes | None:
        """L4: return the content with this number. Returns None if it has another number, or is torn; then its owner
        finds out."""
        at = _FIRST_AREA + place * AREA_BYTES
        size, found, checksum = _CONTENT.unpack(self._words.get(at, _CONTENT.size))
        if found != number or size > ROOM:
            return None
        content = self._words.get(at + _CONTENT.size, size)
        return content if _checksum(number, content) == checksum else None

    def close(self) -> None:
        """Give up the place. In a forked child, the parent process keeps it. Idempotent."""
        self._file, self.place, self._is_known = -1, None, False
        self._words.close()
        self._opened.close()


def _opened(folder: Path) -> int:
    return open_own(folder / SHARED_FILE, os.O_RDWR | os.O_CREAT, shared=is_shared(folder.parent))


def _mapped(folder: Path) -> shared_words.Words:
    """Map the file through a file description of its own. A mapping keeps its file open, and a forked child inherits
    the mapping; with a shared description, the locks of a dead parent would stay."""
    file = _opened(folder)
    try:
        if os.fstat(file).st_size < FILE_BYTES:
            os.ftruncate(file, FILE_BYTES)
        reserve(file, _HEAD_BYTES)
        return shared_words.Words(file, FILE_BYTES)
    finally:
        os.close(file)


def _checksum(number: int, content: bytes) -> int:
    return crc32(content, number & 0xFFFF_FFFF)


def opened(folder: Path) -> SharedFile | None:
    """Return the shared file, or None if it cannot be used. In that case this process works alone."""
    with suppress(OSError):
        return SharedFile(folder)
    return None
