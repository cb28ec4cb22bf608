"""Back-ups that hold what changed since another one: exact, whatever changed, and refused where one is missing."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyomid
from portions import first
from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.errors import Corruption, Misuse
from pyomid.folder import EmbeddedStore
from pyomid.folder.backup import Change, back_up, differences, newest, restore
from pyomid.folder.environment import release
from pyomid.folder.layout import CELLS, DATABASES, open_data, open_folder

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]

Content = dict[bytes, bytes]
keys = st.sampled_from([b"%d" % number for number in range(8)])
contents = st.dictionaries(keys, st.sampled_from([b"a", b"b"]))


def changed(content: Content, changes: list[tuple[bytes, bytes | None]]) -> Content:
    content = dict(content)
    for key, value in changes:
        if value is None:
            del content[key]
        else:
            content[key] = value
    return content


@given(contents, contents)
def test_the_differences_make_the_new_of_the_old(old: Content, new: Content) -> None:
    found = list(differences(iter(sorted(old.items())), iter(sorted(new.items()))))
    assert changed(old, found) == new
    assert [key for key, _ in found] == sorted({key for key in old | new if old.get(key) != new.get(key)})


@given(st.lists(st.dictionaries(st.tuples(st.integers(0, 3), keys), st.none() | st.just(b"a") | st.just(b"b"))))
def test_of_several_files_the_last_change_counts(files: list[dict[tuple[int, bytes], bytes | None]]) -> None:
    def ordered(file: dict[tuple[int, bytes], bytes | None]) -> list[Change]:
        return sorted(((*record, value) for record, value in file.items()), key=lambda change: change[:2])

    last: dict[tuple[int, bytes], bytes | None] = {}
    for file in files:
        last |= file
    assert list(newest([iter(ordered(file)) for file in files])) == ordered(last)


def content_of(folder: Path) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """Every record but those of the TSO, which moves on by itself."""
    with lmdb.open(os.fspath(folder / "data"), readonly=True, lock=False, max_dbs=6) as environment:
        with environment.begin() as transaction:
            return {
                name: list(transaction.cursor(environment.open_db(name, txn=transaction, create=False)))
                for name in DATABASES[:4]
            }


@settings(max_examples=10, deadline=None)
@given(steps=st.lists(contents, min_size=1, max_size=4))
def test_each_link_restores_what_was_there(tmp_path_factory: pytest.TempPathFactory, steps: list[Content]) -> None:
    tmp_path = tmp_path_factory.mktemp("chain")
    EmbeddedStore(tmp_path / "db").close()
    data = open_data(tmp_path / "db")
    before: Content = {}
    since = None
    for number, content in enumerate(steps):
        for key in before.keys() - content.keys():
            data.write(lambda transaction, key=key: transaction.delete(key, db=data.databases[CELLS]))
        for key, value in content.items():
            data.write(lambda transaction, key=key, value=value: transaction.put(key, value, db=data.databases[CELLS]))
        before = content
        back_up(tmp_path / "db", tmp_path / str(number), snapshot_ts=50, since=since)
        since = tmp_path / str(number)
    release(data)
    for number, content in enumerate(steps):
        restore(tmp_path / str(number), tmp_path / f"again-{number}")
        assert dict(content_of(tmp_path / f"again-{number}")[CELLS]) == content


@dataclass
class Order:
    id: int
    customer: str


def fill(db: Database) -> None:
    db.create_table("plain", ["f"])
    db.create_table("short", ["f"], ttl_seconds=1000)
    db.create_table("orders", ["f"])
    db.set_schema("orders", Order, row_key="id")
    with db.begin() as tx:
        for number in range(300):
            tx.table("plain").put(b"%03d" % number, {b"f:v": b"1"})
        tx.table("short").put(b"k", {b"f:v": b"1"})
        tx.table("orders", codec=Order).put(Order(1, "ann"))
    db.drain(10)


def delete_rows(db: Database) -> None:
    with db.begin() as tx:
        for number in range(0, 300, 3):
            tx.table("plain").delete(b"%03d" % number)
    db.drain(10)
    db.compact()


def make_a_table_anew(db: Database) -> None:
    db.drop_table("plain")
    db.create_table("plain", ["g"])
    with db.begin() as tx:
        tx.table("plain").put(b"new", {b"g:v": b"2"})


def change_the_schema(db: Database) -> None:
    db.alter_columns("orders", rename={"customer": "buyer"}, add={"note": str})
    db.alter_table("plain", conflict_level="row")


def build_an_index(db: Database) -> None:
    db.create_index("orders", "by_buyer", ["buyer"])
    with db.begin() as tx:
        tx.table("orders", codec=dict).put({"id": 2, "buyer": "bob"})


def drop_the_index(db: Database) -> None:
    db.drop_index("orders", "by_buyer")


def run_under_an_id(db: Database) -> None:
    db.run_once("payment 1", lambda tx: "paid")


def let_expire(db: Database) -> None:
    db.alter_table("short", ttl_seconds=1)
    deadline_s = time.monotonic() + 60
    while db.snapshot().table("short").get(b"k"):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
        db.expire()


def leave_half_a_transaction(db: Database) -> None:
    tx = db.begin()
    tx.table("plain").put(b"half", {b"g:v": b"3"})
    tx.flush()


def nothing(db: Database) -> None:
    pass


STEPS: list[Callable[[Database], None]] = [
    delete_rows,
    nothing,
    make_a_table_anew,
    change_the_schema,
    build_an_index,
    run_under_an_id,
    let_expire,
    drop_the_index,
    leave_half_a_transaction,
]


def test_whatever_changed_is_restored_to_the_byte(tmp_path: Path) -> None:
    """Beside each link a whole back-up of the same state."""
    url = f"omid://{tmp_path}/db?upkeepShare=0"
    with pyomid.connect(url) as db:
        fill(db)
        since = tmp_path / "0"
        db.backup(since)
        for number, step in enumerate(STEPS, 1):
            step(db)
            db.drain(10)
            made = db.backup(tmp_path / str(number), since=since)
            assert made.since == os.fspath(since)
            changes_bytes = (tmp_path / str(number) / "data" / "changes").stat().st_size
            assert (changes_bytes < 300) == (step is nothing), "the folder's own records"
            db.backup(tmp_path / f"whole-{number}")
            since = tmp_path / str(number)
        for number, step in enumerate(STEPS, 1):
            restore(tmp_path / str(number), tmp_path / f"chain-{number}")
            restore(tmp_path / f"whole-{number}", tmp_path / f"alone-{number}")
            assert content_of(tmp_path / f"chain-{number}") == content_of(tmp_path / f"alone-{number}"), step
    again = f"omid://{tmp_path}/chain-{len(STEPS)}"
    with pyomid.connect(again) as db:
        assert db.verify().ok
        assert isinstance(db.run_once("payment 1", lambda tx: "twice"), pyomid.AlreadyDone)
        with db.begin() as tx:
            assert dict(tx.table("plain").scan()) == {b"new": {b"g:v": b"2"}}
            assert [order["buyer"] for order in tx.table("orders", codec=dict).scan()] == ["ann", "bob"]
            assert tx.table("short").get(b"k") is None


Tables = dict[str, dict[bytes, bytes]]


class Model:
    """A database, and beside it what it has to hold; each step changes both."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db, self._random = db, random.Random(seed)
        self.tables: Tables = {}
        self._made = 0

    def step(self) -> None:
        if not self.tables:
            self.create()
        self._random.choice(
            [self.write, self.write, self.write, self.create, self.drop, self.clean, self.leave_an_orphan]
        )()

    def create(self) -> None:
        name = f"t{self._random.randrange(3)}"
        if name not in self.tables:
            self.db.create_table(name, ["f"])
            self.tables[name] = {}

    def drop(self) -> None:
        name = self._random.choice(sorted(self.tables))
        self.db.drop_table(name)
        del self.tables[name]

    def write(self) -> None:
        with self.db.begin() as tx:
            for _ in range(self._random.choice([1, 5, 200])):
                name, key = self._random.choice(sorted(self.tables)), b"%03d" % self._random.randrange(300)
                if self._random.random() < 0.3:
                    tx.table(name).delete(key)
                    self.tables[name].pop(key, None)
                else:
                    self._made += 1
                    tx.table(name).put(key, {b"f:v": b"%d" % self._made})
                    self.tables[name][key] = b"%d" % self._made
        if self._random.random() < 0.5:  # otherwise some commits are not completed at the back-up
            assert self.db.drain(10)

    def clean(self) -> None:
        self.db.compact()
        self.db.sanitize()

    def leave_an_orphan(self) -> None:
        tx = self.db.begin()
        tx.table(self._random.choice(sorted(self.tables))).put(b"orphan", {b"f:v": b"x"})
        tx.flush()

    def choice(self, backups: list[Path]) -> Path | None:
        return self._random.choice([None, *backups, *backups])

    def now(self) -> Tables:
        return {name: dict(rows) for name, rows in self.tables.items()}


def tables_of(db: Database) -> Tables:
    with db.begin() as tx:
        names = [info.name for info in db.tables() if not info.name.startswith("PYOMID_")]
        return {name: {key: row[b"f:v"] for key, row in tx.table(name).scan()} for name in names}


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_random_chains_restore_what_a_model_has(tmp_path: Path, seed: int) -> None:
    """Trees of back-ups: each goes on from any earlier one, or from none, and upkeep runs beside."""
    made: list[Path] = []
    held: list[Tables] = []
    with pyomid.connect(f"omid://{tmp_path}/db?upkeepShare=0.5") as db:
        model = Model(db, seed)
        for number in range(6):
            for _ in range(3):
                model.step()
            db.backup(tmp_path / str(number), since=model.choice(made))
            made.append(tmp_path / str(number))
            held.append(model.now())
        assert tables_of(db) == held[-1]
    for backup, wanted in zip(made, held, strict=True):
        restore(backup, tmp_path / f"again-{backup.name}")
        with pyomid.connect(f"omid://{tmp_path}/again-{backup.name}") as db:
            assert tables_of(db) == wanted, backup
            assert db.verify().ok


@pytest.fixture
def chain(tmp_path: Path) -> list[Path]:
    """A whole back-up and two that go on from it."""
    links = [tmp_path / name for name in ("monday", "tuesday", "wednesday")]
    with pyomid.connect(f"omid://{tmp_path}/db") as db:
        db.create_table("t", ["f"])
        since = None
        for number, link in enumerate(links):
            with db.begin() as tx:
                tx.table("t").put(b"k", {b"f:v": b"%d" % number})
            db.backup(link, since=since)
            since = link
    return links


@pytest.mark.parametrize("missing", [0, 1])
def test_a_chain_without_one_of_its_links_is_refused(tmp_path: Path, chain: list[Path], missing: int) -> None:
    chain[missing].rename(tmp_path.parent / f"{tmp_path.name}-away")
    with pytest.raises(Misuse, match=rf"that backup was in {chain[missing]}, and is neither there nor next to"):
        restore(chain[2], tmp_path / "again")
    with pytest.raises(Misuse, match="is neither there nor next to"):
        back_up(tmp_path / "db", tmp_path / "next", snapshot_ts=50, since=chain[2])
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "next").exists()
    shutil.move(tmp_path.parent / f"{tmp_path.name}-away", tmp_path / "under another name")
    restore(chain[2], tmp_path / "again")


def test_another_backup_in_a_links_place_is_refused(tmp_path: Path, chain: list[Path]) -> None:
    shutil.rmtree(chain[0])
    back_up(tmp_path / "db", chain[0], snapshot_ts=50)
    with pytest.raises(Misuse, match="Put it back unchanged"):
        restore(chain[1], tmp_path / "again")


def test_a_chain_is_restored_from_wherever_it_lies(tmp_path: Path, chain: list[Path]) -> None:
    (tmp_path / "archive").mkdir()
    for link in chain:
        shutil.move(link, tmp_path / "archive" / link.name)
    for number, link in enumerate(chain):
        restore(tmp_path / "archive" / link.name, tmp_path / f"again-{number}")
        with pyomid.connect(f"omid://{tmp_path}/again-{number}") as db, db.begin() as tx:
            assert tx.table("t").get(b"k") == {b"f:v": b"%d" % number}


def test_what_cannot_be_read_hides_no_link_of_a_chain(tmp_path: Path, chain: list[Path]) -> None:
    """Where the link lay, and beside it: a dead mount, or a folder of the system's on the back-ups' disk."""
    (tmp_path / "archive").mkdir()
    for link in chain:
        shutil.move(link, tmp_path / "archive" / link.name)
    for unreadable in (chain[0], tmp_path / "archive" / "a"):
        unreadable.symlink_to("n" * 300)
        with pytest.raises(OSError, match="too long"):
            unreadable.exists()
    restore(tmp_path / "archive" / chain[2].name, tmp_path / "again")


@pytest.mark.parametrize("link", [0, 1, 2])
def test_a_damaged_link_is_neither_restored_nor_gone_on_from(tmp_path: Path, chain: list[Path], link: int) -> None:
    file = chain[link] / "data" / ("changes" if link else "data.mdb")
    with open(file, "r+b") as damaged:
        damaged.seek(-1, os.SEEK_END)
        last = damaged.read(1)
        damaged.seek(-1, os.SEEK_END)
        damaged.write(bytes([last[0] ^ 1]))
    with pytest.raises(Corruption, match="its checksum differs"):
        restore(chain[2], tmp_path / "again")
    with pytest.raises(Corruption, match="its checksum differs"):
        back_up(tmp_path / "db", tmp_path / "next", snapshot_ts=50, since=chain[2])
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize("file", ["0/data/data.mdb", "1/data/changes", "2/data/changes"])
def test_a_link_without_one_of_its_files_is_named(tmp_path: Path, chain: list[Path], file: str) -> None:
    lost = chain[int(file[0])] / file[2:]
    lost.unlink()
    with pytest.raises(Corruption, match=f"{lost} is missing"):
        restore(chain[2], tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_what_is_no_backup_of_this_database_is_refused(tmp_path: Path, chain: list[Path]) -> None:
    restore(chain[2], tmp_path / "again")
    with pyomid.connect(f"omid://{tmp_path}/again") as db:
        with pytest.raises(Misuse, match="is a backup of database"):
            db.backup(tmp_path / "next", since=chain[2])
        with pytest.raises(Misuse, match="is not a backup"):
            db.backup(tmp_path / "next", since=tmp_path / "db")
        db.backup(tmp_path / "first")
        db.backup(tmp_path / "next", since=tmp_path / "first")


def test_a_link_is_named_by_where_it_lies(tmp_path: Path, chain: list[Path]) -> None:
    """Not by a name that stands for another one tomorrow."""
    (tmp_path / "latest").symlink_to(chain[2])
    made = back_up(tmp_path / "db", tmp_path / "next", snapshot_ts=50, since=tmp_path / "latest")
    assert made.since == os.fspath(chain[2])


def test_a_chain_is_no_longer_than_its_files_can_be_opened(
    tmp_path: Path, chain: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyomid.folder.backup.LINKS_MAX", 3)
    with pytest.raises(Misuse, match=r"needs 2 earlier backups, .* omit since"):
        back_up(tmp_path / "db", tmp_path / "next", snapshot_ts=50, since=chain[2])
    assert not (tmp_path / "next").exists()
    back_up(tmp_path / "db", tmp_path / "next", snapshot_ts=50, since=chain[1])


def test_two_backups_may_go_on_from_one(tmp_path: Path, chain: list[Path]) -> None:
    """At the same time, in one process: lmdb opens no file twice."""
    errors: list[BaseException] = []

    def go_on(name: str) -> None:
        try:
            back_up(tmp_path / "db", tmp_path / name, snapshot_ts=50, since=chain[1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go_on, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for name in ("one", "other"):
        restore(tmp_path / name, tmp_path / f"{name}-again")
        open_folder(tmp_path / f"{name}-again")


def test_the_command_goes_on_from_a_backup(
    tmp_path: Path, chain: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"omid://{tmp_path}/db"
    assert main(["backup", url, str(tmp_path / "thursday"), "--since", str(chain[2])]) == 0
    assert f"holds only the changes since {chain[2]}; keep both" in capsys.readouterr().out
    assert main(["restore", str(tmp_path / "thursday"), f"omid://{tmp_path}/again"]) == 0
    assert main(["backup", url, str(tmp_path / "friday"), "--since", str(tmp_path)]) == 1
    assert "is not a backup" in capsys.readouterr().err
