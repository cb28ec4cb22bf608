"""The file that the processes of a folder share (folder.md, "Turn and areas")."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.storage.small_disks import small_disk

import pyomid
from pyomid.folder.shared_file import AREA_BYTES, AREAS, FILE_BYTES, ROOM, SHARED_FILE, SharedFile, opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def pair(folder: Path) -> Iterator[tuple[SharedFile, SharedFile]]:
    """Two processes' views: their locks are of open file descriptions."""
    owner, holder = SharedFile(folder), SharedFile(folder)
    yield owner, holder
    owner.close()
    holder.close()


def post(owner: SharedFile, content: bytes) -> int:
    posted = owner.prepared(content)
    if posted is None:
        return 0
    owner.post(posted)
    return posted.number


def test_each_process_has_a_place_until_it_ends(folder: Path) -> None:
    first, second = SharedFile(folder), SharedFile(folder)
    assert (first.place, second.place) == (0, 1)
    first.hold(7, 5)
    assert second.open_starts() == [(os.getpid(), 7, 5)]
    first.close()
    assert second.open_starts() == []
    assert not second.lives(0)
    third = SharedFile(folder)
    assert third.place == 0
    assert second.open_starts() == []
    third.close()
    second.close()


def test_other_descriptors_of_the_file_do_not_end_a_place(folder: Path, pair: tuple[SharedFile, SharedFile]) -> None:
    owner, holder = pair
    with (folder / SHARED_FILE).open("rb") as copied:
        copied.read()
    assert holder.lives(owner.place or 0)


def test_the_disk_space_grows_with_the_processes(folder: Path) -> None:
    opened_files = [SharedFile(folder) for _ in range(3)]
    found = (folder / SHARED_FILE).stat()
    assert found.st_size == FILE_BYTES
    assert found.st_blocks * 512 < FILE_BYTES // 10
    for each in opened_files:
        each.close()


def test_posted_requests_are_taken_once(pair: tuple[SharedFile, SharedFile]) -> None:
    """L6: and are not withdrawn any more."""
    owner, holder = pair
    number = post(owner, b"requests")
    (posted,) = holder.gather()
    assert (posted.place.number, posted.number, posted.content) == (owner.place, number, b"requests")
    assert list(holder.gather()) == []
    assert not owner.withdraw(number)
    assert not owner.is_done(number)
    holder.mark_done(posted)
    assert owner.is_done(number)
    owner.clear(number)
    assert list(holder.gather()) == []


def test_withdrawn_requests_are_not_taken(pair: tuple[SharedFile, SharedFile]) -> None:
    owner, holder = pair
    number = post(owner, b"requests")
    assert owner.withdraw(number)
    assert list(holder.gather()) == []
    assert post(owner, b"others") == number + 1


@pytest.mark.parametrize("at", [0, 8, 16, 24, 30])
def test_a_torn_area_is_passed(folder: Path, pair: tuple[SharedFile, SharedFile], at: int) -> None:
    """L4: its content is not that of its number."""
    owner, holder = pair
    number = post(owner, b"requests")
    area = FILE_BYTES - AREAS * AREA_BYTES
    with (folder / SHARED_FILE).open("r+b") as file:
        file.seek(area + at)
        (byte,) = file.read(1)
        file.seek(area + at)
        file.write(bytes([byte ^ 1]))
    assert list(holder.gather()) == []
    assert not owner.is_done(number)


def test_what_has_no_room_is_not_posted(pair: tuple[SharedFile, SharedFile]) -> None:
    owner, holder = pair
    assert post(owner, bytes(ROOM + 1)) == 0
    assert post(owner, bytes(ROOM)) > 0
    assert [len(posted.content) for posted in holder.gather()] == [ROOM]


def test_a_dead_owners_requests_are_not_taken(folder: Path, pair: tuple[SharedFile, SharedFile]) -> None:
    """L5: neither before nor after another process has the place."""
    owner, holder = pair
    post(owner, b"requests")
    owner.close()
    assert list(holder.gather()) == []
    successor = SharedFile(folder)
    assert successor.place == 0
    assert list(holder.gather()) == []
    successor.close()


@pytest.mark.parametrize("content", [b"\1" * FILE_BYTES, b"\1" * 8 + bytes(FILE_BYTES - 8)], ids=["full", "sparse"])
def test_a_file_of_another_layout_is_left_alone(folder: Path, content: bytes) -> None:
    (folder / SHARED_FILE).write_bytes(content)
    shared = SharedFile(folder)
    assert shared.place is None
    assert post(shared, b"requests") == 0
    assert list(shared.gather()) == []
    shared.hold(5, 1)
    shared.end_turn()
    shared.close()
    assert (folder / SHARED_FILE).read_bytes() == content


def test_a_full_disk_kills_nobody(tmp_path: Path) -> None:
    with small_disk(tmp_path, "1m") as disk:
        (disk / "data").mkdir()
        first = opened(disk / "data")
        assert first is not None
        with (disk / "rest").open("wb", buffering=0) as rest, suppress(OSError):
            while rest.write(bytes(4096)):
                pass
        first.hold(5, 1)
        assert post(first, b"requests") > 0
        second = opened(disk / "data")  # without a place if that has no room
        if second is not None:
            assert [posted.content for posted in second.gather()] == [b"requests"]
            second.hold(6, 1)
            second.close()
        first.close()
        del first, second  # and their maps


FORKED = """
import os, signal, sys
import pyomid
db = pyomid.connect(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
    signal.pause()
sys.stdin.read(1)
os._exit(0)
"""


def test_a_forked_child_does_not_keep_its_parents_place(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    pyomid.connect(url).close()
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKED, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    shared = SharedFile(tmp_path / "db" / "data")
    assert parent.pid in shared.processes()
    parent.stdin.write("x")
    parent.stdin.flush()
    parent.wait()
    assert parent.pid not in shared.processes()
    parent.stdin.close()
    shared.close()
    os.kill(child, signal.SIGKILL)


WITHOUT_DESCRIPTIONS = """
import sys
from pathlib import Path
import pyomid
from pyomid.folder.shared_file import SharedFile
shared = SharedFile(Path(sys.argv[1]))
shared.hold(9, 3)
print(shared.place, [shared.lives(place) for place in range(3)], flush=True)
sys.stdin.read()
"""


def test_places_without_locks_of_descriptions(folder: Path) -> None:
    """As on macOS: POSIX locks, which are of a process."""
    command = [sys.executable, "-c", WITHOUT_DESCRIPTIONS, str(folder)]
    env = {**os.environ, "PYOMID_PORTABLE": "1"}
    running, told = [], []
    for _ in range(2):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        running.append(process)
        assert process.stdout is not None
        told.append(process.stdout.readline())
    assert told == ["0 [True, False, False]\n", "1 [True, True, False]\n"]
    running[0].communicate()
    third = subprocess.run(command, input="", stdout=subprocess.PIPE, text=True, check=True, env=env)
    assert third.stdout == "0 [True, True, False]\n"
    running[1].communicate()
