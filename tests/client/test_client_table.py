"""What a transaction reads is its snapshot with its own writes over it: held against a plain dict."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from client_faults import database_with, late_database
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyomid
from portions import examples
from pyomid.database.database import Database
from pyomid.database.tables.table import Table
from pyomid.errors import ConflictError
from pyomid.omid.memory import MemoryStore

pytestmark = pytest.mark.fast

KEYS = [b"a", b"aa", b"ab", b"b", b"b\xff", b"c"]
COLUMNS = [b"f:x", b"f:y", b"g:x"]

Model = dict[bytes, dict[bytes, bytes]]

keys = st.sampled_from(KEYS)
columns = st.sampled_from(COLUMNS)
values = st.sampled_from([b"1", b"22", b"333"])
writes = st.one_of(
    st.tuples(st.just("put"), keys, st.dictionaries(columns, values, min_size=1)),
    st.tuples(st.just("delete"), keys, st.none() | st.lists(columns | st.sampled_from([b"f", b"g:"]), max_size=2)),
    st.tuples(st.just("flush"), st.none(), st.none()),
)
borders = st.sampled_from([*KEYS, b"", b"aaa", b"d"])
selections = st.none() | st.lists(columns | st.sampled_from([b"f", b"g:"]), max_size=3)


def chosen(row: dict[bytes, bytes], selection: list[bytes] | None) -> dict[bytes, bytes]:
    """The part of a row that a selection of columns and families names."""
    if selection is None:
        return dict(row)
    families = {name.rstrip(b":") for name in selection if b":" not in name.rstrip(b":")}
    return {name: value for name, value in row.items() if name in selection or name.split(b":")[0] in families}


def apply_to_model(model: Model, write: tuple[str, Any, Any]) -> None:
    kind, key, detail = write
    row = model.setdefault(key, {}) if key is not None else {}
    if kind == "put":
        row.update(detail)
    elif kind == "delete":
        for name in chosen(row, detail):
            del row[name]


def apply_to_table(tx: pyomid.Transaction, table: Table, write: tuple[str, Any, Any]) -> None:
    kind, key, detail = write
    if kind == "put":
        table.put(key, detail)
    elif kind == "delete":
        table.delete(key, detail)
    else:
        tx.flush()


def rows_of(model: Model, start: bytes, stop: bytes | None, selection: list[bytes] | None) -> list[Any]:
    inside = [key for key in sorted(model) if start <= key and (stop is None or key < stop)]
    return [(key, row) for key in inside if (row := chosen(model[key], selection))]


def check_reads(table: Table, model: Model, start: bytes, stop: bytes | None, selection: Any, limit: int) -> None:
    for key in KEYS:
        assert table.get(key, selection) == (chosen(model.get(key, {}), selection) or None)
    assert table.rows(KEYS, selection) == {key: chosen(model.get(key, {}), selection) or None for key in KEYS}
    assert list(table.scan()) == rows_of(model, b"", None, None)
    expected = rows_of(model, start, stop, selection)
    assert list(table.scan(start, stop, columns=selection)) == expected
    assert list(table.scan(start, stop, columns=selection, limit=limit)) == expected[:limit]
    prefixed = [(key, row) for key, row in rows_of(model, b"", None, selection) if key.startswith(start)]
    assert list(table.scan(prefix=start, columns=selection)) == prefixed
    assert list(table.scan(start, prefix=start[:1], columns=selection)) == [
        (key, row) for key, row in rows_of(model, start, None, selection) if key.startswith(start[:1])
    ]


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    committed=st.lists(st.lists(writes, max_size=4), max_size=3),
    own=st.lists(writes, max_size=8),
    start=borders,
    stop=st.none() | borders,
    selection=selections,
    limit=st.integers(0, 4),
    flush_bytes=st.sampled_from([1, 200, 1 << 20]),
    scan_batch_rows=st.sampled_from([1, 2, 1000]),
    at_once=st.sampled_from([None, False, True]),
)
def test_reads_and_scans_are_the_snapshot_with_own_writes_over_it(
    memory_url: str,
    committed: Any,
    own: Any,
    start: Any,
    stop: Any,
    selection: Any,
    limit: Any,
    flush_bytes: int,
    scan_batch_rows: int,
    at_once: bool | None,
) -> None:
    """`at_once`: the store performs what leaves ahead at once or late; without it nothing leaves ahead."""
    model: Model = {}
    url = f"{memory_url}?flushBytes={flush_bytes}&scanBatchRows={scan_batch_rows}"
    with ExitStack() as stack:
        if at_once is None:
            db = stack.enter_context(pyomid.connect(url))
        else:
            db, _ = stack.enter_context(late_database(url, at_once=at_once))
        db.create_table("t", families=["f", "g"], if_not_exists=True)
        clear(db)
        for one in committed:
            with db.begin() as tx:
                for write in one:
                    apply_to_table(tx, tx.table("t"), write)
                    apply_to_model(model, write)
        snapshot = {key: dict(row) for key, row in model.items()}
        other, tx = db.begin(), db.begin()
        for write in own:
            apply_to_table(tx, tx.table("t"), write)
            apply_to_model(model, write)
        check_reads(tx.table("t"), model, start, stop, selection, limit)
        check_reads(other.table("t"), snapshot, start, stop, selection, limit)
        tx.commit()
        check_reads(other.table("t"), snapshot, start, stop, selection, limit)
        with db.begin() as later:
            check_reads(later.table("t"), model, start, stop, selection, limit)


def clear(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        table.delete_rows([key for key, _ in table.scan()])


def test_a_row_delete_at_cell_level_marks_the_columns_it_saw(db: Database) -> None:
    with db.begin() as tx:
        tx.table("t").put(b"k", {b"f:x": b"1"})
    deleter, adder = db.begin(), db.begin()
    deleter.table("t").delete(b"k")
    adder.table("t").put(b"k", {b"f:y": b"2"})
    adder.commit()
    deleter.commit()
    with db.begin() as tx:
        assert tx.table("t").get(b"k") == {b"f:y": b"2"}


def test_many_rows_are_one_request(memory_url: str) -> None:
    asked: list[int] = []

    def read_rows(real: Any, table: str, rows: Any, selection: Any = None, **bounds: Any) -> Any:
        asked.append(len(rows))
        return real(table, rows, selection, **bounds)

    with database_with(memory_url, store={"read_rows": read_rows}) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            for number in range(300):
                tx.table("t").put(b"%03d" % number, {b"f:x": b"1"})
        assert db.drain(10)
        with db.begin() as tx:
            found = tx.table("t").rows(b"%03d" % number for number in range(300))
        assert len(found) == 300
        assert all(found.values())
    assert asked == [300]


def asked_ahead(real: Any, *arguments: Any, **bounds: Any) -> Any:
    """A store that has the next batch before it is asked for, as one behind a network."""
    batches = real(*arguments, **bounds)
    batch = next(batches, None)
    while batch is not None:
        ahead = next(batches, None)
        yield batch
        batch = ahead


def test_a_scan_shows_own_writes_that_left_behind_what_was_asked_ahead(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They left for the store when its answer was there already: neither that nor the buffer has them."""
    names = [b"%03d" % number for number in range(20)]
    scan = MemoryStore.scan
    monkeypatch.setattr(MemoryStore, "scan", lambda store, *args, **kwargs: asked_ahead(scan, store, *args, **kwargs))
    with pyomid.connect(memory_url, scan_batch_rows=4) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            for name in names:
                tx.table("t").put(name, {b"f:x": b"old"})
        with db.begin() as tx:
            table = tx.table("t")
            for name in names[::2]:
                table.put(name, {b"f:x": b"before"})
            seen = {}
            for key, row in table.scan():
                seen[key] = row[b"f:x"]
                if key in names[::4]:
                    number = int(key)
                    table.put(b"%03d" % (number + 5), {b"f:x": b"new"})
                    table.put(b"%03d+" % (number + 6), {b"f:x": b"added"})
                    table.delete(b"%03d" % (number + 7))
                    table.put(key, {b"f:x": b"passed"})
                    tx.flush()
            tx.rollback()
    assert seen == {**dict.fromkeys(names, b"old"), **dict.fromkeys(names[::2], b"before")}


def test_writes_leave_in_batches(memory_url: str) -> None:
    sent: list[int] = []

    def write_cells(real: Any, table: str, version: int, rows: Any) -> None:
        sent.append(len(rows))
        real(table, version, rows)

    with database_with(f"{memory_url}?flushBytes=10000", store={"write_cells": write_cells}) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            for number in range(1000):
                tx.table("t").put(b"%04d" % number, {b"f:x": b"1"})
    assert sum(sent) == 1000
    assert len(sent) < 10


@pytest.mark.parametrize("level", ["cell", "row"])
def test_a_large_write_set_names_the_same_ids_as_a_small_one(memory_db: Database, level: str) -> None:
    memory_db.create_table("ids", families=["f"], conflict_level=level)
    keys = [b"%05d" % number for number in range(2_001)]
    large, small = memory_db.begin(), memory_db.begin()
    for key in keys:
        large.table("ids").put(key, {b"f:x": b"1"})
    small.table("ids").put(keys[7], {b"f:x": b"1"})
    large.flush()
    small.flush()
    (named,) = small._core.writes.commit_request().cell_ids
    ids = large._core.writes.commit_request().cell_ids
    assert len(set(ids)) == len(keys)
    assert named in ids
    large.commit()
    with pytest.raises(ConflictError):
        small.commit()
