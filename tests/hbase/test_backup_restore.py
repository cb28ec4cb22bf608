"""Backups over HBase have one moment of all tables, whatever happens between their snapshots (decision 0078)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hbase_processes import TsoProcess, forget_others, leading_tso
from test_hbase_cleaning import Cleaned

import pyomid
from at_points import meanwhile
from portions import first
from pyomid.cli import main
from pyomid.config import Settings
from pyomid.database.database import Database
from pyomid.database.index_tables import INDEX_TABLES
from pyomid.database.upkeep.backups import restore
from pyomid.errors import Misuse
from pyomid.omid.hbase.backup import HBaseBackup, HBaseRestore
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.regions.admin import Admin
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.tso.local import LocalTso
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.ports import Deployment
from pyomid.protocol.hashing import table_id
from pyomid.protocol.timestamps import NS_PER_S
from pyomid.types import TIMESTAMP_STEP, Backup, Column, CommitRequest, RowWrite, ShadowWrite
from waiting import let_compactions_count, until

VALUE = b"f:v"
PLACE = Column(b"f", b"v")
Rows = dict[bytes, dict[bytes, bytes]]


class Shop:
    """A database of its own on the shared HBase, with two tables, and what a test does to it beside a back-up."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.made = Cleaned(cluster, name)
        self.tables = (f"{name}_a", f"{name}_b")
        self.backup_name = f"of_{name}"
        self.databases: list[Database] = []
        self.db = self.opened(self.made.tso)
        for table in self.tables:
            self.db.create_table(table, families=["f"], split_keys=[b"m"])

    def opened(self, tso: LocalTso) -> Database:
        made = self.made
        state = HBaseLeaderState(self.cluster, table=f"{self.name}_meta", commit_table=f"{self.name}_ct")
        backup = HBaseBackup(self.cluster, state, made.catalog, commits=f"{self.name}_ct")
        deployment = Deployment(
            made.store,
            made.commits,
            made.leader_state,
            made.catalog,
            tso,
            Settings(),
            clock=made.clock,
            foreign=made.store,
            back_up=lambda name, moment, since: backup.take(name, moment),
        )
        self.databases.append(Database(deployment))
        return self.databases[-1]

    def fail_over(self) -> Database:
        """Another TSO leads: what began before is of an earlier epoch."""
        made = self.made
        settings = TsoSettings(conflict_map_entries=4096, max_transaction_age_s=600.0)
        return self.opened(LocalTso(TsoStores(made.commits, made.leader_state, made.catalog), settings))

    def go_above(self, timestamp: int) -> Database:
        """As `fail_over`, to a TSO whose timestamps lie above this one: its clock is ahead, or was raised."""
        state = self.made.leader_state
        epoch = timestamp + -timestamp % TIMESTAMP_STEP
        assert state.take_over(expected=state.read().epoch, epoch=epoch, ceiling=epoch)
        return self.fail_over()

    def put(self, rows: dict[bytes, bytes], db: Database | None = None) -> int:
        """The same rows in both tables, in one transaction. Returns its start."""
        with (db or self.db).begin() as tx:
            for table in self.tables:
                for key, value in rows.items():
                    tx.table(table).put(key, {VALUE: value})
        assert (db or self.db).drain(30)
        return tx.start_ts

    def write(self, start_ts: int, key: bytes, value: bytes) -> None:
        for table in self.tables:
            self.made.store.write_cells(table, start_ts, [RowWrite(key, ((PLACE, value),))])

    def half_done(self, key: bytes, value: bytes) -> tuple[int, int]:
        """Committed, and its client died: an entry, and no shadow cell. Start and commit."""
        begun_start_ts = self.made.tso.begin()
        start_ts = begun_start_ts.start_ts
        self.write(start_ts, key, value)
        reply = self.made.tso.commit(CommitRequest(start_ts, (hash((key, start_ts)) >> 1,)))
        assert reply.committed
        return start_ts, reply.commit_ts

    def heal(self, table: str, key: bytes, start_ts: int, commit_ts: int) -> None:
        name = replace_version(key, start_ts)
        self.made.store.write_shadow_cells(table, [ShadowWrite(name, commit_ts)])

    def pass_a_minute(self) -> None:
        """W follows what is open; leases last longer."""
        for _ in range(20):
            self.made.clock.now_s += 3.0
            self.made.tso.begin().end()
            self.made.tso.tick()

    def back_up(self, db: Database | None = None) -> Backup:
        return (db or self.db).backup(self.backup_name)

    def restore(self, names: dict[str, str] | list[str] | None, db: Database | None = None) -> list[str]:
        into = db or self.databases[-1]
        return restore(into._core.deployment, HBaseRestore(self.cluster, self.backup_name), names)

    def snapshots(self) -> set[str]:
        return {each for each in Admin(self.cluster).snapshots() if each.startswith(f"{self.backup_name}.")}

    def restored(self, db: Database | None = None) -> dict[str, Rows]:
        """The rows of each table, from the back-up, under other names."""
        db = db or self.databases[-1]
        names = {table: f"{table}_back" for table in self.tables}
        assert self.restore(names, db) == list(names.values())
        with db.snapshot() as tx:
            found = {table: dict(tx.table(new).scan()) for table, new in names.items()}
        for new in names.values():
            for batch in self.made.store.scan(new, pyomid.types.KeyRange()):
                assert all(cell.commit_ts for cell in batch.all_cells()), "each version has its shadow cell"
        assert [name for name in Admin(self.cluster).tables() if name.startswith("PYOMID_RESTORE")] == []
        return found

    def close(self) -> None:
        admin = Admin(self.cluster)
        admin.delete_snapshots(list(self.snapshots()))
        indexes = [info.name for info in self.made.catalog.tables() if info.name.startswith(INDEX_TABLES)]
        for db in self.databases:
            db.drain(10)
        for name in admin.tables():
            if name.startswith(self.name) or name in indexes:
                admin.drop_table(name)


def replace_version(key: bytes, version: int) -> pyomid.types.CellVersion:
    return pyomid.types.CellVersion(key, PLACE.family, PLACE.qualifier, version)


@pytest.fixture
def shop(cluster: Cluster, table_name: str) -> Iterator[Shop]:
    made = Shop(cluster, f"{table_name}x")
    yield made
    made.close()


def rows(**values: bytes) -> Rows:
    return {key.encode(): {VALUE: value} for key, value in values.items()}


def test_a_backup_has_exactly_the_commits_before_its_moment(shop: Shop) -> None:
    shop.put({b"a": b"1", b"z": b"1", b"gone": b"1"})
    with shop.db.begin() as tx:
        for table in shop.tables:
            tx.table(table).delete(b"gone")
    shop.half_done(b"b", b"half")
    begun_opened = shop.made.tso.begin()
    opened = begun_opened.start_ts
    shop.write(opened, b"c", b"open")
    before = shop.back_up()
    assert shop.made.tso.commit(CommitRequest(opened, (77,))).committed
    shop.put({b"a": b"2", b"later": b"2"})
    assert before.snapshot_ts > opened
    wanted = rows(a=b"1", z=b"1", b=b"half")
    assert shop.restored() == dict.fromkeys(shop.tables, wanted)


@pytest.mark.long
@pytest.mark.parametrize("point", ["hbase.backup.commits", "hbase.backup.table", "hbase.backup.noted"])
def test_changes_between_two_snapshots_are_not_in_the_backup(shop: Shop, point: str) -> None:
    """B6: commits, completions that take entries away, compaction and sanitising, each between any two snapshots."""
    shop.put({b"a": b"1", b"z": b"1"})
    start_ts, commit_ts = shop.half_done(b"b", b"half")
    begun_opened = shop.made.tso.begin()
    opened = begun_opened.start_ts
    shop.write(opened, b"c", b"open")

    def others() -> None:
        for table in shop.tables:
            shop.heal(table, b"b", start_ts, commit_ts)
        shop.made.commits.delete([start_ts])
        reply = shop.made.tso.commit(CommitRequest(opened, (77,)))
        shop.heal(shop.tables[0], b"c", opened, reply.commit_ts)
        shop.put({b"a": b"2", b"later": b"2"})
        with shop.db.begin() as tx:
            tx.table(shop.tables[1]).delete(b"z")
        shop.pass_a_minute()
        shop.db.compact()
        let_compactions_count(shop.made.catalog)
        assert shop.db.sanitize().horizon > start_ts

    with meanwhile(point, others):
        shop.back_up()
    assert shop.restored() == dict.fromkeys(shop.tables, rows(a=b"1", z=b"1", b=b"half"))


@pytest.mark.long
def test_a_late_commit_of_a_dead_tso_is_in_the_backup_whole_or_not_at_all(shop: Shop) -> None:
    """Its flush lands behind the commit table's snapshot; a reader heals one of its rows before that is taken."""
    begun_start_ts = shop.made.tso.begin()
    start_ts = begun_start_ts.start_ts
    begun_commit_ts = shop.made.tso.begin()
    commit_ts = begun_commit_ts.start_ts
    shop.write(start_ts, b"late", b"1")
    db = shop.fail_over()
    shop.put({b"a": b"1"}, db)

    def late() -> None:
        shop.made.commits.put([(start_ts, commit_ts)])
        shop.heal(shop.tables[1], b"late", start_ts, commit_ts)

    with meanwhile("hbase.backup.commits", late):
        shop.back_up(db)
    assert shop.restored(db) == dict.fromkeys(shop.tables, rows(a=b"1", late=b"1"))


@pytest.mark.long
def test_concurrent_transfers_are_in_the_backup_whole_or_not_at_all(shop: Shop) -> None:
    """Each moves an amount from one table to the other, while all is compacted."""
    accounts = [b"%c%d" % (97 + number, number) for number in range(20)]
    shop.put(dict.fromkeys(accounts, b"100"))
    one, other = shop.tables
    stop = threading.Event()
    failed: list[BaseException] = []

    def move(seed: int) -> None:
        try:
            number = seed
            while not stop.is_set():
                number = (number * 31 + 7) % len(accounts)
                key = accounts[number]

                def transfer(tx: pyomid.Transaction, key: bytes = key) -> None:
                    held = [int(tx.table(each).get(key)[VALUE]) for each in (one, other)]
                    tx.table(one).put(key, {VALUE: b"%d" % (held[0] - 1)})
                    tx.table(other).put(key, {VALUE: b"%d" % (held[1] + 1)})

                with contextlib.suppress(pyomid.ConflictError):
                    shop.db.run(transfer)
        except BaseException as error:
            failed.append(error)

    movers = [threading.Thread(target=move, args=(seed,)) for seed in (1, 2)]
    for mover in movers:
        mover.start()
    with shop.db.snapshot() as before:
        moved_before = 2000 - total(dict(before.table(one).scan()))
    made = shop.back_up()
    shop.db.compact()
    stop.set()
    for mover in movers:
        mover.join()
    assert not failed
    assert made.snapshot_ts > before.start_ts
    found = shop.restored()
    assert all(int(found[one][key][VALUE]) + int(found[other][key][VALUE]) == 200 for key in accounts)
    assert 2000 - total(found[one]) >= moved_before


def total(found: Rows) -> int:
    return sum(int(row[VALUE]) for row in found.values())


@pytest.mark.long
def test_a_restore_keeps_expiry_and_brings_indexes(shop: Shop, table_name: str) -> None:
    expiring, indexed = f"{shop.name}_ttl", f"{shop.name}_indexed"
    shop.db.create_table(expiring, families=["f"], ttl_seconds=1)
    shop.db.create_table(indexed, families=["d"])
    shop.db.set_schema(indexed, {"k": int, "city": str}, row_key="k")
    shop.db.create_index(indexed, "by_city", ["city"])
    with shop.db.begin() as tx:
        tx.table(indexed, codec=dict).put({"k": 1, "city": "Oslo"})
        tx.table(expiring).put(b"old", {VALUE: b"1"})
    expired_ts = (tx.commit_ts or 0) + NS_PER_S
    until(lambda: shop.db.begin().start_ts >= expired_ts, "the clock stands")
    shop.db.alter_table(expiring, ttl_seconds=3600.0)
    with shop.db.begin() as tx:
        tx.table(expiring).put(b"young", {VALUE: b"1"})
    shop.back_up()
    names = {expiring: f"{expiring}_2", indexed: f"{indexed}_2"}
    shop.restore(names)
    with shop.db.snapshot() as tx:
        assert dict(tx.table(f"{expiring}_2").scan()) == rows(young=b"1")
        found = tx.table(f"{indexed}_2", codec=dict).lookup("by_city", "Oslo")
        assert [row["k"] for row in found] == [1]
    assert shop.db.table_info(f"{indexed}_2").indexes[0].table != shop.db.table_info(indexed).indexes[0].table
    assert shop.db.table_info(f"{expiring}_2").ttl_seconds == 3600.0
    assert shop.db.verify([f"{indexed}_2"]).ok


# Refusals


@pytest.mark.long
def test_a_restore_over_existing_tables_changes_nothing(shop: Shop) -> None:
    shop.put({b"a": b"1"})
    shop.back_up()
    shop.put({b"a": b"2"})
    one, other = shop.tables
    with pytest.raises(Misuse, match=rf"table '{one}' already exists.*nothing was restored.*--as OLD=NEW"):
        shop.restore(None)
    with pytest.raises(Misuse, match=rf"table '{other}' already exists"):
        shop.restore({one: f"{one}_2", other: other})
    assert shop.db._core.deployment.catalog.entry(f"{one}_2") is None
    shop.made.store.create_table(pyomid.TableInfo(f"{one}_3", (b"f",)))
    with pytest.raises(Misuse, match="that is not in the catalog"):
        shop.restore({one: f"{one}_3"})
    with shop.db.snapshot() as tx:
        assert dict(tx.table(one).scan()) == rows(a=b"2")


def test_unknown_backups_and_tables_are_refused(shop: Shop) -> None:
    shop.put({b"a": b"1"})
    for name in ("", "a b", "x.y", "-x", 7, "é"):
        with pytest.raises(Misuse, match="invalid backup name"):
            shop.db.backup(name)  # type: ignore[arg-type]
    shop.back_up()
    with pytest.raises(Misuse, match=rf"a backup '{shop.backup_name}' already exists.*delete_all_snapshot"):
        shop.back_up()
    with pytest.raises(Misuse, match=rf"has no backup 'other'.*{shop.backup_name}"):
        HBaseRestore(shop.cluster, "other")
    with pytest.raises(Misuse, match="the backup has no table 'nobody'"):
        shop.restore(["nobody"])


def test_a_backup_that_would_lack_a_table_is_refused(shop: Shop) -> None:
    number = table_id(b"unregistered")
    shop.made.catalog.mark_unknown_table(number)
    with pytest.raises(Misuse, match=f"it would lack tables.*{number}.*discover"):
        shop.back_up()
    assert not shop.snapshots()


def test_a_backup_whose_lease_was_lost_fails(shop: Shop) -> None:
    """W passes its moment while it is taken."""
    shop.put({b"a": b"1"})

    def lose() -> None:
        status = shop.made.tso.status()
        for lease in status.leases:
            shop.made.tso.end_lease(lease)
        shop.made.pass_time()

    with meanwhile("hbase.backup.commits", lose), pytest.raises(pyomid.SnapshotTooOld, match="take the backup again"):
        shop.back_up()
    assert not shop.snapshots()


def test_a_backup_fails_if_a_table_is_dropped_meanwhile(shop: Shop) -> None:
    shop.put({b"a": b"1"})

    def remake() -> None:
        shop.db.drop_table(shop.tables[0])
        shop.db.create_table(shop.tables[0], families=["f"])

    with (
        meanwhile("hbase.backup.commits", remake),
        pytest.raises(pyomid.ConflictError, match="dropped during the backup"),
    ):
        shop.back_up()


@pytest.mark.long
def test_a_database_behind_the_backup_must_raise_its_timestamps_first(
    shop: Shop, cluster: Cluster, table_name: str
) -> None:
    """Else what was cut away, whose delete markers are still there, would hide what is written."""
    db = shop.go_above(time.time_ns() + 3600 * NS_PER_S)
    shop.put({b"a": b"1"}, db)
    begun_opened = db._core.deployment.tso.begin()
    opened = begun_opened.start_ts
    shop.write(opened, b"c", b"open")
    shop.back_up(db)
    behind = Shop(cluster, f"{table_name}y")
    try:
        source = HBaseRestore(cluster, shop.backup_name)
        names = {table: f"{table}_in_other" for table in shop.tables}
        with pytest.raises(Misuse, match="pyomid init URL --above-backup"):
            restore(behind.db._core.deployment, source, names)
        newest = source.manifest.newest_ts
        assert newest >= opened
        behind.go_above(newest)
        assert restore(behind.databases[-1]._core.deployment, source, names)
        with behind.databases[-1].snapshot() as tx:
            assert dict(tx.table(names[shop.tables[0]]).scan()) == rows(a=b"1")
    finally:
        behind.close()


@pytest.mark.long
def test_a_backup_deletes_no_snapshot_of_an_operator(shop: Shop) -> None:
    """Whose names begin with the same word, and end as ours do; what an unfinished back-up left goes."""
    own = [f"{shop.backup_name}.{rest}" for rest in ("daily", "20261124.1", "commits", "0a0a0a0a")]
    left = [f"{shop.backup_name}.00c0ffee.{rest}" for rest in ("0", "commits")]
    admin = Admin(shop.cluster)
    for name in (*own, *left):
        admin.take_snapshot(name, shop.tables[0])
    try:
        made = shop.back_up()
        assert shop.snapshots() == {*made.snapshots, *own}
    finally:
        admin.delete_snapshots(own)


# Two at a time


@pytest.mark.long
@pytest.mark.parametrize("point", ["hbase.backup.commits", "hbase.backup.table", "hbase.backup.noted"])
def test_of_two_backups_of_one_name_the_later_one_completes(shop: Shop, point: str) -> None:
    """A scheduler that repeats what it takes for lost. The earlier one says that it failed, and takes nothing away."""
    shop.put({b"a": b"1"})
    made: list[Backup] = []

    def later() -> None:
        shop.put({b"a": b"2"})
        made.append(shop.back_up())

    with meanwhile(point, later), pytest.raises(pyomid.ConflictError, match=r"another backup .* began"):
        shop.back_up()
    assert shop.snapshots() == set(made[0].snapshots)
    assert shop.restored() == dict.fromkeys(shop.tables, rows(a=b"2"))


@pytest.mark.long
def test_a_restore_never_uses_the_copies_of_another_restore(shop: Shop) -> None:
    """Another one began, and its copies are as they were taken: later commits are in them, and halves of some."""
    shop.put({b"a": b"1"})
    with meanwhile("hbase.backup.commits", lambda: shop.put({b"a": b"2", b"later": b"2"})):
        shop.back_up()
    one, other = shop.tables
    names = {one: f"{one}_back", other: f"{other}_back"}

    def begin_another() -> None:
        second = HBaseRestore(shop.cluster, shop.backup_name)
        second.copy(second.manifest.tables).close()

    first = HBaseRestore(shop.cluster, shop.backup_name)
    with meanwhile("client.create.begun", begin_another), pytest.raises(pyomid.ConflictError, match="another restore"):
        restore(shop.db._core.deployment, first, names)
    assert not any(shop.db._core.deployment.catalog.entry(name) for name in names.values())
    assert shop.restored() == dict.fromkeys(shop.tables, rows(a=b"1"))


# The commands, on the cluster's own database


@pytest.fixture
def clean(database: Database) -> Database:
    forget_others(database)
    return database


Command = Callable[..., int]


def killed_at(point: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pyomid", *arguments]
    done = subprocess.run(command, env=os.environ | {"PYOMID_CRASH_AT": point}, timeout=300)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("backup_dies_at", "restore_dies_at"),
    first(0, [("hbase.backup.noted", "hbase.restore.cut"), ("hbase.backup.table", "hbase.restore.cloned")]),
)
def test_a_killed_backup_or_restore_can_be_rerun(
    clean: Database, url: str, table: str, cluster: Cluster, backup_dies_at: str, restore_dies_at: str
) -> None:
    with clean.begin() as tx:
        tx.table(table).put(b"a", {VALUE: b"1"})
    name, new = f"b{table}", f"{table}_new"
    killed_at(backup_dies_at, "backup", url, name)
    forget_others(clean)  # the lease of the killed one
    assert main(["restore", name, url]) == 1, "it is no back-up"
    assert main(["backup", url, name]) == 0
    killed_at(restore_dies_at, "restore", name, url, "--as", f"{table}={new}")
    assert new not in {info.name for info in clean.tables()}
    assert main(["restore", name, url, "--as", f"{table}={new}"]) == 0
    with clean.snapshot() as tx:
        assert dict(tx.table(new).scan()) == rows(a=b"1")
    clean.drop_table(new)
    admin = Admin(cluster)
    admin.delete_snapshots([each for each in admin.snapshots() if each.startswith(f"{name}.")])


@pytest.mark.long
def test_a_table_left_by_a_killed_restore_is_named(
    clean: Database, url: str, table: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name, new = f"b{table}", f"{table}_new"
    assert main(["backup", url, name]) == 0
    killed_at("hbase.restore.put", "restore", name, url, "--as", f"{table}={new}")
    assert main(["restore", name, url, "--as", f"{table}={new}"]) == 1
    assert f"HBase has a table '{new}' that is not in the catalog" in capsys.readouterr().err
    admin = Admin(cluster)
    admin.drop_table(new)
    assert main(["restore", name, url, "--as", f"{table}={new}"]) == 0
    clean.drop_table(new)
    admin.delete_snapshots([each for each in admin.snapshots() if each.startswith(f"{name}.")])


@pytest.mark.long
def test_init_lets_timestamps_begin_above_a_backup(
    shop: Shop, url: str, tso: TsoProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    with pyomid.connect(url) as db:
        now_ts = db.status().tso.last_ts
    state = shop.made.leader_state
    epoch = (now_ts // 50 + 20_000_000_000) * 50
    assert state.take_over(expected=state.read().epoch, epoch=epoch, ceiling=epoch)
    shop.fail_over()
    shop.back_up(shop.databases[-1])
    assert tso.stop() == 0
    for said in ("start above", "are above"):
        assert main(["init", url, "--above-backup", shop.backup_name, "--conflict-level", "any"]) == 0
        assert said in capsys.readouterr().out
    with leading_tso(url, tso.log.with_suffix(".2")):
        with pyomid.connect(url) as db:
            assert db.begin().start_ts > HBaseRestore(shop.cluster, shop.backup_name).manifest.newest_ts
            assert not db.status().tables_unconfirmed
