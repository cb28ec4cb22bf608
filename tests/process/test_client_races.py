"""Several processes on one database: no update is lost, no snapshot is torn, forks under load harm nobody."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from bank_process import (
    Order,
    acknowledged_ids,
    audit,
    audit_until,
    claim_first,
    count_up,
    run_one_in_child,
    run_worker,
    transfer,
)
from forked_processes import Processes

import pyomid
from pyomid.database.database import Database

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


def test_two_processes_that_race_on_one_counter_lose_no_update(
    processes: Processes, bank: Database, bank_url: str
) -> None:
    bank.create_table("counters", families=["f"])
    racers = [processes.start(count_up, bank_url, b"k", 40) for _ in range(2)]
    assert [processes.finish(racer) for racer in racers] == [0, 0]
    with bank.begin() as tx:
        assert tx.table("counters").get(b"k") == {b"f:n": b"80"}


def test_nobody_of_eight_who_want_one_row_gives_up_and_each_job_is_done_once(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path
) -> None:
    bank.create_table("queue", families=["f"])
    with bank.begin() as tx:
        for number in range(160):
            tx.table("queue").put(b"%03d" % number, {b"f:x": b"1"})
    workers = [processes.start(claim_first, bank_url, str(tmp_path / "claimed")) for _ in range(8)]
    assert [processes.finish(worker) for worker in workers] == [0] * 8
    assert sorted((tmp_path / "claimed").read_bytes().split()) == [b"%03d" % number for number in range(160)]


def test_the_sum_of_a_bank_never_changes_in_any_snapshot_while_processes_write(
    processes: Processes, bank: Database, bank_url: str, tmp_path: Path
) -> None:
    acknowledged, stop = str(tmp_path / "acknowledged"), tmp_path / "stop"
    auditor = processes.start(audit_until, bank_url, str(stop))
    writers = [processes.start(run_worker, Order(bank_url, seed, acknowledged, transactions=24)) for seed in range(3)]
    assert [processes.finish(writer) for writer in writers] == [0, 0, 0]
    stop.touch()
    assert processes.finish(auditor) == 0
    assert audit(bank, acknowledged).transfers == len(acknowledged_ids(acknowledged)) == 3 * 18


def test_forked_children_under_load_connect_anew_and_neither_side_gets_the_others_answers(
    bank: Database, bank_url: str
) -> None:
    import random

    stop = threading.Event()
    errors: list[BaseException] = []

    def load(side: int) -> None:
        number = 0
        try:
            while not stop.is_set():
                bank.run(transfer, b"parent-%d-%d" % (side, number), random.Random(number))
                number += 1
        except BaseException as error:
            errors.append(error)

    with pyomid.connect(bank_url, retries=1000) as bank:
        threads = [threading.Thread(target=load, args=(side,)) for side in range(2)]
        for thread in threads:
            thread.start()
        try:
            codes = [fork_one(bank_url, b"child-%d" % number) for number in range(20)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert codes == [0] * 20
        assert errors == []
        ids = audit(bank).ids
        assert {b"child-%d" % number for number in range(20)} <= ids
        assert any(ident.startswith(b"parent") for ident in ids)


def fork_one(url: str, ident: bytes) -> int:
    child = os.fork()
    if child == 0:
        run_one_in_child(url, ident)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
