"""Back-ups of a folder: of one moment, whole or refused, and restored as another database."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_disks import small_disk

import pyomid
from at_points import meanwhile
from conformance import in_forked_child
from embedded_parts import set_watermark
from portions import first
from pyomid import crashpoints
from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.errors import Corruption, Misuse, StoreFull, Unavailable
from pyomid.folder import EmbeddedStore, environment
from pyomid.folder.backup import back_up, restore
from pyomid.folder.environment import release
from pyomid.folder.layout import open_data, open_folder

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    crashpoints.disarm()


def url_of(folder: Path) -> str:
    return f"omid://{folder}"


def restored(tmp_path: Path, backup: Path) -> Path:
    folder = tmp_path / f"restored-{backup.name}"
    restore(backup, folder)
    return folder


def test_half_a_transaction_is_in_no_backup(tmp_path: Path) -> None:
    """Its cells go to two tables; the second ones and its commit come while the back-up looks at the commits."""
    half, go = threading.Event(), threading.Event()
    with pyomid.connect(url_of(tmp_path / "db")) as db:
        for table in ("a", "b"):
            db.create_table(table, ["f"])

        def write() -> None:
            with db.begin() as tx:
                tx.table("a").put(b"k", {b"f:v": b"1"})
                tx.flush()
                half.set()
                assert go.wait(30)
                tx.table("b").put(b"k", {b"f:v": b"1"})

        other = threading.Thread(target=write)
        other.start()
        assert half.wait(30)

        def meanwhile() -> None:
            go.set()
            other.join(0.3)  # it ends in a millisecond where nothing makes it wait

        crashpoints.arm_action("storage.backup.held", meanwhile)
        db.backup(tmp_path / "backup")
        other.join()
        with db.begin() as tx:
            assert tx.table("b").get(b"k")
    with pyomid.connect(url_of(restored(tmp_path, tmp_path / "backup"))) as db, db.begin() as tx:
        assert [bool(tx.table(table).get(b"k")) for table in ("a", "b")] in ([False, False], [True, True])


@pytest.mark.parametrize("is_incremental", [False, True], ids=["full", "incremental"])
def test_b1_a_backup_is_the_one_state_that_it_holds(tmp_path: Path, is_incremental: bool) -> None:
    """What commits while the state is read is in none of its parts."""
    with pyomid.connect(f"{url_of(tmp_path / 'db')}?upkeepShare=0") as db:
        db.create_table("t", ["f"])
        former = tmp_path / "former"
        db.backup(former)

        def commit(key: bytes) -> None:
            with db.begin() as tx:
                tx.table("t").put(key, {b"f:v": b"1"})

        commit(b"before")
        with meanwhile("storage.backup.held", lambda: commit(b"after")):
            db.backup(tmp_path / "backup", since=former if is_incremental else None)
    with pyomid.connect(url_of(restored(tmp_path, tmp_path / "backup"))) as db, db.begin() as tx:
        assert [key for key, _ in tx.table("t").scan()] == [b"before"]


def test_commits_of_the_moment_are_in_the_backup(tmp_path: Path) -> None:
    """Also those of branches, whose records do not have their commit timestamp yet."""
    folder = tmp_path / "db"

    def commit(db: Database, key: bytes) -> None:
        with db.begin() as tx:
            tx.table("t").put(key, {b"f:v": b"1"})
            tx.flush()

    with pyomid.connect(f"{url_of(folder)}?upkeepShare=0") as db:
        db.create_table("t", ["f"])
        commit(db, b"before")
        back_up(folder, tmp_path / "backup", snapshot_ts=250)
        commit(db, b"after")
    with pyomid.connect(url_of(restored(tmp_path, tmp_path / "backup"))) as db, db.begin() as tx:
        assert [key for key, _ in tx.table("t").scan()] == [b"before"]


def test_a_restored_folder_is_another_database(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    with pyomid.connect(f"{url_of(folder)}?upkeepShare=0") as db:
        first_id = db._core.deployment.leader_state.database_id()
        with db.begin(lease=True):
            set_watermark(db._core.deployment, 60)
            made, before = back_up(folder, tmp_path / "backup", snapshot_ts=100), db.status().tso
    assert before.leases
    with pyomid.connect(f"{url_of(restored(tmp_path, tmp_path / 'backup'))}?upkeepShare=0") as db:
        found = db.status().tso
        assert (found.last_ts, found.watermark, found.leases) == (before.last_ts, 60, ())
        assert made.database_id == first_id.hex() != db._core.deployment.leader_state.database_id().hex()


def test_timestamps_of_a_backup_are_not_handed_out_again(tmp_path: Path) -> None:
    url = url_of(tmp_path / "db")
    with pyomid.connect(url) as db:
        db.create_table("t", ["f"])
        lost = db.begin()
        lost.table("t").put(b"lost", {b"f:v": b"1"})
        lost.flush()
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:v": b"1"})
        made = db.backup(tmp_path / "backup")
        lost.commit()
    assert tx.start_ts < tx.commit_ts < made.snapshot_ts
    again_url = url_of(tmp_path / "again")
    assert pyomid.restore(tmp_path / "backup", again_url) == made
    with pyomid.connect(again_url) as db, db.begin() as tx:
        assert tx.start_ts >= made.snapshot_ts
        assert dict(tx.table("t").scan()) == {b"k": {b"f:v": b"1"}}
        tx.table("t").put(b"lost", {b"f:v": b"2"})
    assert tx.commit_ts > made.snapshot_ts
    with pyomid.connect(again_url) as db:
        assert db.begin().table("t").get(b"lost") == {b"f:v": b"2"}
        assert db.verify().ok


def test_the_command_backs_up_and_restores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pyomid.connect(url_of(tmp_path / "db")) as db:
        db.create_table("t", ["f"])
    assert main(["backup", url_of(tmp_path / "db"), str(tmp_path / "backup")]) == 0
    assert main(["restore", str(tmp_path / "backup"), url_of(tmp_path / "again")]) == 0
    assert "contains all commits below" in capsys.readouterr().out
    with pyomid.connect(url_of(tmp_path / "again")) as db:
        assert [info.name for info in db.tables()] == ["t"]
    assert main(["restore", str(tmp_path / "backup"), url_of(tmp_path / "again")]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_a_backup_is_opened_by_nobody(tmp_path: Path) -> None:
    open_folder(tmp_path / "db")
    back_up(tmp_path / "db", tmp_path / "backup", snapshot_ts=50)
    for create in (True, False):
        with pytest.raises(Misuse, match=r"is a backup, not a database; to make a database of it, run pyomid restore"):
            pyomid.connect(f"omid://{tmp_path}/backup", create=create)
    assert sorted(each.name for each in (tmp_path / "backup").iterdir()) == ["BACKUP", "data"]


def test_only_an_absent_or_empty_folder_is_written(tmp_path: Path) -> None:
    open_folder(tmp_path / "db")
    back_up(tmp_path / "db", tmp_path / "backup", snapshot_ts=50)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    for taken in ("full", "db", "backup"):
        with pytest.raises(Misuse, match="is not empty"):
            back_up(tmp_path / "db", tmp_path / taken, snapshot_ts=50)
        with pytest.raises(Misuse, match="is not empty"):
            restore(tmp_path / "backup", tmp_path / taken)
    assert [(file.name, file.read_text()) for file in (tmp_path / "full").iterdir()] == [("mine", "x")]
    with pytest.raises(Misuse, match="is not a backup"):
        restore(tmp_path / "db", tmp_path / "new")
    with pytest.raises(Unavailable, match="File name too long"):
        back_up(tmp_path / "db", tmp_path / ("n" * 300), snapshot_ts=50)
    with pytest.raises(Misuse, match="cannot restore a backup into"):
        pyomid.restore(tmp_path / "backup", "omid-memory:x")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "point", [name for name in crashpoints.POINTS if name.startswith(("storage.backup.", "storage.restore."))]
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, point: str) -> None:
    open_folder(tmp_path / "db")
    unfinished = tmp_path / ("backup" if point.startswith("storage.backup.") else "again")
    looked = []

    def meanwhile() -> None:
        with pytest.raises(Misuse, match="is incomplete"):
            open_folder(unfinished)
        with pytest.raises(Misuse, match=r"is incomplete|is not a backup"):
            restore(unfinished, tmp_path / "other")
        with pytest.raises(Misuse, match="another process is writing into"):
            back_up(tmp_path / "db", unfinished, snapshot_ts=50)
        looked.append(point)

    back_up(tmp_path / "db", tmp_path / "whole", snapshot_ts=50)
    crashpoints.arm_action(point, meanwhile)
    back_up(tmp_path / "db", tmp_path / "backup", snapshot_ts=50, since=tmp_path / "whole")
    restore(tmp_path / "backup", tmp_path / "again")
    assert looked
    open_folder(tmp_path / "again")


@pytest.mark.parametrize(
    "point",
    ["begun", "held", "compared", "copied", "completed"],
)
def test_a_disk_that_fills_up_leaves_nothing_of_a_backup(tmp_path: Path, point: str) -> None:
    open_folder(tmp_path / "db")
    back_up(tmp_path / "db", tmp_path / "whole", snapshot_ts=50)
    with small_disk(tmp_path, "2m") as disk:
        for since in (None, tmp_path / "whole") if point != "compared" else (tmp_path / "whole",):
            with meanwhile(f"storage.backup.{point}", lambda: use_up(disk)), pytest.raises(StoreFull):
                back_up(tmp_path / "db", disk / "backup", snapshot_ts=50, since=since)
            assert os.listdir(disk) == ["ballast"]
            os.unlink(disk / "ballast")
            back_up(tmp_path / "db", disk / "backup", snapshot_ts=50, since=since)
            shutil.rmtree(disk / "backup")


@pytest.mark.parametrize("point", ["begun", "copied", "applied"])
def test_a_disk_that_fills_up_leaves_nothing_of_a_restore(tmp_path: Path, point: str) -> None:
    open_folder(tmp_path / "db")
    back_up(tmp_path / "db", tmp_path / "whole", snapshot_ts=50)
    back_up(tmp_path / "db", tmp_path / "changes", snapshot_ts=50, since=tmp_path / "whole")
    with small_disk(tmp_path, "2m") as disk:
        for backup in ("whole", "changes"):
            with meanwhile(f"storage.restore.{point}", lambda: use_up(disk)), pytest.raises(StoreFull):
                restore(tmp_path / backup, disk / "again")
            assert os.listdir(disk) == ["ballast"]
            os.unlink(disk / "ballast")
            restore(tmp_path / backup, disk / "again")
            open_folder(disk / "again")
            shutil.rmtree(disk / "again")


def test_a_folder_is_made_on_a_small_disk_or_the_disk_is_full(tmp_path: Path) -> None:
    """Of whatever size: LMDB touches what it maps, and says of a short write that the disk is broken."""
    told = []
    for kilobytes in (4, 20, 40, 64, 76, 1000):
        with small_disk(tmp_path / f"{kilobytes}", f"{kilobytes}k") as disk:
            try:
                open_folder(disk / "db")
                told.append("made")
            except StoreFull:
                told.append("full")
    assert told == ["full"] * told.index("made") + ["made"] * told.count("made")


def use_up(disk: Path) -> None:
    """Its last byte."""
    with open(disk / "ballast", "wb", 0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(disk).free == 0


def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    EmbeddedStore(tmp_path / "db").close()
    back_up(tmp_path / "db", tmp_path / "backup", snapshot_ts=50)
    with open(tmp_path / "backup" / "data" / "data.mdb", "r+b") as file:
        file.seek(5000)
        file.write(b"\xff")
    with pytest.raises(Corruption, match="its checksum differs"):
        restore(tmp_path / "backup", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_database_in_memory_has_no_backup(tmp_path: Path) -> None:
    with (
        pyomid.connect("omid-memory:no-backup") as db,
        pytest.raises(Misuse, match="only a database in a folder or over HBase"),
    ):
        db.backup(tmp_path / "backup")


# ---------------------------------------------------------------- folders whose files were copied


def copied(folder: Path, names: list[str], between: Callable[[], None]) -> Path:
    """The folder's files, copied in this order; `between` is called after each."""
    copy = folder.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    (copy / "data").mkdir(parents=True)
    for name in names:
        shutil.copy2(folder / name, copy / name)
        between()
    return copy


FILES = ["LAYOUT", "files.json", "data/data.mdb"]


@pytest.mark.parametrize("order", first(1, [FILES, FILES[::-1]]), ids=["data last", "data first"])
def test_a_copy_of_the_files_is_refused(tmp_path: Path, order: list[str]) -> None:
    """Also one that was begun while nothing had the folder open: what writes later uses LMDB's pages again."""
    folder = tmp_path / "db"
    with pyomid.connect(url_of(folder)) as db:
        db.create_table("t", ["f"])
        first = db._core.deployment.leader_state.database_id()
        count = itertools.count()

        def write() -> None:
            with db.begin() as tx:
                for part in (b"a", b"b"):
                    tx.table("t").put(part, {b"f:n": b"%d" % next(count)})
            db.drain(10)

        write()
        with pytest.raises(Misuse, match="is a copy of a database's files and may be inconsistent"):
            pyomid.connect(url_of(copied(folder, order, write)))
    copy = copied(folder, order, lambda: None)
    with pytest.raises(Misuse, match=r"`pyomid restore` instead. If no process had .*, remove .*files\.json"):
        pyomid.connect(url_of(copy))
    (copy / "files.json").unlink()
    for _ in range(2):
        with pyomid.connect(url_of(copy)) as db, db.begin() as tx:
            assert len(list(tx.table("t").scan())) == 2
            assert db._core.deployment.leader_state.database_id() != first
    with pyomid.connect(url_of(folder)) as db:
        assert db._core.deployment.leader_state.database_id() == first


def _served(folder: Path) -> bytes:
    """Opens the folder; the database's id."""
    with pyomid.connect(f"omid://{folder}") as db:
        return db._core.deployment.leader_state.database_id()


def test_an_interrupted_backup_holds_no_state_of_the_folder(tmp_path: Path) -> None:
    EmbeddedStore(folder := tmp_path / "db").close()
    data = open_data(folder)

    def interrupted() -> None:
        raise KeyboardInterrupt

    crashpoints.arm_action("storage.backup.held", interrupted)
    with pytest.raises(KeyboardInterrupt):
        back_up(folder, tmp_path / "backup", snapshot_ts=50)
    assert not data._inside
    assert "no active readers" in data._lmdb.readers()
    release(data)


class StoppedClock:
    """Which goes on while somebody sleeps."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 0.01)


def test_a_fork_amid_a_backup_waits_once_and_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's back-up holds a state of the folder. The child neither ends what it holds nor opens the folder."""
    outcomes: list[str] = []
    waits: list[float] = []
    with pyomid.connect(url_of(tmp_path / "db")) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:v": b"before"})
        db.drain(10)

        def fork() -> None:
            clock = StoppedClock()
            with monkeypatch.context() as patched:
                patched.setattr(environment, "time", clock)
                outcomes.append(in_forked_child(lambda: open_data(tmp_path / "db")))
            waits.append(clock.now_s)
            for number in range(20):  # pages that the held state needs are not used again
                with db.begin() as tx:
                    tx.table("t").put(b"k", {b"f:v": b"%d" % number})

        forker = threading.Thread(target=fork)
        with meanwhile("storage.backup.held", lambda: (forker.start(), forker.join())):
            db.backup(tmp_path / "backup")
    assert outcomes == ["Unavailable"]
    assert all(wait_s < 1.5 * environment._FORK_WAIT_S for wait_s in waits)
    with pyomid.connect(url_of(restored(tmp_path, tmp_path / "backup"))) as db, db.begin() as tx:
        assert tx.table("t").get(b"k") == {b"f:v": b"before"}


def test_what_fails_after_the_last_step_leaves_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its mark a folder may be in use by now."""
    _served(tmp_path / "db")
    back_up(tmp_path / "db", tmp_path / "backup", snapshot_ts=100)

    def fails_when_it_is_whole(path: Path) -> None:
        if path == tmp_path / "new" and (path / "LAYOUT").exists() and not (path / "UNFINISHED").exists():
            raise OSError(5, "the disk")

    monkeypatch.setattr("pyomid.folder.backup.sync_folder", fails_when_it_is_whole)
    with pytest.raises(Unavailable):
        restore(tmp_path / "backup", tmp_path / "new")
    assert _served(tmp_path / "new")


def test_a_killed_folder_is_opened_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    with pyomid.connect(url_of(folder)) as db:
        db.create_table("t", ["f"])

    def killed() -> None:
        db = pyomid.connect(url_of(folder))
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:v": b"1"})
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_forked_child(killed) == ""
    folder.rename(tmp_path / "moved")
    with pyomid.connect(url_of(tmp_path / "moved")) as db, db.begin() as tx:
        assert tx.table("t").get(b"k")
