"""Rows as Arrow without Spark, held against the rows themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from decimal import Decimal

import pyarrow as pa
import pytest

import pyomid.aio
from pyomid.client.database import Database
from pyomid.client.tables import arrow
from pyomid.errors import ConflictError, Misuse, MisuseType, TransactionEnded
from pyomid.protocol.visibility import visible_cells
from pyomid.types import BeginReply, KeyRange

pytestmark = pytest.mark.fast

ROWS = [{"id": number, "name": f"n{number}", "money": Decimal(number) / 2} for number in range(-3, 30)]


@pytest.fixture
def typed(db: Database) -> Database:
    db.table_schema("t", {"id": int, "name": str, "money": "decimal(10,2)"}, row_key="id")
    with db.begin() as tx:
        for row in ROWS:
            tx.table("t", codec=dict).put(row)
    return db


def test_a_typed_table_is_read_by_its_schema(typed: Database) -> None:
    with typed.begin() as tx:
        table = tx.table("t")
        tx.table("t", codec=dict).put({"id": 99, "name": None})
        reader = table.to_arrow()
        assert hasattr(reader, "__arrow_c_stream__")
        assert reader.schema.types == [pa.int64(), pa.string(), pa.decimal128(10, 2)]
        own = {"id": 99, "name": None, "money": None}
        assert reader.read_all().to_pylist() == [*ROWS, own], "own writes too"
        assert table.to_arrow(columns=["name"]).read_all().column_names == ["name"]
        with pytest.raises(Misuse, match="not nme"):
            table.to_arrow(columns=["nme"])


def test_an_untyped_table_is_read_as_bytes(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        for key in (b"a1", b"a2", b"b"):
            table.put(key, {b"f:x": key, b"g:\xff": b"2"})
        table.delete(b"a2", [b"f:x"])
        assert table.to_arrow(prefix=b"a", columns=[b"f:x"]).read_all().to_pylist() == [
            {"key": b"a1", "f:x": b"a1"}, {"key": b"a2", "f:x": None},
        ]  # fmt: skip
        cells = [(b"f:x", b"a1"), (b"g:\xff", b"2")]
        assert table.to_arrow(stop=b"a2").read_all().to_pylist() == [{"key": b"a1", "cells": cells}]
        with pytest.raises(MisuseType, match="not bytes"):
            table.to_arrow(columns=["f:x"])


class Stream:
    """What DuckDB and Polars see of a reader."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.__arrow_c_stream__ = reader.__arrow_c_stream__


def test_others_take_a_reader_as_it_is(typed: Database) -> None:
    """By Arrow's C stream alone, and pandas."""
    with typed.snapshot() as tx:
        table = tx.table("t")
        assert pa.table(Stream(table.to_arrow())).to_pylist() == ROWS
        assert table.to_arrow().read_pandas()["name"].tolist() == [row["name"] for row in ROWS]


def test_a_reader_works_in_any_thread_and_ends_with_its_transaction(typed: Database) -> None:
    """DuckDB and others read in threads of their own."""
    found: list[int] = []
    with typed.snapshot() as tx:
        reader = tx.table("t").to_arrow()
        thread = threading.Thread(target=lambda: found.append(reader.read_all().num_rows))
        thread.start()
        thread.join()
        late = tx.table("t").to_arrow()
    assert found == [len(ROWS)]
    with pytest.raises(TransactionEnded):
        late.read_all()


@pytest.mark.parametrize("savepoint", [False, True])
def test_what_is_written_as_arrow_is_read_as_rows(typed: Database, savepoint: bool) -> None:
    data = pa.table({"money": pa.array([Decimal("1.5"), None]), "id": pa.array([7, 100], pa.int32())})
    with typed.begin() as tx:
        table = tx.table("t", codec=dict)
        table.put({"id": 100, "money": Decimal(9), "name": "before"})
        saved = tx.savepoint() if savepoint else None
        assert tx.table("t").write_arrow(data) == 2
        assert table.get(7) == {"id": 7, "name": "n7", "money": Decimal("1.50")}
        assert table.get(100) == {"id": 100, "name": "before", "money": None}
        table.put({"id": 7, "money": Decimal(2)})
        if saved is not None:
            saved.rollback()
            assert table.get(7) == ROWS[10]
            assert tx.table("t").write_arrow(data.to_reader()) == 2
    other = typed.begin()
    with typed.begin() as tx:
        tx.table("t").write_arrow(data.slice(0, 1).to_batches()[0])
    other.table("t", codec=dict).put({"id": 7, "money": Decimal(2)})
    with pytest.raises(ConflictError):
        other.commit()
    with typed.snapshot() as tx:
        assert tx.table("t", codec=dict).get(7) == {"id": 7, "name": "n7", "money": Decimal("1.50")}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"id": [1], "money": ["x"]}, "'money'"),
        ({"id": [1.5]}, "'id'"),
        ({"id": [2.0]}, "'id'"),
        ({"id": ["1"]}, "'id'"),
        ({"id": [1], "money": [0.125]}, "'money'"),
        ({"id": [1], "name": [True]}, "'name'"),
        ({"money": [Decimal(1)]}, "lack the row key column 'id'"),
        ({"id": [1], "nme": ["x"]}, "nme"),
        ({"id": [None]}, "id"),
        ({"id": [1, 1]}, "two rows"),
    ],
)
def test_data_that_do_not_fit_are_refused(typed: Database, data: dict[str, list[object]], said: str) -> None:
    with typed.begin() as tx:
        with pytest.raises(Misuse, match=said):
            tx.table("t").write_arrow(pa.table(data))
        with pytest.raises(MisuseType, match="no Arrow data"):
            tx.table("t").write_arrow([1])
        assert tx.table("t").to_arrow().read_all().num_rows == len(ROWS)


def test_data_that_stop_fitting_leave_nothing_to_commit(typed: Database) -> None:
    batches = [pa.record_batch({"id": [1000]}), pa.record_batch({"id": pa.array([None], pa.int64())})]
    tx = typed.begin()
    with pytest.raises(Misuse):
        tx.table("t").write_arrow(pa.Table.from_batches(batches))
    with pytest.raises(TransactionEnded, match="only 1 rows"):
        tx.commit()
    tx.rollback()


def test_an_untyped_table_is_copied_by_arrow(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        table.put(b"old", {b"f:x": b"1"})
        data = pa.table({"key": [b"a", b"old"], "f:x": [b"1", None]})
        assert table.write_arrow(data) == 2
        assert list(table.scan()) == [(b"a", {b"f:x": b"1"})]
        for wrong in ({"f:x": [b"1"]}, {"key": [b"a"], "f:x": ["text"]}, {"key": [b"a"], "h:x": [b"1"]}):
            with pytest.raises(Misuse):
                table.write_arrow(pa.table(wrong))


def test_asyncio_reads_and_writes_arrow(typed: Database) -> None:
    async def work() -> int:
        async with await pyomid.aio.connect(typed.url) as db, db.begin() as tx:
            table = await tx.table("t")
            reader = await table.to_arrow(columns=["id"])
            return await table.write_arrow(reader)

    assert asyncio.run(work()) == len(ROWS)


def test_typed_rows_need_no_arrow(memory_url: str) -> None:
    """pyarrow is imported when Arrow is asked for."""
    tags = '{"type":"array","elementType":"string","containsNull":true}'
    code = (
        "import sys, pyomid; sys.modules['pyarrow'] = None\n"
        f"db = pyomid.connect({memory_url!r}); db.create_table('t', ['f'])\n"
        f"db.table_schema('t', {{'id': int, 'tags': {tags!r}}}, row_key='id')\n"
        "tx = db.begin(); t = tx.table('t', codec=dict); t.put({'id': 1, 'tags': ['x']}); print(t.get(1)['tags'])\n"
        "try: tx.table('t').to_arrow()\n"
        "except pyomid.Misuse as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "['x']\nArrow needs pyarrow: install pyomid with its extra, pyomid[arrow]\n", done.stderr


def test_columns_read_by_kernels_are_those_of_the_rows(memory_db: Database) -> None:
    names = [b"f:x", b"g:none", b"f:y"]
    with memory_db.begin() as tx:
        table = tx.table("t")
        for number in range(200):
            table.put(b"%03d\0" % number, dict.fromkeys(names[:: number % 2 + 1], b"%d" % number * (number % 4 + 1)))
            table.put(b"%03d\0" % number, {b"f:other": b"1"})
    with memory_db.begin() as tx:
        tx.table("t").delete_rows(b"%03d\0" % number for number in range(0, 200, 7))
        tx.table("t").delete(b"003\0", [b"f:other"])
    with memory_db.begin() as tx:
        rules, store = memory_db.table_rules("t", BeginReply(tx.start_ts)), memory_db.deployment.store
        for asked in (names, names[1:2], []):
            untyped = arrow.converter(rules, asked)
            for batch in store.scan("t", KeyRange(), batch_rows_max=37):
                visible = visible_cells(batch, tx.start_ts)
                found = untyped.decode_columns(batch, visible)
                found.validate(full=True)
                assert found.equals(untyped.decode_rows(batch, visible))
