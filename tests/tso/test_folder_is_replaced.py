"""A folder is removed, moved or created anew while its TSO and clients run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from service_process import is_alive, kill_tso, served, tso_pid

import pyomid
from conformance import FAMILIES, A, column_write, scanned
from pyomid.errors import Misuse, OmidError
from pyomid.server.leadership import SOCKET_FILE, FolderLock
from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedStore, environment, open_folder
from pyomid.types import TableInfo
from waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

WAIT_S = 30.0


@pytest.fixture
def url(folder: Path) -> str:
    return f"omid://{folder}?tsoIdleExitSeconds=20&commitRetrySeconds=5"


def put_one(db: pyomid.Database, key: bytes) -> None:
    with db.begin() as tx:
        tx.table("t").put(key, {b"f:x": b"1"})


def rows_for_another_process(url: str) -> str:
    program = (
        "import sys, pyomid\n"
        "with pyomid.connect(sys.argv[1]) as db, db.begin() as tx:\n"
        "    print([key for key, _ in tx.table('t').scan()])"
    )
    done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr


# Handles of a folder that is gone


def test_nothing_is_written_or_read_in_a_removed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOOK_S", 0.0)
    folder = tmp_path / "db"
    store, commits = EmbeddedStore(folder), EmbeddedCommitTable(folder, writable=True)
    store.create_table(TableInfo("t", FAMILIES))
    store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    commits.serve_epoch(0)
    commits.put([(50, 60)])
    shutil.rmtree(folder)
    uses: list[Callable[[], object]] = [
        lambda: store.write_cells("t", 100, [column_write(b"r", (A, b"v"))]),
        lambda: store.read_rows("t", [b"r"]),
        lambda: scanned(store, "t"),
        lambda: commits.put([(150, 160)]),
        lambda: commits.seal(200),
        lambda: commits.lookup([250]),
    ]
    for replaced in (False, True):
        if replaced:
            EmbeddedStore(folder).close()
        for use in uses:
            with pytest.raises(Misuse, match="was removed or replaced"):
                use()
    commits.close()
    store.close()


@pytest.mark.parametrize("gone", ["all", "moved", "replaced"])
def test_no_commit_is_acknowledged_in_deleted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str) -> None:
    """However short ago somebody looked: what was told committed would be found by nobody."""
    monkeypatch.setattr(environment, "LOOK_S", 1e9)
    folder = tmp_path / "db"
    commits = EmbeddedCommitTable(folder, writable=True)
    commits.serve_epoch(0)
    commits.put([(50, 60)])
    if gone == "all":
        shutil.rmtree(folder)
    else:
        os.rename(folder, tmp_path / "before")
        if gone == "replaced":
            EmbeddedCommitTable(folder, writable=True).close()

    uses: list[Callable[[], object]] = [
        lambda: commits.flush(np.array([[150, 160]])),
        lambda: commits.put_branches([200], 210),
        lambda: commits.put_unless_sealed(250, 260),
        lambda: commits.seal(300),
    ]
    for use in uses:
        with pytest.raises(Misuse, match="was removed"):
            use()
    commits.close()


def test_a_new_folder_of_the_same_path_is_another_database(tmp_path: Path) -> None:
    """One process holds handles of both: the old one's rows are not in the new one."""
    folder = tmp_path / "db"
    old = EmbeddedStore(folder)
    old.create_table(TableInfo("t", FAMILIES))
    old.write_cells("t", 50, [column_write(b"old", (A, b"v"))])
    shutil.rmtree(folder)
    new, commits = EmbeddedStore(folder), EmbeddedCommitTable(folder, writable=True)
    new.create_table(TableInfo("t", FAMILIES))
    new.write_cells("t", 50, [column_write(b"new", (A, b"v"))])
    old.close()
    assert [row for row, _ in scanned(new, "t")] == [b"new"]
    commits.put([(50, 60)])
    new.close()
    commits.close()
    again = EmbeddedStore(folder)
    assert [row for row, _ in scanned(again, "t")] == [b"new"]
    again.close()


def test_a_panicked_environment_is_not_opened_in_another_folder(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    store = EmbeddedStore(folder)
    store.create_table(TableInfo("t", FAMILIES))
    os.rename(folder, tmp_path / "before")
    EmbeddedStore(folder).close()
    store._environment._panicked = True
    with pytest.raises(Misuse, match="was removed or replaced"):
        store.write_cells("t", 50, [column_write(b"r", (A, b"v"))])
    store.close()


def test_a_reconnected_client_sees_the_same_database(folder: Path, url: str) -> None:
    old = pyomid.connect(url)
    old.create_table("t", families=["f"])
    put_one(old, b"old")
    shutil.rmtree(folder)
    with pyomid.connect(url) as new:
        assert [table.name for table in new.tables()] == []
        new.create_table("t", families=["f"])
        put_one(new, b"new")
        assert rows_for_another_process(url) == "[b'new']"
        with pytest.raises(OmidError, match=r"removed or replaced|was dropped, and another one"):
            put_one(old, b"lost")
        assert rows_for_another_process(url) == "[b'new']"
    old.close()


# The TSO


def test_a_tso_that_ends_leaves_its_successors_socket(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    open_folder(folder)
    old = FolderLock(folder)
    assert old.acquire()
    old.listen()
    shutil.rmtree(folder)
    open_folder(folder)
    new = FolderLock(folder)
    assert new.acquire()
    new.listen()
    assert not old.is_in_place()
    old.release()
    assert new.is_in_place()
    assert new.has_socket()
    new.release()
    assert not (folder / SOCKET_FILE).exists()


def test_a_tso_never_removes_another_tsos_socket(tmp_path: Path) -> None:
    open_folder(tmp_path)
    lock = FolderLock(tmp_path)
    assert lock.acquire()
    lock.listen()
    (tmp_path / SOCKET_FILE).unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / SOCKET_FILE))
        lock.release()
        assert (tmp_path / SOCKET_FILE).exists()


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_a_tso_whose_folder_is_gone_ends(folder: Path, url: str, how: str, tmp_path: Path) -> None:
    db = pyomid.connect(url)
    db.create_table("t", families=["f"])
    pid = tso_pid(folder)
    if how == "removed":
        shutil.rmtree(folder)
    else:
        os.rename(folder, tmp_path / "before")
    if how == "replaced":
        open_folder(folder)
    until(lambda: not is_alive(pid), "it serves a folder that is gone")
    if how == "moved":
        assert "was removed, moved or replaced" in (tmp_path / "before" / "tso.log").read_text()
        assert rows_for_another_process(f"omid://{tmp_path}/before") == "[]"
        kill_tso(tmp_path / "before")
    if how == "replaced":
        with pyomid.connect(url) as new:
            assert new.tables() == []
    with pytest.raises(Misuse):
        put_one(db, b"k")
    db.close()


def test_a_serving_tso_restores_a_missing_socket(folder: Path, url: str) -> None:
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
        for number in range(2):
            (folder / SOCKET_FILE).unlink()
            put_one(db, b"%d" % number)
            assert rows_for_another_process(url) == str([b"%d" % n for n in range(number + 1)])


def test_a_tso_by_hand_restores_a_missing_socket(folder: Path, url: str) -> None:
    with served(folder.parent, store=f"omid://{folder}") as running:
        (folder / SOCKET_FILE).unlink()
        until((folder / SOCKET_FILE).exists, "nobody finds it")
        with pyomid.connect(url) as db:
            assert db.tables() == []
        running.process.terminate()
        assert running.process.wait(WAIT_S) == 0
    assert not (folder / SOCKET_FILE).exists()


def test_no_file_is_removed_to_listen(tmp_path: Path) -> None:
    open_folder(tmp_path)
    (tmp_path / SOCKET_FILE).write_text("mine")
    lock = FolderLock(tmp_path)
    assert lock.acquire()
    with pytest.raises(Misuse, match="is not a socket"):
        lock.listen()
    assert (tmp_path / SOCKET_FILE).read_text() == "mine"
    lock.release()
