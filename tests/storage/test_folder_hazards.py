"""Hazards of a folder (folder.md, "Hazards"), each met on the shortest way; those of the shared file alone are in
`test_shared_file`. `tests/model/` visits all ways."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pyomid
from other_holder import WAIT_S, Holder
from pyomid.database.database import Database
from pyomid.errors import ConflictError
from pyomid.folder import folder_state
from pyomid.folder.environment import Environment
from pyomid.folder.layout import EPOCH
from pyomid.folder.shared_file import Place, Posted, SharedFile
from pyomid.types import Column, CommitRequest, RowWrite

pytestmark = pytest.mark.fast


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with pyomid.connect(f"omid://{tmp_path}/db?upkeepShare=0") as opened:
        opened.create_table("t", ["f"])
        write(opened, b"before").commit()  # its column has a number from now on
        yield opened


@pytest.fixture
def holder(db: Database, tmp_path: Path) -> Iterator[Holder]:
    shared = SharedFile(tmp_path / "db" / "data")
    made = Holder(environment_of(db), shared)
    yield made
    made.close()
    shared.close()


def environment_of(db: Database) -> Environment:
    environment: Environment = db._core.deployment.store.environment  # type: ignore[attr-defined]
    return environment


def write(db: Database, key: bytes, *, value: bytes = b"1", flushes: bool = False) -> pyomid.Transaction:
    tx = db.begin()
    tx.table("t").put(key, {b"f:v": value})
    if flushes:
        tx.flush()
    return tx


def has(db: Database, key: bytes) -> bool:
    with db.begin() as tx:
        return bool(tx.table("t").get(key))


def commits(tx: pyomid.Transaction) -> bool:
    """Whether it is told that it commits, by a thread of its own."""
    tx._core._thread = threading.get_ident()
    try:
        tx.commit()
    except ConflictError:
        return False
    return True


def followed_once(steps: Callable[[], object], work: Callable[[], object]) -> Callable[[], Any]:
    """`steps`, and after the first time `work`."""
    left = [work]

    def both() -> object:
        found = steps()
        if left:
            left.pop()()
        return found

    return both


# Timestamps


def test_l1_no_commit_has_the_number_of_a_start(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the wall clock, set back, stands far below the folder's."""
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    starts, drawn = set(), []
    for number in range(6):
        tx = write(db, b"%d" % number, flushes=number % 2 == 0)
        starts.add(tx.start_ts)
        if version := tx._core.view.version:
            drawn.append(version)
        tx.commit()
        drawn.append(tx.commit_ts)
    assert len(drawn) == 9 == len(set(drawn))
    assert not starts & set(drawn)


# Turn and areas


@pytest.mark.parametrize("beside", [False, True], ids=["one file", "two files"])
def test_l2_l3_what_a_holder_committed_before_it_died_is_not_performed_again(
    db: Database, holder: Holder, beside: bool
) -> None:
    """`beside`: processes with another shared file use the same place of it."""
    tx = write(db, b"k")
    with ThreadPoolExecutor(1) as pool:
        holder.take_turn()
        told = pool.submit(commits, tx)
        posted = holder.take()
        holder.perform(posted, marks_done=False)
        if beside:
            note_outcome(environment_of(db), posted[0])
        holder.give_turn_back()
        assert told.result(WAIT_S)
    assert has(db, b"k")


def note_outcome(environment: Environment, posted: Posted) -> None:
    """As if another request had been performed, for the same place of another shared file."""
    other = Place(posted.place.file + 1, posted.place.number)
    with environment._lmdb.begin(write=True) as transaction:
        folder_state.put_outcomes(transaction, environment.databases[EPOCH], other, 1, b"")


def test_l6_a_request_that_is_only_said_to_be_done_is_performed(db: Database, holder: Holder) -> None:
    tx = write(db, b"k")
    with ThreadPoolExecutor(1) as pool:
        holder.take_turn()
        told = pool.submit(commits, tx)
        holder.mark_done(holder.take())
        holder.give_turn_back()
        assert told.result(WAIT_S)
    assert has(db, b"k")


# Snapshots and W


def clean(db: Database) -> None:
    """Raise W, and drop what it released."""
    db._core.deployment.tso.raise_watermark()  # type: ignore[attr-defined]
    db.compact()


def test_l7_a_begin_is_noted_before_it_reads_the_clock(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    write(db, b"k", value=b"old").commit()
    session = db._core.deployment.tso

    def others() -> None:
        write(db, b"k", value=b"new").commit()
        clean(db)

    monkeypatch.setattr(session, "_state", followed_once(session._state, others))  # type: ignore[attr-defined]
    reader = db.begin()
    assert reader.table("t").get(b"k") == {b"f:v": b"old"}


def test_l7_a_look_reads_the_clock_before_the_slots(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    write(db, b"k", value=b"old").commit()
    starts, readers = environment_of(db).starts, []

    def others() -> None:
        readers.append(db.begin())
        write(db, b"k", value=b"new").commit()

    monkeypatch.setattr(starts, "oldest", followed_once(starts.oldest, others))
    clean(db)
    clean(db)
    assert [reader.table("t").get(b"k") for reader in readers] == [{b"f:v": b"old"}]


def test_l7_a_slot_falls_only_while_its_start_is_open(db: Database) -> None:
    reader, shared = db.begin(), environment_of(db).shared
    assert shared is not None
    for number in range(3):
        write(db, b"%d" % number).commit()
        with db.begin():
            assert 0 < shared.held() <= reader.start_ts
    reader.rollback()
    assert shared.held() == 0


# Branches


def test_l8_a_branch_that_meets_a_commit_as_it_writes_does_not_commit(db: Database) -> None:
    """Nothing else wrote the table but another branch, whose commit counts as the newest."""
    one, two = db.begin(), write(db, b"k", flushes=True)
    two.commit()
    one.table("t").put(b"k", {b"f:v": b"2"})
    one.flush()
    assert not commits(one)


def test_l8_a_branch_meets_what_others_claimed(db: Database) -> None:
    tx = db.begin()
    with db.begin() as other:
        other.claim("t", [b"k"], [b"f:v"])
    tx.table("t").put(b"k", {b"f:v": b"2"})
    tx.flush()
    assert not commits(tx)


def test_l9_a_commit_dooms_the_open_branch_that_it_meets(db: Database) -> None:
    tx = write(db, b"k", flushes=True)
    write(db, b"k").commit()
    assert not commits(tx)


def test_l9_of_two_branches_that_wrote_a_cell_the_first_commit_dooms_the_other(db: Database) -> None:
    one, two = write(db, b"k", flushes=True), write(db, b"k", flushes=True)
    assert commits(one)
    assert not commits(two)


def test_l10_the_branches_of_a_job_commit_together(db: Database) -> None:
    parts = db._core.deployment
    begun = parts.tso.begin_job()  # type: ignore[attr-defined]
    versions = [parts.tso.branch(begun.start_ts) for _ in range(3)]
    for version in versions:
        parts.store.write_cells("t", version, [RowWrite(b"%d" % version, ((Column(b"f", b"v"), b"1"),))])
    packed = parts.store.pack_commit(begun.start_ts, versions, [])
    assert parts.tso.commit(CommitRequest(begun.start_ts, packed=packed)).commit_ts
    assert [has(db, b"%d" % version) for version in versions] == [True, True, True]
