"""Two TSOs over HBase: one leads, the other takes over, even if the old one still believes that it leads (T3 … T5)."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hbase_processes import TsoProcess, with_options

import pyomid.aio
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.errors import Deposed, OmidError
from pyomid.omid.hbase.coordination import LeaderLease, find_tso
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.omid.tso.leadership import DOUBT_EXIT_CODE
from pyomid.ports import boot_clock

LEASE_S = 6.0
DEADLINE_S = 120.0


def test_a_standby_takes_over_and_nothing_acknowledged_is_lost(url: str, tmp_path: Path, table_name: str) -> None:
    acknowledged: list[int] = []
    with (
        TsoProcess(url, tmp_path / "one.log", lease_s=LEASE_S) as one,
        pyomid.connect(url, commitRetrySeconds=30.0) as database,
    ):
        one.wait_until_leading()
        database.create_table(table_name, ["f"])
        with TsoProcess(url, tmp_path / "two.log", lease_s=LEASE_S) as two:
            stop = threading.Event()

            def write() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    try:
                        with database.begin() as tx:
                            tx.table(table_name).put(b"%06d" % number, {b"f:q": b"v"})
                    except OmidError:
                        continue
                    acknowledged.append(number)

            writer = threading.Thread(target=write)
            writer.start()
            while len(acknowledged) < 20:
                stop.wait(0.01)
            first_epoch = database._core.deployment.leader_state.read().epoch
            one.kill()
            before = len(acknowledged)
            two.wait_until_leading()
            while len(acknowledged) < before + 20:
                stop.wait(0.01)
            stop.set()
            writer.join()
            assert database._core.deployment.leader_state.read().epoch > first_epoch
            with database.begin() as tx:
                found = {int(row) for row, _ in tx.table(table_name).scan()}
            assert set(acknowledged) <= found
            database.drop_table(table_name)
            assert two.stop() == 0


@pytest.mark.long
def test_a_leader_stopped_past_its_lease_sends_no_reply(url: str, tmp_path: Path, table_name: str) -> None:
    """T4: SIGSTOP for longer than the lease; the other leads; on waking the old one dies without a reply."""
    with TsoProcess(url, tmp_path / "one.log", lease_s=LEASE_S) as one:
        address = one.wait_until_leading()
        with pyomid.connect(url, commitRetrySeconds=30.0) as database:
            database.create_table(table_name, ["f"])
            transaction = database.begin()
            transaction.table(table_name).put(b"r", {b"f:q": b"v"})
            transaction.flush()
            with TsoProcess(url, tmp_path / "two.log", lease_s=LEASE_S) as two:
                one.send(signal.SIGSTOP)
                outcome: list[object] = []

                def commit() -> None:
                    try:
                        transaction.commit()
                        outcome.append(transaction.commit_ts)
                    except OmidError as error:
                        outcome.append(error)

                # The request goes to the stopped leader and lies in its socket.
                committing = threading.Thread(target=commit)
                committing.start()
                assert two.wait_until_leading() != address
                one.send(signal.SIGCONT)
                assert one.process.wait(timeout=120.0) == DOUBT_EXIT_CODE
                committing.join()
                # Begun under the first epoch: no later TSO may commit it, and the first one never answered.
                assert isinstance(outcome[0], OmidError)
                with database.begin() as tx:
                    assert tx.start_ts > transaction.start_ts
                    assert tx.table(table_name).get(b"r") is None
                database.drop_table(table_name)
                assert two.stop() == 0


@pytest.mark.long
def test_clients_held_by_a_stopped_leader_go_to_the_next_one(url: str, tmp_path: Path, table_name: str) -> None:
    """A try's own patience is out of reach here: what ends the wait is that ZooKeeper names another leader."""
    patience = {"requestSeconds": 3600.0, "commitRetrySeconds": 3600.0}
    ready, is_stopped = threading.Event(), threading.Event()

    async def write_twice() -> None:
        async with await pyomid.aio.connect(url, **patience) as database:
            async with database.begin() as tx:
                await (await tx.table(table_name)).put(b"async", {b"f:q": b"before"})
            ready.set()
            await asyncio.to_thread(is_stopped.wait)
            async with database.begin() as tx:
                await (await tx.table(table_name)).put(b"async", {b"f:q": b"after"})

    def write(database: Database) -> None:
        with database.begin() as tx:
            tx.table(table_name).put(b"blocking", {b"f:q": b"after"})

    with (
        ThreadPoolExecutor() as threads,
        TsoProcess(url, tmp_path / "one.log", lease_s=LEASE_S) as one,
        pyomid.connect(url, **patience) as database,
    ):
        one.wait_until_leading()
        database.create_table(table_name, ["f"])
        in_asyncio = threads.submit(asyncio.run, write_twice())
        assert ready.wait(DEADLINE_S)
        with TsoProcess(url, tmp_path / "two.log", lease_s=LEASE_S) as two:
            two.wait_until_standing_by()
            one.send(signal.SIGSTOP)
            is_stopped.set()
            held = [threads.submit(write, database), in_asyncio]
            try:
                two.wait_until_leading()
                for each in held:
                    each.result(DEADLINE_S)
            finally:
                one.kill()  # a client that did not leave it ends its wait by that
            with database.begin() as tx:
                found = dict(tx.table(table_name).scan())
            assert {row: cells[b"f:q"] for row, cells in found.items()} == {b"async": b"after", b"blocking": b"after"}
            database.drop_table(table_name)
            assert two.stop() == 0


@pytest.mark.long
def test_a_normal_shutdown_hands_over_at_once(url: str, tmp_path: Path) -> None:
    """The standby would wait ten minutes for the lease to run out, longer than this test may last."""
    lease_s = 600.0
    with TsoProcess(url, tmp_path / "one.log", lease_s=LEASE_S) as one:
        one.wait_until_leading()
        with TsoProcess(url, tmp_path / "two.log", lease_s=lease_s) as two:
            two.wait_until_standing_by()
            assert one.stop() == 0
            two.wait_until_leading()
            assert two.stop() == 0


class TestLease:
    """The znode alone, with candidates of this process."""

    @pytest.fixture
    def namespace(self, table_name: str) -> str:
        return f"test-{table_name}"

    def candidate(self, hbase: HBaseServer, namespace: str, period_s: float = 1.0) -> LeaderLease:
        zookeeper = ZooKeeper(hbase.quorum, namespace=namespace)
        return LeaderLease(zookeeper, "127.0.0.1:1", clock=boot_clock, period_s=period_s)

    def test_of_many_candidates_one_leads(self, hbase: HBaseServer, namespace: str) -> None:
        candidates = [self.candidate(hbase, namespace, 60.0) for _ in range(4)]
        stop = threading.Event()
        leaders: list[LeaderLease] = []

        def stand(candidate: LeaderLease) -> None:
            if candidate.acquire(stop) is not None:
                leaders.append(candidate)
                stop.set()

        threads = [threading.Thread(target=stand, args=(candidate,)) for candidate in candidates]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(leaders) == 1
        for candidate in candidates:
            candidate.release()

    def test_a_lease_that_another_took_is_lost(self, hbase: HBaseServer, namespace: str) -> None:
        old, new = self.candidate(hbase, namespace), self.candidate(hbase, namespace)
        assert old.acquire(threading.Event()) is not None
        assert new.acquire(threading.Event()) is not None, "nobody renewed the first: it ran out"
        lost = threading.Event()
        old._until_s = float("inf")  # its clock lies: only the znode can tell it
        old.keep(lambda _: None, lambda _: lost.set())
        assert lost.wait(120.0)
        new.release()

    def test_an_older_epoch_is_never_announced_over_a_newer(self, hbase: HBaseServer, namespace: str) -> None:
        leader = self.candidate(hbase, namespace, period_s=30.0)
        leader.acquire(threading.Event())
        leader.announce(200)
        with pytest.raises(Deposed):
            leader.announce(150)
        leader.release()


def test_clients_are_told_the_leader_s_address(url: str, hbase: HBaseServer, tso: TsoProcess, tmp_path: Path) -> None:
    zookeeper = ZooKeeper(hbase.quorum)
    announced = find_tso(zookeeper)
    zookeeper.close()
    assert announced.address == tso.address
    with pyomid.connect(url) as database:
        assert database.status().tso.epoch == database._core.deployment.leader_state.read().epoch == announced.epoch


def test_a_standby_that_could_not_take_over_is_refused_at_its_start(
    url: str, hbase: HBaseServer, tso: TsoProcess, tmp_path: Path
) -> None:
    """It would be ready for ever, and end when it is needed."""
    with TsoProcess(with_options(url, "ceiling=zookeeper"), tmp_path / "two.log", lease_s=LEASE_S) as two:
        assert two.process.wait(timeout=DEADLINE_S) == 3
    assert "set option ceiling=hbase" in (tmp_path / "two.log").read_text()
    zookeeper = ZooKeeper(hbase.quorum)
    assert find_tso(zookeeper).address == tso.address, "the leader leads on"
    zookeeper.close()
