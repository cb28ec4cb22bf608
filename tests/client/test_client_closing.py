"""A database's end: by `close`, by an interrupt in it, or because nobody has it any more."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import pyomid
from pyomid.client import open_database
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
    said = [record for record in caplog.records if "completion" in record.message]
    assert [record.exc_info for record in said] == [None] * len(said)
    assert "left to readers and compaction" in said[-1].message
