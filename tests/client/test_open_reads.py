"""C15: a read that has begun shows what it would have shown had it ended at once, whatever its transaction writes
while it goes on, and whenever that leaves for the store."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow
import pytest
from client_faults import late_database
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyomid
import pyomid.aio
from portions import examples
from pyomid.database.database import Database
from pyomid.database.tables import arrow

pytestmark = pytest.mark.fast

SIZES = {"flush_bytes": st.sampled_from([1, 200, 4 << 20]), "scan_batch_rows": st.sampled_from([1, 3, 1000])}

ids = st.integers(0, 9)
rows = st.fixed_dictionaries(
    {"id": ids}, optional={"g": st.sampled_from(["x", "y", None]), "p": st.none() | st.integers(0, 3)}
)
reads = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("scan"), "reverse": st.booleans(), "limit": st.none() | st.integers(1, 6)},
        optional={"start": ids, "stop": ids},
    ),
    st.fixed_dictionaries(
        {"kind": st.just("raw"), "reverse": st.booleans()}, optional={"limit": st.integers(1, 6), "columns": ids}
    ),
    st.fixed_dictionaries(
        {"kind": st.just("lookup"), "reverse": st.booleans(), "values": st.sampled_from(["x", "y", ("x", 1)])},
        optional={"limit": st.integers(1, 6)},
    ),
    st.just({"kind": "arrow"}),
    st.fixed_dictionaries({"kind": st.just("raw arrow")}, optional={"columns": ids}),
)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), reads),
        st.tuples(st.just("take"), st.tuples(st.integers(0, 5), st.integers(1, 4))),
        st.tuples(st.sampled_from(["put", "put_if_absent"]), rows),
        st.tuples(st.just("write_arrow"), st.lists(rows, min_size=1, max_size=3, unique_by=lambda row: row["id"])),
        st.tuples(st.sampled_from(["delete", "increment"]), ids),
        st.tuples(st.sampled_from(["flush", "save", "back"]), st.none()),
    ),
    max_size=30,
)


async def made(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def taken(reading: Any, count: int | None = None) -> list[Any]:
    """The next rows of a read of either front end."""
    found: list[Any] = []
    while count is None or len(found) < count:
        row = await anext(reading, None) if hasattr(reading, "__anext__") else next(reading, None)
        if row is None:
            break
        found.append(row)
    return found


async def begun(typed: Any, raw: Any, read: dict[str, Any]) -> Any:
    options = {name: value for name, value in read.items() if name != "kind"}
    if "columns" in options:
        options["columns"] = [COLUMNS[options["columns"] % len(COLUMNS)]]
    if read["kind"] == "scan":
        return typed.scan(**options)
    if read["kind"] == "lookup":
        return typed.lookup("by_p", options.pop("values"), **options)
    if read["kind"] == "raw":
        return raw.scan(**options)
    table = typed if read["kind"] == "arrow" else raw
    found = await made(table.to_arrow(**options))
    return (row for batch in found for row in batch.to_pylist())


async def write(tx: Any, typed: Any, raw: Any, model: dict[int, dict[str, Any]], act: str, value: Any) -> None:
    """The same to the transaction and to the model."""
    if act == "put":
        await made(typed.put(value))
        model.setdefault(value["id"], {"id": value["id"], "g": None, "p": None}).update(value)
    elif act == "put_if_absent":
        assert await made(typed.put_if_absent(value)) == (value["id"] not in model)
        model.setdefault(value["id"], {"id": value["id"], "g": None, "p": None, **value})
    elif act == "write_arrow":
        names = sorted({name for row in value for name in row})
        filled = [{name: row.get(name) for name in names} for row in value]
        types = {"id": pyarrow.int64(), "g": pyarrow.string(), "p": pyarrow.int64()}
        data = pyarrow.table({name: pyarrow.array([row[name] for row in filled], types[name]) for name in names})
        await made(raw.write_arrow(data))
        for row in filled:
            model.setdefault(row["id"], {"id": row["id"], "g": None, "p": None}).update(row)
    elif act == "delete":
        await made(typed.delete(value))
        model.pop(value, None)
    elif act == "increment":
        total = await made(typed.increment(value, "p"))
        row = model.setdefault(value, {"id": value, "g": None, "p": None})
        row["p"] = (row["p"] or 0) + 1
        assert total == row["p"]
    else:
        await made(tx.flush())


COLUMNS: list[bytes] = []
"""Of the table's schema, as the raw table names them."""


def make_tables(db: Database) -> None:
    """One with an index, and one without, whose Arrow data leave as batches."""
    for name in ("t", "u"):
        if not any(table.name == name for table in db.tables()):
            db.create_table(name, families=["f"])
            db.set_schema(name, {"id": int, "g": str, "p": int}, row_key="id")
    with db.begin() as tx:
        if not tx.table("t").info.indexes:
            db.create_index("t", "by_p", ["g", "p"])
    for name in ("t", "u"):
        with db.begin() as tx:
            table = tx.table(name, codec=dict)
            table.delete_rows([row["id"] for row in table.scan()])
        with db.begin() as tx:
            for number in range(0, 10, 2):
                tx.table(name, codec=dict).put({"id": number, "g": "x", "p": number})
            schema = tx.table(name).info.schema
    assert schema is not None
    places = [column.column for column in schema.columns if column.column is not None]
    COLUMNS[:] = [b"%b:%b" % place for place in places]


async def check(db: Any, name: str, acts: list[tuple[str, Any]]) -> None:
    tx = await made(db.begin())
    typed, raw = await made(tx.table(name, dict)), await made(tx.table(name))
    model: dict[int, dict[str, Any]] = {number: {"id": number, "g": "x", "p": number} for number in range(0, 10, 2)}
    open_reads: list[tuple[Any, list[Any], list[Any]]] = []
    saved: list[tuple[Any, dict[int, dict[str, Any]]]] = []
    for act, value in acts:
        if act == "begin" and (name == "t" or value["kind"] != "lookup"):
            reading, expected = await begun(typed, raw, value), await taken(await begun(typed, raw, value))
            open_reads.append((reading, expected, []))
            if value == {"kind": "arrow"}:
                assert expected == [model[number] for number in sorted(model)]
        elif act == "take" and open_reads:
            reading, _, found = open_reads[value[0] % len(open_reads)]
            found += await taken(reading, value[1])
        elif act == "save":
            saved.append((tx.savepoint(), {number: dict(row) for number, row in model.items()}))
        elif act == "back" and saved:
            saved[-1][0].rollback()
            model = {number: dict(row) for number, row in saved[-1][1].items()}
        elif act not in ("begin", "take", "back"):
            await write(tx, typed, raw, model, act, value)
    for reading, expected, found in open_reads:
        assert found + await taken(reading) == expected
    assert await taken(typed.scan()) == [model[number] for number in sorted(model)]
    await made(tx.rollback())


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(["t", "u"]), acts=acts, arrow_rows=st.sampled_from([2, 10_000]), **SIZES)
def test_a_read_that_has_begun_shows_own_writes_as_of_its_begin(
    url: str, name: str, acts: Any, arrow_rows: int, **sizes: Any
) -> None:
    with pyomid.connect(url, **sizes) as db, rows_at_once(arrow_rows):
        make_tables(db)
        asyncio.run(check(db, name, acts))


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(["t", "u"]), acts=acts, **SIZES)
def test_a_read_of_asyncio_that_has_begun_shows_own_writes_as_of_its_begin(
    url: str, name: str, acts: Any, **sizes: Any
) -> None:
    async def main() -> None:
        async with await pyomid.aio.connect(url, **sizes) as db:
            await check(db, name, acts)

    with pyomid.connect(url) as db:
        make_tables(db)
    asyncio.run(main())


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(["t", "u"]), acts=acts, flush_bytes=SIZES["flush_bytes"], at_once=st.booleans())
def test_a_read_that_has_begun_shows_own_writes_as_of_its_begin_while_they_leave(
    memory_url: str, name: str, acts: Any, flush_bytes: int, at_once: bool
) -> None:
    options = f"flushBytes={flush_bytes}&scanBatchRows=2"
    with late_database(f"{memory_url}?{options}", at_once=at_once, level=None) as (db, _), rows_at_once(2):
        make_tables(db)
        asyncio.run(check(db, name, acts))


@contextmanager
def rows_at_once(count: int) -> Iterator[None]:
    before, arrow.ROWS_AT_ONCE = arrow.ROWS_AT_ONCE, count  # type: ignore[misc]
    try:
        yield
    finally:
        arrow.ROWS_AT_ONCE = before  # type: ignore[misc]
