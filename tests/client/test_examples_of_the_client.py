"""The examples of the client: a queue by threads and by asyncio, and a bank with claims."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from examples import bank, work_queue, work_queue_asyncio

import pyomid

pytestmark = pytest.mark.fast


def test_each_job_is_done_once_by_threads(tmp_path: Path) -> None:
    done = work_queue.main(str(tmp_path / "queue"), jobs=30)
    assert [(job.id, job.result) for job in done] == [(number, f"LETTER {number}") for number in range(30)]


def test_a_worker_that_is_too_slow_cannot_finish_a_job_that_another_took(tmp_path: Path) -> None:
    with pyomid.connect(f"omid://{tmp_path}/queue") as db:
        for table in work_queue.TABLES:
            db.create_table(table, work_queue.Job, row_key="id")
        db.run(work_queue.add, ["letter"])
        slow = db.run(work_queue.take, "slow")
        assert db.run(work_queue.return_stale, timedelta(0)) == 1
        quick = db.run(work_queue.take, "quick")
        assert slow is not None
        assert quick is not None
        assert not db.run(work_queue.finish, slow, "slow")
        assert db.run(work_queue.finish, quick, "quick")
        assert [job.result for job in db.scan("done", codec=work_queue.Job)] == ["quick"]


def test_each_job_is_done_and_reported_once_by_asyncio(tmp_path: Path) -> None:
    done = asyncio.run(work_queue_asyncio.main(str(tmp_path / "queue"), jobs=30))
    assert sorted((job.id, job.result) for job in done) == [(number, f"LETTER {number}") for number in range(30)]


def test_tellers_overdraw_no_owner(tmp_path: Path) -> None:
    outcomes = bank.main(str(tmp_path / "bank"))
    assert sum(outcomes.values()) == 80
    assert outcomes["done"] > 0


def test_two_transfers_cannot_both_rely_on_the_owner_s_other_account(tmp_path: Path) -> None:
    with pyomid.connect(f"omid://{tmp_path}/bank") as db:
        bank.open_accounts(db)
        first, second = db.begin(), db.begin()
        bank.transfer(first, "1", ("alice", "checking"), ("bob", "checking"), Decimal(150))
        bank.transfer(second, "2", ("alice", "savings"), ("carol", "checking"), Decimal(150))
        first.commit()
        with pytest.raises(pyomid.ConflictError):
            second.commit()
        with pytest.raises(bank.Overdrawn):
            db.run(bank.transfer, "2", ("alice", "savings"), ("carol", "checking"), Decimal(150))
        assert bank.audit(db)["alice", "checking"] == Decimal("-50.00")
