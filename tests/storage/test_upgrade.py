"""A folder of layout 1, and back-ups of one, as the code of that time wrote them (`tests/fixtures/embedded`).

The folder is as a kill left it: entries and markers in LMDB and in the log, one of each completed or replaced there.
"""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import pyomid
from pyomid import crashpoints
from pyomid.errors import Corruption, Misuse, Unavailable
from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedLeaderState, EmbeddedStore
from pyomid.storage.embedded.backup import back_up, restore
from pyomid.storage.embedded.layout import open_folder
from pyomid.storage.embedded.upgrade import LOG_FILES
from pyomid.types import CellVersion, Column, RowWrite, TableInfo

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "embedded" / "layout-1.tar.xz"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """`killed`, and the back-ups `whole` and `increment`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for path in tmp_path.iterdir():
        path.chmod(0o700)
    note_files(tmp_path / "killed")
    return tmp_path


def note_files(folder: Path) -> None:
    """As they were noted where the folder was recorded."""
    files = [os.stat(folder / name / "data.mdb").st_ino for name in ("data", "commits")]
    (folder / "files.json").write_text(json.dumps({"files": files}))


def check_upgraded(folder: Path) -> None:
    first, expected = ast.literal_eval((folder / "expected").read_text())
    starts = [first + 50 * number for number in range(len(expected))]
    table = EmbeddedCommitTable(folder, writable=False)
    assert table.lookup(starts) == expected
    assert dict(table.entries()) == {start: value for start, value in zip(starts, expected, strict=True) if value}
    table.close()
    state = EmbeddedLeaderState(folder, writable=False)
    assert len(state.database_id()) == 16
    assert state.read().epoch > 0
    assert state.changed_ms() > 0
    state.close()
    assert (folder / "LAYOUT").read_text() == "pyomid embedded layout 3\n"
    assert not (folder / "commits").exists()
    with pyomid.connect(f"omid://{folder}?tsoIdleExitSeconds=1") as db:
        with db.begin() as tx:
            rows = dict(tx.table("t").scan())
            assert rows[b"00"] == {b"f:v": b"second"}
            assert rows[b"01"] == {b"f:v": b"first"}
            assert b"39" not in rows
            for number, (start, value) in enumerate(zip(starts, expected, strict=True)):
                is_committed = value > 0
                assert (rows.get(b"k%02d" % number) == {b"f:v": b"by %d" % start}) == is_committed
            tx.table("t").put(b"new", {b"f:v": b"1"})
        assert db.verify().ok


def test_a_folder_of_layout_1_is_upgraded_where_it_lies(recorded: Path) -> None:
    check_upgraded(recorded / "killed")


def _open(folder: str, crash_at: str) -> None:
    crashpoints.arm(crash_at)
    open_folder(folder)


@pytest.mark.parametrize("point", [name for name in crashpoints.POINTS if name.startswith("storage.upgrade.")])
def test_an_upgrade_that_is_killed_is_done_again_or_finished(recorded: Path, point: str) -> None:
    folder = recorded / "killed"
    former = (folder / "commits" / "data.mdb").read_bytes()
    for _ in range(2):
        child = multiprocessing.get_context("spawn").Process(target=_open, args=(str(folder), point))
        child.start()
        child.join()
        if point == "storage.upgrade.decided":
            assert (folder / "LAYOUT").read_text() == "pyomid embedded layout 2\n"
            break
        assert child.exitcode == -signal.SIGKILL
        assert (folder / "LAYOUT").read_text() == "pyomid embedded layout 1\n", "the former pyomid opens it"
        assert (folder / "commits" / "data.mdb").read_bytes() == former
        assert all((folder / "commits" / name).exists() for name in LOG_FILES)
    check_upgraded(folder)


HOLDS = """
import sys, lmdb
opened = lmdb.open(sys.argv[1], readonly=True, max_dbs=2)
print("open", flush=True)
sys.stdin.read()
"""


def check_is_not_upgraded_while_open(folder: Path, name: str) -> None:
    """By another process, which has this environment of the folder open."""
    command = [sys.executable, "-c", HOLDS, str(folder / name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(Unavailable, match="end all programs that use it"):
            open_folder(folder)
        other.communicate("", timeout=30)


@pytest.mark.parametrize("name", ["data", "commits"])
def test_a_folder_that_a_former_program_uses_is_not_upgraded(recorded: Path, name: str) -> None:
    folder = recorded / "killed"
    check_is_not_upgraded_while_open(folder, name)
    assert (folder / "LAYOUT").read_text() == "pyomid embedded layout 1\n"
    check_upgraded(folder)


def test_a_damaged_log_stops_the_upgrade(recorded: Path) -> None:
    folder = recorded / "killed"
    for name in LOG_FILES:
        path = folder / "commits" / name
        content = bytearray(path.read_bytes())
        content[4096 + 24] ^= 1
        path.write_bytes(content)
    with pytest.raises(Corruption, match=r"recent-log.* is damaged: the record at byte 4096, with others after it"):
        open_folder(folder)
    assert (folder / "LAYOUT").read_text() == "pyomid embedded layout 1\n"
    assert (folder / "commits" / "data.mdb").exists()


def test_a_torn_tail_is_the_end_of_the_log(recorded: Path) -> None:
    """The last record, of which no client was told: its marker is not there."""
    folder = recorded / "killed"
    first, expected = ast.literal_eval((folder / "expected").read_text())
    sealed = first + 50 * 16
    assert expected[16] == -1
    (path,) = [
        path
        for path in (folder / "commits" / name for name in LOG_FILES)
        if sealed.to_bytes(8, "little") in path.read_bytes()
    ]
    content = bytearray(path.read_bytes())
    content[content.index(sealed.to_bytes(8, "little")) + 8] ^= 1
    path.write_bytes(content)
    table = EmbeddedCommitTable(folder, writable=False)
    assert table.lookup([sealed - 50, sealed]) == [expected[15], 0]
    table.close()


def test_a_copy_of_a_folder_of_layout_1_is_refused(recorded: Path) -> None:
    folder = recorded / "killed"
    (folder / "files.json").write_text(json.dumps({"files": [1, 2]}))
    with pytest.raises(Misuse, match="is a copy of a database's files"):
        open_folder(folder)
    (folder / "files.json").unlink()
    check_upgraded(folder)


@pytest.mark.parametrize(("name", "row"), [("whole", b"first"), ("increment", b"second")])
def test_a_backup_of_layout_1_is_restored(recorded: Path, name: str, row: bytes) -> None:
    restore(recorded / name, recorded / "again")
    assert (recorded / "again" / "LAYOUT").read_text() == "pyomid embedded layout 3\n"
    assert not (recorded / "again" / "commits").exists()
    with pyomid.connect(f"omid://{recorded}/again?tsoIdleExitSeconds=1") as db:
        with db.begin() as tx:
            assert tx.table("t").get(b"00") == {b"f:v": row}
            assert bool(tx.table("t").get(b"39")) == (name == "whole")
        assert db.verify().ok
        db.backup(recorded / "next")
        db.backup(recorded / "after", since=recorded / "next")


def test_a_folder_of_layout_2_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, columns = tmp_path / "db", [Column(b"f", b"%d" % number) for number in range(9)]
    with monkeypatch.context() as former:
        former.setattr("pyomid.storage.embedded.records.is_dense", lambda *_: False)
        store = EmbeddedStore(folder)
        store.create_table(TableInfo("t", (b"f",)))
        store.write_cells("t", 100, [RowWrite(b"row", tuple((column, b"1") for column in columns))])
        store.close()
    (folder / "LAYOUT").write_text("pyomid embedded layout 2\n")
    check_is_not_upgraded_while_open(folder, "data")
    store = EmbeddedStore(folder)
    assert (folder / "LAYOUT").read_text() == "pyomid embedded layout 3\n"
    store.write_cells("t", 150, [RowWrite(b"row", ((columns[1], b"2"), (columns[2], None)))])
    store.delete_versions("t", [CellVersion(b"row", *columns[0], 100)])
    (found,) = store.read_rows("t", [b"row"])
    expected = [(b"1", 150, b"2"), (b"2", 150, None), *((b"%d" % number, 100, b"1") for number in range(1, 9))]
    assert [(cell.qualifier, cell.version, cell.value) for cell in found] == expected
    store.close()


def test_no_backup_goes_on_from_one_of_layout_1(recorded: Path) -> None:
    folder = recorded / "killed"
    EmbeddedStore(folder).close()
    with pytest.raises(Misuse, match=r"has embedded layout 1, .* begin with a full backup"):
        back_up(folder, recorded / "next", snapshot_ts=50, since=recorded / "increment")
