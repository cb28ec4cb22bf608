"""Which commit requests of a folder hold all cells: each kind of small write goes with its commit, alone and together;
what was flushed or is too large goes first, under a branch, with the same outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyomid.aio
from pyomid.database.database import Database
from pyomid.database.idempotency import AlreadyDone
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError
from pyomid.folder.decision import _unpack
from pyomid.folder.loop_session import LoopSession
from pyomid.types import CommitReply, CommitRequest

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

BOUND = 256 << 10


def holds_all(request: CommitRequest) -> bool:
    """Whether nothing was written before the request."""
    return not _unpack(request.packed).branches


class Recorded:
    """A database, and the commit requests that left."""

    def __init__(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.db = db
        self.requests: list[CommitRequest] = []
        session: Any = type(db._core.deployment.tso)
        commit: Callable[[Any, CommitRequest], CommitReply] = session.commit

        def recording(tso: Any, request: CommitRequest) -> CommitReply:
            self.requests.append(request)
            return commit(tso, request)

        monkeypatch.setattr(session, "commit", recording)

    def commit(self, write: Callable[[Transaction], object]) -> bool:
        """Whether what `write` did went with its commit."""
        self.requests.clear()
        with self.db.begin() as tx:
            write(tx)
        (request,) = self.requests
        return holds_all(request)

    def rows(self, table: str = "t") -> dict[bytes, dict[bytes, bytes]]:
        """As another process would see them."""
        with self.db.begin() as tx:
            return dict(tx.table(table).scan())

    def versions(self, table: str = "t") -> int:
        cells = (batch.cells for batch in self.db._core.deployment.store.scan(table, pyomid.types.KeyRange()))
        return sum(cells)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with pyomid.connect(f"omid://{tmp_path_factory.mktemp('packed')}/db") as db:
        db.create_table("t", families=["f"])
        db.create_table("short", families=["f"], ttl_seconds=100)
        db.create_table("orders", families=["f"])
        db.set_schema("orders", {"id": int, "shop": str, "total": float}, row_key="id")
        db.create_index("orders", "by_shop", ["shop"])
        db.create_table("plain_orders", families=["f"])
        db.set_schema("plain_orders", {"id": int, "total": float}, row_key="id")
        yield db


@pytest.fixture
def recorded(tables: Database, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The table t has one row, the others none."""
    with tables.begin() as tx:
        for name in ("t", "short"):
            table = tx.table(name)
            table.delete_rows([key for key, _ in table.scan()])
        for name in ("orders", "plain_orders"):
            typed = tx.table(name, dict)
            typed.delete_rows([row["id"] for row in typed.scan()])
        tx.table("t").put(b"there", {b"f:n": b"1"})
    return Recorded(tables, monkeypatch)


def put_and_take_back(tx: Transaction) -> None:
    table = tx.table("t")
    table.put(b"a", {b"f:x": b"1"})
    with tx.savepoint() as saved:
        table.put(b"b", {b"f:x": b"2"})
        saved.rollback()


KINDS: dict[str, Callable[[Transaction], object]] = {
    "put": lambda tx: tx.table("t").put(b"a", {b"f:x": b"1"}),
    "delete": lambda tx: tx.table("t").delete(b"there"),
    "several tables": lambda tx: [tx.table(name).put(b"a", {b"f:x": b"1"}) for name in ("t", "short")],
    "claim": lambda tx: (tx.claim("t", [b"there"]), tx.table("t").put(b"a", {b"f:x": b"1"})),
    "conflict-free": lambda tx: tx.table("t").put(b"a", {b"f:x": b"1"}, conflict=False),
    "increment": lambda tx: tx.table("t").increment(b"a", b"f:count"),
    "put_if_absent": lambda tx: tx.table("t").put_if_absent(b"a", {b"f:x": b"1"}),
    "expect": lambda tx: tx.table("t").put(b"there", {b"f:n": b"2"}, expect={b"f:n": b"1"}),
    "time to live": lambda tx: tx.table("short").put(b"a", {b"f:x": b"1"}),
    "typed": lambda tx: tx.table("plain_orders", dict).put({"id": 1, "total": 2.5}),
    "indexed": lambda tx: tx.table("orders", dict).put({"id": 1, "shop": "north", "total": 2.5}),
    "Arrow": lambda tx: tx.table("plain_orders").write_arrow(pa.table({"id": [1, 2], "total": [1.0, 2.0]})),
    "Arrow, indexed": lambda tx: tx.table("orders").write_arrow(
        pa.table({"id": [1, 2], "shop": ["a", "b"], "total": [1.0, 2.0]})
    ),
    "savepoint": put_and_take_back,
    "mere claim": lambda tx: tx.claim("t", [b"there"]),
    "just small enough": lambda tx: tx.table("t").put(b"a", {b"f:x": bytes(BOUND - 100)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_write_goes_with_its_commit(recorded: Recorded, kind: str) -> None:
    assert recorded.commit(KINDS[kind])


OTHERS: dict[str, Callable[[Transaction], object]] = {
    "flushed": lambda tx: (tx.table("t").put(b"a", {b"f:x": b"1"}), tx.flush()),
    "flushed before": lambda tx: (
        tx.table("t").put(b"a", {b"f:x": b"1"}),
        tx.flush(),
        tx.table("t").put(b"b", {b"f:x": b"1"}),
    ),
    "just too large": lambda tx: tx.table("t").put(b"a", {b"f:x": bytes(BOUND + 1)}),
    "large Arrow": lambda tx: tx.table("plain_orders").write_arrow(
        pa.table({"id": range(500), "total": [1.0] * 500})
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_what_was_flushed_or_is_large_goes_first(recorded: Recorded, kind: str) -> None:
    assert not recorded.commit(OTHERS[kind])


@pytest.mark.parametrize("size", [BOUND - 100, BOUND + 1])
def test_on_both_sides_of_the_bound_the_outcome_is_the_same(recorded: Recorded, size: int) -> None:
    def write(tx: Transaction) -> None:
        tx.table("t").put(b"large", {b"f:x": bytes(size)})
        tx.table("short").put(b"beside", {b"f:x": b"1"})

    assert recorded.commit(write) == (size < BOUND)
    assert recorded.rows() == {b"there": {b"f:n": b"1"}, b"large": {b"f:x": bytes(size)}}
    assert recorded.rows("short") == {b"beside": {b"f:x": b"1"}}


def test_an_abort_leaves_nothing(recorded: Recorded) -> None:
    before = recorded.versions()
    tx = recorded.db.begin()
    tx.table("t").put(b"there", {b"f:n": b"2"})
    tx.table("t").put(b"new", {b"f:n": b"2"})
    with recorded.db.begin() as other:
        other.table("t").put(b"there", {b"f:n": b"3"})
    with pytest.raises(ConflictError):
        tx.commit()
    assert holds_all(recorded.requests[-1])
    assert recorded.versions() == before + 1
    assert recorded.rows() == {b"there": {b"f:n": b"3"}}


def test_a_key_of_run_once_goes_with_its_commit(recorded: Recorded) -> None:
    assert recorded.db.run_once("one", lambda tx: tx.table("t").increment(b"a", b"f:count")) == 1
    assert holds_all(recorded.requests[-1])
    again = recorded.db.run_once("one", lambda tx: tx.table("t").increment(b"a", b"f:count"))
    assert isinstance(again, AlreadyDone)
    assert again.result == 1


async def test_asyncio_commits_go_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[CommitRequest] = []
    commit = LoopSession.commit

    async def recording(tso: LoopSession, request: CommitRequest) -> CommitReply:
        requests.append(request)
        return await commit(tso, request)

    monkeypatch.setattr(LoopSession, "commit", recording)
    async with await pyomid.aio.connect(f"omid://{tmp_path}/db") as db:
        await db.create_table("t", families=["f"])
        async with db.begin() as tx:
            await (await tx.table("t")).put(b"a", {b"f:x": b"1"})
        async with db.begin() as tx:
            await (await tx.table("t")).put(b"b", {b"f:x": b"1"})
            await tx.flush()
    assert [holds_all(request) for request in requests] == [True, False]
