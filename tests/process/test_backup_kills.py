"""Back-ups beside writers, and kill −9 at each of their steps."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from bank_process import Order, acknowledged_ids, audit, run_worker, transfer
from forked_processes import Processes

import pyomid
from portions import first
from pyomid import crashpoints
from pyomid.database.database import Database
from pyomid.errors import Misuse

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

KINDS = ("whole", "incremental")
POINTS = [name for name in crashpoints.POINTS if name.startswith(("storage.backup.", "storage.restore."))]


def back_up(url: str, destination: str, since: str | None, crash_at: str, note: str) -> None:
    crashpoints.arm(crash_at, note=note)
    with pyomid.connect(url) as db:
        db.backup(destination, since=since)


def restore(backup: str, url: str, crash_at: str, note: str) -> None:
    crashpoints.arm(crash_at, note=note)
    pyomid.restore(backup, url)


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        pytest.param(point, kind, marks=[pytest.mark.long] if kind == "whole" else [])
        for point in POINTS
        for kind in KINDS
        if (point, kind) != ("storage.backup.compared", "whole")
    ],
)
def test_what_a_killed_backup_left_is_no_backup(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path, point: str, kind: str
) -> None:
    since = None
    if kind == "incremental":
        since = str(tmp_path / "whole")
        bank.backup(since)
        bank.run(transfer, b"since", random.Random(1))
    note, backup, folder = tmp_path / "note", tmp_path / "backup", tmp_path / "restored"
    url = f"omid://{folder}"
    if point.startswith("storage.restore."):
        bank.backup(backup, since=since)
        ended = processes.run(restore, str(backup), url, point, str(note))
        unfinished = folder
    else:
        ended = processes.run(back_up, bank_url, str(backup), since, point, str(note))
        unfinished = backup
        with pytest.raises(Misuse, match=r"is incomplete|is not a backup"):
            pyomid.restore(backup, url)
    assert ended == -signal.SIGKILL
    assert note.read_text().split()[0] == point
    with pytest.raises(Misuse, match="is incomplete"):
        pyomid.connect(f"omid://{unfinished}")
    audit(bank)  # whoever waited for the dead one goes on
    if unfinished == backup:
        bank.backup(backup, since=since)
    pyomid.restore(backup, url)
    with pyomid.connect(url) as db:
        assert audit(db).transfers == (kind == "incremental")


@pytest.mark.parametrize("kind", first(1, KINDS[::-1]))
def test_a_backup_beside_writers_is_one_moment(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path, kind: str
) -> None:
    """Each incremental one goes on from the one before."""
    acknowledged = [str(tmp_path / f"acknowledged-{seed}") for seed in range(3)]
    workers = [
        processes.start(run_worker, Order(bank_url, seed, path, transactions=200))
        for seed, path in enumerate(acknowledged)
    ]
    before = []
    number = 0
    while number < 6 and any(worker.is_alive() for worker in workers):
        before.append(set().union(*map(acknowledged_ids, acknowledged)))
        since = tmp_path / f"backup-{number - 1}" if number and kind == "incremental" else None
        made = bank.backup(tmp_path / f"backup-{number}", since=since)
        pyomid.restore(tmp_path / f"backup-{number}", f"omid://{tmp_path}/restored-{number}")
        with pyomid.connect(f"omid://{tmp_path}/restored-{number}") as db:
            found = audit(db, by_rows=number % 2 == 1)
            assert before[-1] <= found.ids
            assert found.start_ts >= made.snapshot_ts
            db.run(transfer, b"again", random.Random(number))
            assert audit(db).transfers == found.transfers + 1
        number += 1
    assert [processes.finish(worker) for worker in workers] == [0, 0, 0]
    assert number > 1, "no back-up was taken beside the writers"
