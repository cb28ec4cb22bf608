"""LMDB's files in a process: it keeps its locks though it reads its folder's files, and no program inherits a file."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import lmdb
import pytest

from conformance import FAMILIES, A, column_write, scanned
from pyomid.errors import Misuse, Unavailable
from pyomid.folder import EmbeddedStore
from pyomid.folder import environment as environments
from pyomid.folder.environment import HeldState
from pyomid.folder.layout import CELLS
from pyomid.folder.lmdb_files import hold_locks
from pyomid.types import TableInfo

ROWS = 300


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path / "db")
    store.create_table(TableInfo("t", FAMILIES))
    store.write_cells("t", 50, [column_write(b"%04d" % n, (A, b"%04d" % n * 100)) for n in range(ROWS)])
    yield store
    store.close()


@contextmanager
def reading(store: EmbeddedStore) -> Iterator[HeldState]:
    """A read that lasts."""
    held = HeldState(store._environment)
    held.hold()
    try:
        yield held
    finally:
        held.end()


def opened(folder: Path) -> None:
    open(folder / "data" / "lock.mdb", "rb").close()


def duplicated(folder: Path) -> None:
    fd = os.open(folder / "data" / "lock.mdb", os.O_RDONLY)
    os.close(os.dup(fd))
    os.close(fd)


def copied(folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "copy")


def archived(folder: Path) -> None:
    with tarfile.open(folder.parent / "archive.tar", "w") as archive:
        archive.add(folder)


def hashed(folder: Path) -> None:
    for file in folder.glob("**/*"):
        if file.is_file():
            hashlib.file_digest(file.open("rb"), "sha256")


def in_a_thread(folder: Path) -> None:
    thread = threading.Thread(target=opened, args=(folder,))
    thread.start()
    thread.join()


READS: list[Callable[[Path], None]] = [opened, duplicated, copied, archived, hashed, in_a_thread]

REPLACES_ALL = """
import sys
from conformance import A, column_write
from pyomid.folder import EmbeddedStore
store = EmbeddedStore(sys.argv[1], create=False)
print(store._environment._lmdb.readers(), flush=True)
for round in range(5):
    store.write_cells("t", 50, [column_write(b"%04d" % n, (A, b"new%d" % round * 200)) for n in range(300)])
store.close()
"""


def replace_all_elsewhere(folder: Path) -> str:
    """Replace every page in another process; return the readers that it found alive at its start."""
    run = subprocess.run(
        [sys.executable, "-c", REPLACES_ALL, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return run.stdout


@pytest.mark.process
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "beside another"])
@pytest.mark.parametrize("read_files", READS)
def test_reading_the_folders_files_ends_no_reader(
    tmp_path: Path, store: EmbeddedStore, read_files: Callable[[Path], None], is_alone: bool
) -> None:
    """Alone, the next process would take itself for the first one, and make LMDB's lock file anew under the reader."""
    folder = tmp_path / "db"
    with beside_another(folder, is_alone), reading(store) as held:
        with held.records(CELLS) as records:
            before = list(records)
        read_files(folder)
        assert str(os.getpid()) in replace_all_elsewhere(folder)
        with held.records(CELLS) as records:
            assert list(records) == before
    assert str(os.getpid()) not in replace_all_elsewhere(folder)


@contextmanager
def beside_another(folder: Path, is_alone: bool) -> Iterator[None]:
    """Another process has the folder open too, unless this one `is_alone`."""
    if is_alone:
        yield
        return
    code = "import sys; from pyomid.folder import EmbeddedStore; store = EmbeddedStore(sys.argv[1])"
    command = [sys.executable, "-c", f"{code}; print('open', flush=True); sys.stdin.read()", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        yield


@pytest.mark.process
def test_a_folder_opened_again_keeps_its_locks(tmp_path: Path, store: EmbeddedStore) -> None:
    environment = store._environment
    environment._panicked = True
    assert len(scanned(store, "t")) == ROWS
    with reading(store):
        opened(tmp_path / "db")
        assert str(os.getpid()) in replace_all_elsewhere(tmp_path / "db")


@pytest.mark.fast
def test_a_folder_is_opened_again_while_a_child_has_a_copy_of_its_descriptor(
    tmp_path: Path, store: EmbeddedStore
) -> None:
    """Between its fork and its exec a child has every descriptor, and with them what they lock."""
    assert store._environment._locks is not None
    copy = os.dup(store._environment._locks.fileno())
    store.close()
    again = EmbeddedStore(tmp_path / "db")
    os.close(copy)
    with reading(again):
        assert len(scanned(again, "t")) == ROWS
    again.close()


@pytest.mark.fast
def test_a_lock_file_that_is_replaced_while_the_folder_is_opened_is_noticed(
    tmp_path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    replaced = []

    def replacing(folder: Path, environment: lmdb.Environment) -> FileIO:
        replaced.append((folder / "lock.mdb").rename(folder / "old"))
        shutil.copy(folder / "old", folder / "lock.mdb")
        return hold_locks(folder, environment)

    monkeypatch.setattr(environments, "hold_locks", replacing)
    with pytest.raises(Unavailable, match="was replaced while it was being opened"):
        EmbeddedStore(tmp_path / "db", create=False)
    assert replaced
    assert not any(str(tmp_path) in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))


@pytest.mark.process
def test_a_read_whose_lock_file_was_removed_is_refused(tmp_path: Path, store: EmbeddedStore) -> None:
    """The next process makes another lock file, in which it sees none of this one's readers."""
    environment = store._environment

    def removed_meanwhile(transaction: object) -> None:
        (tmp_path / "db" / "data" / "lock.mdb").unlink()
        environment._looked_s = float("-inf")  # as if the read had lasted

    with pytest.raises(Misuse, match=r"lock\.mdb in it, was removed"):
        environment.read(removed_meanwhile)
    with pytest.raises(Misuse, match=r"lock\.mdb in it, was removed"):
        store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    replace_all_elsewhere(tmp_path / "db")
    store.close()
    again = EmbeddedStore(tmp_path / "db")
    assert len(scanned(again, "t")) == ROWS
    again.close()


@pytest.mark.fast
def test_a_copy_that_lasts_is_refused_if_the_lock_file_was_removed(tmp_path: Path, store: EmbeddedStore) -> None:
    with reading(store) as held:
        held.check()
        (tmp_path / "db" / "data" / "lock.mdb").unlink()
        with pytest.raises(Misuse, match=r"lock\.mdb in it, was removed"):
            held.check()


@pytest.mark.fast
def test_no_program_inherits_a_file_of_the_folder(tmp_path: Path, store: EmbeddedStore) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "db")
    for each in (store, EmbeddedStore(link)):
        listed = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True
        )
        assert str(tmp_path) not in listed.stdout
        each.close()


@pytest.mark.process
def test_a_killed_process_keeps_no_reader_though_its_child_lives(tmp_path: Path, store: EmbeddedStore) -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=_fork_and_die, args=(str(tmp_path / "db"), theirs))
    child.start()
    theirs.close()
    grandchild = ours.recv()
    child.join()
    try:
        assert child.exitcode == -signal.SIGKILL
        assert str(child.pid) in store._environment._lmdb.readers()
        assert str(child.pid) not in replace_all_elsewhere(tmp_path / "db")
    finally:
        os.kill(grandchild, signal.SIGKILL)


def _fork_and_die(folder: str, pipe: multiprocessing.connection.Connection) -> None:
    store = EmbeddedStore(folder)
    pid = os.fork()
    if pid == 0:
        signal.pause()

    def die(transaction: object) -> None:
        pipe.send(pid)
        os.kill(os.getpid(), signal.SIGKILL)

    store._environment.read(die)


TRIES = """
import os, sys, threading, time
from conformance import A, column_write
from pyomid.folder import EmbeddedStore
from pyomid.folder.environment import HeldState
from pyomid.folder.layout import CELLS
folder, reads = sys.argv[1], int(sys.argv[2])

def read_lock_file():
    while True:
        open(f"{folder}/data/lock.mdb", "rb").close()

def values(held):
    with held.records(CELLS) as records:
        return [bytes(value) for _, value in records]

threading.Thread(target=read_lock_file, daemon=True).start()
for _ in range(reads):
    store = EmbeddedStore(folder, create=False)
    held = HeldState(store._environment)
    held.hold()
    before = values(held)
    time.sleep(0.005)
    assert values(held) == before and len({value[-400:] for value in before}) == 1
    held.end()
    store.close()
"""
REWRITES = """
import sys
from itertools import count
from conformance import A, column_write
from pyomid.folder import EmbeddedStore
for number in count():
    store = EmbeddedStore(sys.argv[1], create=False)
    for _ in range(1 + number % 5):
        value = b"%04d" % (number % 10000) * 100
        store.write_cells("t", 50, [column_write(b"%04d" % n, (A, value)) for n in range(300)])
    store.close()
"""


@pytest.mark.process
def test_reads_stay_whole_whenever_the_lock_file_is_read(tmp_path: Path, store: EmbeddedStore) -> None:
    """A thread reads the file over and over, also while the folder is opened; now and then each process is the only
    one, which makes LMDB's lock file anew."""
    store.write_cells("t", 50, [column_write(b"%04d" % n, (A, b"0000" * 100)) for n in range(ROWS)])
    store.close()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", REWRITES, str(tmp_path / "db")], env=environment) as writer:
        try:
            command = [sys.executable, "-c", TRIES, str(tmp_path / "db"), "200"]
            subprocess.run(command, check=True, env=environment, timeout=300)
        finally:
            writer.kill()
