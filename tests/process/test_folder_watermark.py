"""Who holds W back in a folder (folder.md, L7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.errors import SnapshotTooOld

pytestmark = pytest.mark.process

OPTIONS = "upkeepShare=0"


def put(db: Database, value: bytes) -> None:
    with db.begin() as tx:
        tx.table("t").put(b"k", {b"f:v": value})


def clean(db: Database) -> int:
    """Raise W, and drop what it released. Return W."""
    raised = db._core.deployment.tso.raise_watermark()
    db.compact()
    return raised


def test_a_snapshot_holds_w_however_long_ago_the_last_commit_was(tmp_path: Path) -> None:
    """The clock of an idle folder stands still, so a new transaction's start may be years old."""
    with pyomid.connect(f"omid://{tmp_path}/db?{OPTIONS}") as db:
        db.create_table("t", families=["f"])
        put(db, b"1")
        reader = db.begin()
        for value in (b"2", b"3"):
            put(db, value)
            assert clean(db) < reader.start_ts
        assert reader.table("t").get(b"k") == {b"f:v": b"1"}
        reader.rollback()
        assert clean(db) > reader.start_ts


def test_connections_of_one_process_hold_w_for_each_other(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db?{OPTIONS}"
    with pyomid.connect(url) as one, pyomid.connect(url) as two:
        one.create_table("t", families=["f"])
        put(one, b"1")
        reader = one.begin()
        with two.begin():
            pass
        put(two, b"2")
        two_reader = two.begin()
        assert clean(two) < reader.start_ts
        two_reader.rollback()
        assert clean(two) < reader.start_ts
        assert reader.table("t").get(b"k") == {b"f:v": b"1"}


def test_another_process_holds_w_until_it_dies(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db?{OPTIONS}"
    script = """if True:
        import sys, time, pyomid
        tx = pyomid.connect(sys.argv[1]).begin()
        print(tx.start_ts, flush=True)
        sys.stdin.readline()
        print(tx.table("t").get(b"k"), flush=True)
        time.sleep(100)
    """
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
        put(db, b"1")
        command = [sys.executable, "-c", script, url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            start_ts = int(other.stdout.readline())
            put(db, b"2")
            assert clean(db) < start_ts
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "{b'f:v': b'1'}\n"
            other.kill()
        assert clean(db) > start_ts


def test_an_old_snapshot_holds_w_no_more(tmp_path: Path) -> None:
    with pyomid.connect(f"omid://{tmp_path}/db?{OPTIONS}&maxTransactionAgeSeconds=0.2") as db:
        db.create_table("t", families=["f"])
        put(db, b"1")
        reader = db.begin()
        put(db, b"2")
        while clean(db) < reader.start_ts:
            pass
        with pytest.raises(SnapshotTooOld):
            reader.table("t").get(b"k")


def test_a_transaction_that_was_dropped_holds_nothing_once_another_one_ended(tmp_path: Path) -> None:
    """Its process may be idle from then on; others look at its slot alone."""
    with pyomid.connect(f"omid://{tmp_path}/db?{OPTIONS}") as db:
        db.create_table("t", families=["f"])
        shared = db._core.deployment.store.environment.shared  # type: ignore[attr-defined]
        for _ in range(2):
            dropped = db.begin()
            with db.begin():
                assert shared.held() > 0
            del dropped
            with db.begin():
                pass
            assert shared.held() == 0
