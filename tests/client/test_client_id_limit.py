"""A transaction that has more conflict ids than its TSO takes in one commit is refused by the write that goes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import pyomid
import pyomid.aio
from pyomid.database.database import Database
from pyomid.database.transaction import State, Transaction
from pyomid.errors import Misuse

pytestmark = pytest.mark.fast

MOST = 16
X, Y = b"f:x", b"f:y"

OVER: dict[str, Callable[[Transaction], object]] = {
    "put": lambda tx: tx.table("t").put(b"over", {X: b"1"}),
    "put of another column": lambda tx: tx.table("t").put(b"00", {Y: b"1"}),
    "put_if_absent": lambda tx: tx.table("t").put_if_absent(b"over", {X: b"1"}),
    "put that expects": lambda tx: tx.table("t").put(b"over", {X: b"1"}, expect={X: None}),
    "increment": lambda tx: tx.table("t").increment(b"over", X),
    "delete": lambda tx: tx.table("t").delete(b"over", [X]),
    "delete_rows": lambda tx: tx.table("t").delete_rows([b"00", b"01", b"over"], [X]),
    "claim": lambda tx: tx.claim("t", [b"over"], [X]),
    "claim of the row": lambda tx: tx.claim("t", [b"over"]),
    "get for update": lambda tx: tx.table("t").get(b"over", for_update=True),
    "Arrow": lambda tx: tx.table("t").write_arrow(pa.table({"key": [b"00", b"over"], "f:x": [b"1", b"1"]})),
    "another table": lambda tx: tx.table("other").put(b"k", {X: b"1"}),
    "typed Arrow": lambda tx: tx.table("typed").write_arrow(pa.table({"id": [1], "n": [1]})),
    "typed put": lambda tx: tx.table("typed", dict).put({"id": 1, "n": 1}),
}
OF_CELLS = {"put of another column"}
"""One id more at level cell, and none at level row."""


@pytest.fixture
def small_url(tmp_path: Path) -> str:
    """A folder has no such limit."""
    return f"omid-memory:{tmp_path.name}?conflictMapEntries={4 * MOST}"


@pytest.fixture(params=["cell", "row"])
def small(small_url: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    with pyomid.connect(small_url) as database:
        for name in ("t", "other", "typed"):
            database.create_table(name, families=["f"], conflict_level=request.param)
        database.set_schema("typed", {"id": int, "n": int}, row_key="id")
        yield database


def fill(tx: Transaction, first: int = 0) -> None:
    """As many ids as the TSO takes, each written more than once."""
    for _ in range(3):
        for number in range(first, first + MOST):
            tx.table("t").put(b"%02d" % number, {X: b"1"})
            tx.table("other").put(b"%02d" % number, {X: b"1"}, conflict=False)


def test_every_write_and_claim_over_the_limit_is_refused_when_it_is_made(small: Database) -> None:
    level = small.table_info("t").conflict_level.value
    for name, over in OVER.items():
        if level == "row" and name in OF_CELLS:
            continue
        tx = small.begin()
        fill(tx)
        tx.claim("t", [b"00"], [X])
        with pytest.raises(Misuse, match=f"than {MOST} conflict ids.*commit smaller transactions") as refused:
            over(tx)
        assert ("level 'row'" in str(refused.value)) == (level == "cell"), name
        if tx.state is State.ROLLBACK_ONLY:
            assert name == "Arrow"
            tx.rollback()
        else:
            tx.commit()
            assert small.begin(read_only=True).table("t").get(b"over") is None


def test_the_ids_of_an_indexs_columns_count_before_a_row_is_written(small_url: str) -> None:
    """A put claims all columns of the index, so the refusal must come before the first claim."""
    with pyomid.connect(small_url) as small:
        small.create_table("typed", families=["f"], conflict_level="cell")
        small.create_table("t", families=["f"], conflict_level="row")
        small.set_schema("typed", {"id": int, "n": int, "note": str, "at": str}, row_key="id")
        small.create_index("typed", "by_note", ["note", "at"])
        refused = []
        for written in range(MOST + 1):
            with small.begin() as tx:
                for number in range(written):
                    tx.table("t").put(b"%02d" % number, {X: b"1"})
                try:
                    tx.table("typed", dict).put({"id": written, "note": "x"})
                except Misuse:
                    refused.append(written)
        with small.snapshot() as after:
            assert refused
            assert [row["id"] for row in after.table("typed", dict).scan()] == list(range(refused[0]))


def test_what_savepoints_took_back_leaves_room(small: Database) -> None:
    tx = small.begin()
    saved = tx.savepoint()
    for first in (0, 20, 40):
        fill(tx, first)
        with pytest.raises(Misuse, match="conflict ids"):
            tx.table("t").put(b"over", {X: b"1"})
        tx.flush()
        saved.rollback()
    fill(tx, 60)
    tx.commit()
    with small.snapshot() as after:
        assert len(list(after.table("t").scan())) == MOST


async def test_asyncio_refuses_at_the_same_write(small_url: str) -> None:
    async with await pyomid.aio.connect(small_url) as db:
        await db.create_table("t", families=["f"])
        tx = await db.begin()
        table = await tx.table("t")
        for number in range(MOST):
            await table.put(b"%02d" % number, {X: b"1"})
        with pytest.raises(Misuse, match="conflict ids"):
            await table.put(b"over", {X: b"1"})
        await tx.commit()
