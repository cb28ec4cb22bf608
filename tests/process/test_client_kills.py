"""kill −9 of a client at every step of its way: the outcome is whole, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from bank_process import Order, acknowledged_ids, audit, run_worker, transaction_points
from forked_processes import Processes

from portions import first
from pyomid.database.database import Database
from pyomid.types import start_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

KILLS = pytest.mark.parametrize("kills", first(1, (4, 50)))

CLIENT_POINTS = transaction_points()

BEFORE_THE_COMMIT = {"client.begin.after", "client.flush.before", "client.flush.after", "client.commit.before"}


@pytest.fixture
def acknowledged(tmp_path: Path) -> str:
    return str(tmp_path / "acknowledged")


def note_at(tmp_path: Path, number: int) -> str:
    return str(tmp_path / f"note-{number}")


@KILLS
@pytest.mark.parametrize("point", CLIENT_POINTS)
def test_a_client_killed_at_each_step_leaves_whole_transactions_only(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path, acknowledged: str, point: str, kills: int
) -> None:
    chance = random.Random(point)
    for number in range(kills):
        note = note_at(tmp_path, number)
        nth = chance.randint(1, 6) if "rollback" not in point else 1
        order = Order(bank_url, number, acknowledged, crash_at=point, crash_nth=nth, crash_note=note)
        assert processes.run(run_worker, order) == -signal.SIGKILL
        assert Path(note).read_text().split()[0] == point
        found = audit(bank, acknowledged, by_rows=number % 2 == 1)
    assert found.transfers >= len(acknowledged_ids(acknowledged))
    check_cells(bank)


def check_cells(db: Database) -> None:
    """After everything was read once: what that read saw is healed, and no cell's shadow cell is a lie.

    The TSO may decide a dead client's last request after the read began: such a commit is whole, and not yet healed.
    Nor is a version below one whose shadow cell the read saw: it did not look there.
    """
    read = audit(db, by_rows=True)
    assert db.drain(30)
    for name in ("checking", "savings", "ledger"):
        with db.begin() as tx:
            keys = [key for key, _ in tx.table(name).scan()]
        for cells in db._core.deployment.store.read_rows(name, keys):
            looked_at: set[tuple[bytes, bytes]] = set()
            for cell in sorted(cells, key=lambda each: -each.version):
                (entry,) = db._core.deployment.commit_table.lookup([start_of(cell.version)])
                assert cell.commit_ts == 0 or cell.commit_ts >= start_of(cell.version)
                assert entry <= 0 or cell.commit_ts in (0, entry)
                column = cell.family, cell.qualifier
                seen = 0 < entry < read.start_ts and column not in looked_at
                assert not (seen and cell.commit_ts == 0), "a committed cell was read and not healed"
                if 0 < cell.commit_ts < read.start_ts:
                    looked_at.add(column)


@pytest.mark.parametrize("nth", [pytest.param(1, id="packed"), pytest.param(2, id="flushed", marks=pytest.mark.long)])
@pytest.mark.parametrize("point", ["client.commit.before", "client.commit.answered"])
def test_the_transaction_it_died_in_is_there_exactly_if_it_had_been_decided(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path, acknowledged: str, point: str, nth: int
) -> None:
    for number in range(10):
        before = audit(bank).ids
        note = note_at(tmp_path, number)
        order = Order(bank_url, number, acknowledged, crash_at=point, crash_nth=nth, crash_note=note)
        assert processes.run(run_worker, order) == -signal.SIGKILL
        assert Path(note).exists()
        gained = audit(bank, acknowledged).ids - before
        decided = nth - 1 if point in BEFORE_THE_COMMIT else nth
        assert gained == {b"%d-%d" % (number, each) for each in range(decided)}


@KILLS
def test_a_reader_killed_before_it_heals_harms_nothing(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path, acknowledged: str, kills: int
) -> None:
    for number in range(kills):
        answered, heal = note_at(tmp_path, 2 * number), note_at(tmp_path, 2 * number + 1)
        dying = Order(  # in its second transfer, the first one that was flushed: nobody else writes its shadow cells
            bank_url, number, acknowledged, crash_at="client.commit.answered", crash_nth=2, crash_note=answered
        )
        assert processes.run(run_worker, dying) == -signal.SIGKILL
        reading = Order(bank_url, kills + number, acknowledged, crash_at="client.heal.before", crash_note=heal)
        assert processes.run(run_worker, reading) == -signal.SIGKILL
        assert Path(heal).exists()
        audit(bank, acknowledged)
    check_cells(bank)


@KILLS
def test_clients_killed_at_random_moments_side_by_side_leave_whole_transactions_only(
    processes: Processes, bank: Database, bank_url: str, acknowledged: str, kills: int
) -> None:
    seed = int(os.environ.get("PYOMID_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"PYOMID_SEED={seed}")
    chance = random.Random(seed)
    for number in range(kills // 2):
        workers = [
            processes.start(run_worker, Order(bank_url, 2 * number + side, acknowledged, transactions=10_000))
            for side in range(2)
        ]
        wanted = len(acknowledged_ids(acknowledged)) + chance.randint(1, 6)
        while len(acknowledged_ids(acknowledged)) < wanted:
            assert all(worker.is_alive() for worker in workers)
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))
        for worker in workers:
            worker.kill()
        assert {processes.finish(worker) for worker in workers} == {-signal.SIGKILL}
        audit(bank, acknowledged, by_rows=number % 2 == 1)
    assert audit(bank, acknowledged).transfers >= kills // 2
    check_cells(bank)
