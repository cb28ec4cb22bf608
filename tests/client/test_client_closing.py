"""A database's end: by `close`, by an interrupt in it, or because nobody has it any more."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import pyomid
from pyomid.database import open_database
from pyomid.errors import Misuse
from pyomid.ports import Deployment

pytestmark = [pytest.mark.fast, pytest.mark.timeout(60)]


def closings(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], threading.Event]:
    """The names of the threads that close a database's parts, and an event for the first."""
    by: list[str] = []
    closed = threading.Event()
    close = Deployment.close

    def noted(parts: Deployment) -> None:
        by.append(threading.current_thread().name)
        closed.set()
        if by[-1] != "pyomid-background":  # over a store with locks it would never end
            close(parts)

    monkeypatch.setattr(Deployment, "close", noted)
    return by, closed


def test_a_forgotten_database_is_not_closed_by_its_own_thread(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector finds it there, in a write of shadow cells. Closing waits for that write."""
    by, closed = closings(monkeypatch)
    monkeypatch.setattr(open_database, "CLOSE_TIMEOUT_S", 1.0)
    forgotten, collected = threading.Event(), threading.Event()

    def use() -> None:
        db = pyomid.connect(memory_url)
        db.create_table("t", families=["f"])
        write = db._core.deployment.store.write_shadow_cells

        def write_and_collect(*args: Any) -> None:
            assert forgotten.wait(60)
            gc.collect()
            collected.set()
            write(*args)

        monkeypatch.setattr(db._core.deployment.store, "write_shadow_cells", write_and_collect)
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:x": b"1"})
            tx.flush()

    gc.disable()
    try:
        use()
        forgotten.set()
        assert collected.wait(60)
        assert closed.wait(60)
    finally:
        gc.enable()
    assert by
    assert "pyomid-background" not in by


def test_an_interrupted_close_closes_the_parts(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by, _ = closings(monkeypatch)
    db = pyomid.connect(memory_url)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(db._core.background, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        db.close()
    assert by == ["MainThread"]


def test_an_interrupt_in_one_part_leaves_no_other_open(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db = pyomid.connect(memory_url)
    closed: list[str] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(db._core.deployment.tso, "close", interrupted)
        patch.setattr(db._core.deployment.commit_table, "close", lambda: closed.append("commit table"))
        patch.setattr(db._core.deployment.store, "close", lambda: closed.append("store"))
        with pytest.raises(KeyboardInterrupt):
            db.close()
    assert closed == ["commit table", "store"]
    db.close()


@pytest.mark.parametrize("url", ["embedded"], indirect=True)
def test_what_is_unfinished_at_the_close_is_told_in_one_line(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that was at it meets a store that is closed: readers and compaction do the rest."""
    monkeypatch.setattr(open_database, "CLOSE_TIMEOUT_S", 0.01)
    began, goes_on = threading.Event(), threading.Event()
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
        write = db._core.deployment.store.write_shadow_cells

        def late(*args: Any) -> None:
            began.set()
            assert goes_on.wait(60)
            write(*args)

        monkeypatch.setattr(db._core.deployment.store, "write_shadow_cells", late)
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:x": b"1"})
            tx.flush()
        assert began.wait(60)
    goes_on.set()
    thread = db._core.background._thread
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
    said = [record for record in caplog.records if "complete" in record.message]
    assert [record.exc_info for record in said] == [None] * len(said)
    assert "readers and compaction" in said[-1].message


@pytest.mark.parametrize("url", ["memory", "embedded"], indirect=True)
def test_a_handler_of_the_exit_that_was_registered_first_still_uses_the_database(url: str) -> None:
    """Such handlers run last: of a logger, of a web server, of whatever was imported before."""
    done = ended(f"""
        import atexit, threading
        @atexit.register
        def at_exit():
            with db.begin() as tx:
                tx.table("t").put(b"k", {{b"f:v": b"at exit"}})
            with db.begin() as tx:
                print(tx.table("t").get(b"k"))
        import pyomid
        db = pyomid.connect({url!r})
        db.create_table("t", ["f"])
        lease = db.begin(lease=True)
        with db.begin() as tx:
            tx.table("t").put(b"k", {{b"f:v": b"before"}})
        def write():
            while True:
                db.run(lambda tx: tx.table("t").put(b"l", {{b"f:v": b"x"}}))
        threading.Thread(target=write, daemon=True).start()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{b'f:v': b'at exit'}\n", "")
    if not url.startswith("omid-memory"):
        with pyomid.connect(url) as db, db.begin() as tx:
            assert tx.table("t").get(b"k") == {b"f:v": b"at exit"}


@pytest.mark.parametrize("url", ["embedded"], indirect=True)
def test_modules_that_are_imported_a_second_time_are_told_why_they_cannot_open_the_folder(url: str) -> None:
    done = ended(f"""
        import sys, pyomid
        first = pyomid.connect({url!r})
        first.create_table("t", ["f"])
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyomid"]:
            del sys.modules[name]
        import pyomid
        try:
            pyomid.connect({url!r})
        except pyomid.Unavailable as error:
            print("imported a second time or reloaded" in str(error))
        with first.begin() as tx:
            tx.table("t").put(b"k", {{b"f:v": b"1"}})
        first.close()
        with pyomid.connect({url!r}) as db, db.begin() as tx:
            print(tx.table("t").get(b"k"))
    """)
    assert (done.returncode, done.stdout) == (0, "True\n{b'f:v': b'1'}\n"), done.stderr


def ended(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_calls_that_fail_after_the_close_are_logged_once_with_their_count(
    memory_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_database, "CLOSE_TIMEOUT_S", 0.01)
    began, goes_on = threading.Event(), threading.Event()
    with pyomid.connect(memory_url, completion_linger_ms=60_000) as db:
        for number in range(20):
            db.create_table(f"t{number}", families=["f"])

        def late(*args: Any) -> None:
            began.set()
            assert goes_on.wait(60)
            raise Misuse("the store is closed")

        monkeypatch.setattr(db._core.deployment.store, "write_shadow_cells", late)
        for number in range(20):
            with db.begin() as tx:
                tx.table(f"t{number}").put(b"k", {b"f:x": b"1"})
                tx.flush()
    assert began.wait(60)
    goes_on.set()
    thread = db._core.background._thread
    assert thread is not None
    thread.join(60)
    said = [record.getMessage() for record in caplog.records if "after the close" in record.message]
    assert len(said) == 1
    assert "20 calls that complete transactions failed after the close" in said[0]


def test_options_that_a_second_connection_cannot_set_are_named(
    memory_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pyomid.connect(memory_url), pyomid.connect(memory_url, retries=7):
        assert not caplog.records
        with pyomid.connect(memory_url, lease_seconds=7, conflict_map_entries=4096):
            (said,) = [record.getMessage() for record in caplog.records]
    assert "(conflict_map_entries, lease_seconds) keep the values of its first connection" in said


def test_a_folder_that_was_renamed_is_opened_once_its_former_name_is_closed(tmp_path: Path) -> None:
    folder, renamed = tmp_path / "former", tmp_path / "renamed"
    db = pyomid.connect(f"omid://{folder}")
    db.create_table("t", ["f"])
    db.run(lambda tx: tx.table("t").put(b"k", {b"f:v": b"1"}))
    folder.rename(renamed)
    db._core.deployment.store._environment._looked_s = float("-inf")  # type: ignore[attr-defined]  # reads look at times
    with pytest.raises(Misuse, match="removed or replaced while it was open"):
        db.run(lambda tx: tx.table("t").get(b"k"))
    with pytest.raises(Misuse, match=f"opened the folder {renamed} under its former name, {folder}: close"):
        pyomid.connect(f"omid://{renamed}")
    db.close()
    with pyomid.connect(f"omid://{renamed}") as again:
        assert again.run(lambda tx: tx.table("t").get(b"k")) == {b"f:v": b"1"}


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_written_into_a_folder_that_was_removed(tmp_path: Path, is_replaced: bool) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url, upkeep_share=0) as db:
        db.create_table("t", ["f"])
        tx = db.begin()
        tx.table("t").put(b"k", {b"f:v": b"1"})
        (tmp_path / "db").rename(tmp_path / "removed")
        if is_replaced:
            pyomid.connect(url).close()
        with pytest.raises(Misuse, match="removed or replaced while it was open"):
            tx.commit()
