"""kill −9 of a client at each step of a change of a table: others use the table, and the same call ends the change."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_processes import Processes

import pyomid
from catalog_changes import CHANGES, Change, check, make, nothing_is_left
from portions import first
from pyomid import cli, crashpoints
from pyomid.database.database import Database

pytestmark = pytest.mark.process

CREATE = ("client.create.begun", "client.create.made")
DROP = ("client.drop.decided", "client.drop.fenced", "client.drop.withdrawn", "client.drop.emptied")
FENCED = ("client.columns.changing", "client.columns.fenced")
DROP_INDEX = (*FENCED, "client.index.dropping", *DROP, "client.index.emptied")
BUILD = ("client.index.planned", *CREATE, "client.index.kept", "client.index.fenced", "client.index.filled")

PASSED = {
    "create": CREATE,
    "drop": DROP,
    "drop with an index": DROP,
    "drop a column": FENCED,
    "time to live": (*FENCED, "client.columns.dated"),
    "level": ("client.level.changed", "client.level.fenced"),
    "create an index": BUILD,
    "drop an index": DROP_INDEX,
    "an index that is refused": (*BUILD[:-1], *DROP_INDEX),
}
"""The steps of each change at which a process can be killed."""


def change_and_die(url: str, name: str, table: str, point: str, note: str) -> None:
    (change,) = (change for change in CHANGES if change.name == name)
    with pyomid.connect(url) as db:
        crashpoints.arm(point, note=note)
        change.call(db, table)


def killed_in(processes: Processes, url: str, db: Database, change: Change, point: str, note: Path, table: str) -> None:
    """Make the table, and have a process die at this point of the change."""
    make(db, table)
    change.prepare(db, table)
    killed = processes.run(change_and_die, url, change.name, table, point, str(note))
    assert killed == -signal.SIGKILL, point
    assert note.read_text().split()[0] == point


@pytest.mark.parametrize("name", first(3, PASSED))
def test_a_change_whose_process_was_killed_is_ended_by_the_same_call(
    processes: Processes, tmp_path: Path, name: str
) -> None:
    (change,) = (change for change in CHANGES if change.name == name)
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as db:
        for number, point in enumerate(PASSED[name]):
            table, note = f"t{number}", tmp_path / f"note-{number}"
            killed_in(processes, url, db, change, point, note, table)
            try:
                check(db, table, change, end_by=db)
            except BaseException as failed:
                failed.add_note(f"killed at {point}")
                raise


def test_every_step_of_a_change_is_one_at_which_a_process_is_killed() -> None:
    changes = ("client.create.", "client.columns.", "client.index.", "client.level.", "client.drop.")
    assert {point for point in crashpoints.POINTS if point.startswith(changes)} == {
        point for points in PASSED.values() for point in points
    }


MAKING = ("create", "create an index", "an index that is refused")


@pytest.mark.parametrize("name", first(3, [name for name in PASSED if not name.startswith("drop with")]))
def test_upkeep_ends_the_change_of_a_client_that_died_or_names_the_call_that_does(
    processes: Processes, tmp_path: Path, name: str
) -> None:
    """What may be at work for hours is named, with calls that work as they are printed."""
    (change,) = (change for change in CHANGES if change.name == name)
    url = f"omid://{tmp_path}/db?upkeepShare=0"
    with pyomid.connect(url) as db:
        for number, point in enumerate(PASSED[name]):
            table, note = f"t{number}", tmp_path / f"note-{number}"
            killed_in(processes, url, db, change, point, note, table)
            report = db.compact() if number % 2 else db.sanitize()
            for sentence in report.unfinished:
                assert sentence in str(report)
                assert name in MAKING, point
                follow(db, url, sentence, change_name=name)
            nothing_is_left(db)
            assert not db.compact().unfinished, point


def follow(db: Database, url: str, sentence: str, change_name: str) -> None:
    """Do as the sentence says. The index that is refused can only be removed."""
    if change_name == "create":
        command = shlex.split(sentence.split("`")[1])
        assert cli.main([url if word == "URL" else word for word in command[1:]]) == 0
    elif change_name == "create an index":
        eval(sentence.partition("interrupted, ")[2].partition(" finishes")[0], {"db": db})
    else:
        eval(sentence.partition("finishes it, and ")[2].partition(" removes")[0], {"db": db})


@pytest.mark.parametrize("by", ["compact", "sanitize"])
@pytest.mark.parametrize("point", DROP)
def test_upkeep_finishes_the_drop_of_a_client_that_died(tmp_path: Path, point: str, by: str) -> None:
    """Otherwise its rows stay, and hold H back, until somebody happens to use the name again."""
    url = f"omid://{tmp_path}/db?upkeepShare=0"
    with pyomid.connect(url) as db:
        db.create_table("gone", ["f"])
        with db.begin() as tx:
            tx.table("gone").put(b"k", {b"f:v": b"1"})
        command = "import pyomid, sys; pyomid.connect(sys.argv[1]).drop_table('gone')"
        subprocess.run([sys.executable, "-c", command, url], env={**os.environ, "PYOMID_CRASH_AT": point}, check=False)
        assert db._core.deployment.catalog.entry("gone") is not None
        db.compact() if by == "compact" else db.sanitize()
        assert db._core.deployment.catalog.entry("gone") is None
        assert db._core.deployment.store.record_count() == 0  # type: ignore[attr-defined]
        db.create_table("gone", ["f"])
