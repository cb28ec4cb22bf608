"""Registered tables that another program alters so that HBase may lose versions: refused wherever they are opened, and
named by `verify`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

import pyomid
import pyomid.aio
from portions import first
from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.database.issued import drawn_start
from pyomid.errors import ConflictError, Misuse, OmidError, Unavailable
from pyomid.omid.hbase import physical_tables
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import (
    DELETE_COLUMN,
    DELETE_FAMILY,
    DELETE_FAMILY_VERSION,
    DELETE_VERSION,
    KeyValue,
)
from pyomid.omid.hbase.codec.layout import COMPACTION_ATTRIBUTE, COPROCESSOR, shadow_qualifier
from pyomid.omid.hbase.physical_tables import PhysicalTables
from pyomid.omid.hbase.regions.admin import FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.rpc.requests import Durability, RowMutation, deletes, puts
from pyomid.ports import Deployment
from pyomid.rows.schema import schema_of
from pyomid.spark.connections import close_connections
from pyomid.spark.frame_schema import struct_of
from pyomid.spark.source.datasource import OmidDataSource
from region_admin import OperatorsAdmin
from spark_lives import SPARK_WAYS
from table_lives import OPTIONS, WAYS, Way, make, row_of, small_batches

F = FamilyDescriptor(b"f")
NEWEST = (1 << 63) - 2

LOSSY: dict[str, tuple[TableDescriptor, str]] = {
    "one version": (TableDescriptor("", (replace(F, versions_max=1),)), "VERSIONS => 2147483647"),
    "many versions": (TableDescriptor("", (replace(F, versions_max=1_000_000),)), "keeps only 1000000 versions"),
    "ttl": (TableDescriptor("", (replace(F, ttl_s=86_400),)), "for 86400 s"),
    "deleted cells until a ttl": (
        TableDescriptor("", (replace(F, ttl_s=60, attributes={b"KEEP_DELETED_CELLS": b"TTL", b"MIN_VERSIONS": b"1"}),)),
        "TTL => 'FOREVER'",
    ),
    "without family": (TableDescriptor("", (FamilyDescriptor(b"g"),)), "without family f"),
    "without log": (TableDescriptor("", (F,), {b"DURABILITY": b"SKIP_WAL"}), "DURABILITY => 'USE_DEFAULT'"),
    "with a late log": (TableDescriptor("", (F,), {b"DURABILITY": b"ASYNC_WAL"}), "ASYNC_WAL"),
}
"""What an operator alters the table to, and what the refusal says."""
COMPACTED = TableDescriptor(
    "",
    (replace(F, attributes={COMPACTION_ATTRIBUTE: b"true"}),),
    {b"coprocessor$1": b"|%s|1001|" % COPROCESSOR.encode()},
)
HARMLESS: dict[str, TableDescriptor] = {
    "keeps deleted cells": TableDescriptor("", (replace(F, attributes={b"KEEP_DELETED_CELLS": b"TRUE"}),)),
    "encoded": TableDescriptor(
        "", (replace(F, attributes={b"DATA_BLOCK_ENCODING": b"FAST_DIFF", b"BLOOMFILTER": b"ROWCOL"}),)
    ),
    "compacts in memory": TableDescriptor("", (replace(F, attributes={b"IN_MEMORY_COMPACTION": b"EAGER"}),)),
    "another family": TableDescriptor("", (F, FamilyDescriptor(b"g", 1, 60))),
}

OWN_WAYS: dict[str, Callable[[Database, str], Any]] = {}


def _way(function: Callable[[Database, str], Any]) -> Callable[[Database, str], Any]:
    OWN_WAYS[function.__name__] = function
    return function


@_way
def put(db: Database, table: str) -> None:
    with db.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"v"})


@_way
def put_of_asyncio(db: Database, table: str) -> None:
    async def run() -> None:
        async with await pyomid.aio.connect(db.url) as opened, await opened.begin() as tx:
            await (await tx.table(table)).put(b"r", {b"f:q": b"v"})

    asyncio.run(run())


@_way
def frame(db: Database, table: str) -> None:
    source = OmidDataSource({"url": db.url, "table": table})
    source.writer(struct_of(schema_of(db.table_info(table)), ("id", "v")), overwrite=False)


@_way
def export(db: Database, table: str) -> None:
    """In place of the way that waits for its first rows in another thread."""
    with TemporaryDirectory() as folder:
        db.export_parquet(folder, [table])


def alter(cluster: Cluster, table: str, altered: TableDescriptor) -> None:
    OperatorsAdmin(cluster).modify_table(replace(altered, name=table))


def exhausted(way: Way) -> Callable[[Database, str], Any]:
    return lambda db, table: list(way(db, table))


@pytest.fixture
def altered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients notice alterations at once."""
    monkeypatch.setattr(physical_tables, "_AGE_S_MAX", 0.0)


@pytest.fixture
def filled(database: Database, table_name: str) -> Iterator[str]:
    make(database, table_name)
    yield table_name
    database.drop_table(table_name)


def outcomes(db: Database, table: str, ways: dict[str, Callable[[Database, str], Any]]) -> dict[str, str]:
    found = {}
    for name, way in ways.items():
        try:
            way(db, table)
            found[name] = "ok"
        except OmidError as error:
            found[name] = f"{type(error).__name__}: {error.message}"
    return found


@pytest.mark.parametrize("how", first(2, LOSSY))
def test_a_table_that_may_lose_versions_is_refused_by_every_opening(
    database: Database, url: str, cluster: Cluster, filled: str, how: str
) -> None:
    altered, said = LOSSY[how]
    ways = {name: exhausted(way) for name, way in {**WAYS, **SPARK_WAYS}.items()} | OWN_WAYS
    close_connections()
    alter(cluster, filled, altered)
    try:
        with pyomid.connect(url, **OPTIONS) as fresh, small_batches():
            found = outcomes(fresh, filled, ways)
    finally:
        close_connections()
        alter(cluster, filled, TableDescriptor("", (F,), {b"DURABILITY": b"USE_DEFAULT"}))
    assert {name: said in message for name, message in found.items()} == dict.fromkeys(ways, True), found


def test_an_open_database_notices_that_a_table_was_altered_and_corrected(
    url: str, database: Database, cluster: Cluster, filled: str, altered_soon: None
) -> None:
    with pyomid.connect(url, catalog_cache_seconds=0.0) as opened:
        with opened.begin() as tx:
            assert len(list(tx.table(filled).scan())) == 40
        alter(cluster, filled, LOSSY["ttl"][0])
        with pytest.raises(Misuse, match="alter '"), opened.begin() as tx:
            tx.table(filled)
        alter(cluster, filled, TableDescriptor("", (F,)))
        with opened.begin() as tx:
            assert len(list(tx.table(filled).scan())) == 40


def test_omid_s_coprocessor_ends_leases_on_a_table_and_its_removal_allows_them(
    database: Database, url: str, cluster: Cluster, filled: str, altered_soon: None
) -> None:
    """It drops versions by start timestamp. Short transactions read and write as before."""
    leased = ("scan_under_a_lease", "changes", "watch", *SPARK_WAYS)
    ways = {name: exhausted(way) for name, way in {**WAYS, **SPARK_WAYS}.items() if name in leased}
    ways["frame"] = OWN_WAYS["frame"]
    try:
        with pyomid.connect(url, **OPTIONS) as opened, small_batches():
            assert outcomes(opened, filled, ways) == dict.fromkeys(ways, "ok")
            alter(cluster, filled, COMPACTED)
            found = outcomes(opened, filled, ways)
            assert {name: "remove the coprocessor" in message for name, message in found.items()} == dict.fromkeys(
                ways, True
            ), found
            with opened.begin() as tx:
                rows = tx.table(filled, codec=dict)
                rows.put(row_of(1, 1))
            alter(cluster, filled, TableDescriptor("", (F,)))
            assert outcomes(opened, filled, ways) == dict.fromkeys(ways, "ok")
    finally:
        close_connections()


@pytest.mark.parametrize("how", HARMLESS)
def test_alterations_that_lose_nothing_are_accepted(
    database: Database, cluster: Cluster, filled: str, how: str, altered_soon: None
) -> None:
    """HBase compacts the table, after a transaction was taken back and rows were deleted."""
    alter(cluster, filled, HARMLESS[how])
    with database.begin() as old:
        key = next(old.table(filled).scan())[0]
        with database.begin() as tx:
            tx.table(filled).delete(key)
        with suppress(ZeroDivisionError), database.begin() as tx:
            tx.table(filled).put(key, {b"f:q": b"never"})
            tx.flush()
            raise ZeroDivisionError
        operator = OperatorsAdmin(cluster)
        operator.flush(filled)
        operator.compact(filled)
        assert len(list(old.table(filled).scan())) == 40
    with database.begin() as tx:
        assert len(list(tx.table(filled).scan())) == 39
    database.compact(filled)
    assert database.verify(filled).violations == []


@pytest.mark.parametrize("how", LOSSY)
def test_verify_names_tables_that_may_lose_versions(
    database: Database, cluster: Cluster, filled: str, how: str
) -> None:
    altered, said = LOSSY[how]
    alter(cluster, filled, altered)
    found = database.verify(filled)
    alter(cluster, filled, TableDescriptor("", (F,), {b"DURABILITY": b"USE_DEFAULT"}))
    assert [said in each for each in found.violations] == [True]
    assert not found.ok
    assert database.verify(filled).ok or how == "without family", "that one deleted its rows"


@pytest.mark.parametrize("kind", [DELETE_VERSION, DELETE_FAMILY_VERSION, DELETE_COLUMN, DELETE_FAMILY])
def test_verify_names_markers_that_hide_later_writes(
    database: Database, cluster: Cluster, filled: str, kind: int
) -> None:
    """Those of transactions that were taken back, and of compaction, hide nothing later."""
    with suppress(ZeroDivisionError), database.begin() as tx:
        tx.table(filled).put(b"r", {b"f:q": b"never"})
        tx.flush()
        raise ZeroDivisionError
    assert database.verify(filled).ok
    qualifier = b"" if kind in (DELETE_FAMILY, DELETE_FAMILY_VERSION) else b"q"
    marker = KeyValue(b"r", b"f", qualifier, NEWEST, b"", kind)
    cluster.rows(filled, [RowMutation(b"r", (deletes([marker]),), repeatable=False)])
    (found,) = database.verify(filled).violations
    assert "delete marker" in found
    assert "major_compact" in found


def test_verify_overlooks_what_transactions_delete_while_it_runs(
    database: Database, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that began after the job drew its bound is rolled back before the job reads the markers."""
    drawn = drawn_start

    def drawn_then_rolled_back(deployment: Deployment) -> int:
        bound = drawn(deployment)
        with suppress(ZeroDivisionError), database.begin() as tx:
            tx.table(filled).put(b"r", {b"f:q": b"never"})
            tx.flush()
            raise ZeroDivisionError
        assert database._core.background.drain(60.0)
        return bound

    monkeypatch.setattr("pyomid.database.upkeep.verification.drawn_start", drawn_then_rolled_back)
    assert database.verify(filled).ok


# ---------------------------------------------------------------- found tables


def _adopted(url: str, table: str) -> int:
    return main(["adopt", url, table, "f"])


def _verb(verb: str) -> Callable[[str, str], int]:
    return lambda url, table: main(["tables", url, verb, table, "f", "--conflict-level", "cell"])


COMMANDS: dict[str, Callable[[str, str], int]] = {
    "adopt": _adopted,
    "register": _verb("register"),
    "create": _verb("create"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", LOSSY)
def test_a_found_table_that_may_lose_versions_is_refused(
    url: str,
    database: Database,
    cluster: Cluster,
    table_name: str,
    how: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing stays of the attempt, and the alteration that the message asks for is enough."""
    found, said = LOSSY[how]
    OperatorsAdmin(cluster).create_table(replace(found, name=table_name))
    assert COMMANDS[command](url, table_name) == 1
    assert said in capsys.readouterr().err
    assert table_name not in [info.name for info in database.tables()]
    alter(cluster, table_name, TableDescriptor("", (F,), {b"DURABILITY": b"USE_DEFAULT"}))
    assert COMMANDS[command](url, table_name) == 0
    put(database, table_name)
    assert database.verify(table_name).ok
    database.drop_table(table_name)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", [*HARMLESS, "with Omid's coprocessor"])
def test_a_found_table_that_loses_nothing_is_taken(
    url: str, database: Database, cluster: Cluster, table_name: str, how: str, command: str
) -> None:
    OperatorsAdmin(cluster).create_table(replace(HARMLESS.get(how, COMPACTED), name=table_name))
    assert COMMANDS[command](url, table_name) == 0
    put(database, table_name)
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r") == {b"f:q": b"v"}
    assert database.verify(table_name).ok
    database.drop_table(table_name)


PLAIN = [KeyValue(b"r%03d" % row, b"f", b"q", 1000 + row, b"v") for row in range(300)]
SHADOWS = [cell._replace(qualifier=shadow_qualifier(b"q"), value=cell.timestamp.to_bytes(8, "big")) for cell in PLAIN]


def nothing(*given: object, **named: object) -> bool:
    return True


def put_plainly(cluster: Cluster, table: str, cells: list[KeyValue]) -> None:
    cluster.rows(table, [RowMutation(cell.row, (puts([cell]),)) for cell in cells])


def _of_transactions(database: Database, table: str, rows: range) -> None:
    database.create_table(table, ["f"])
    with database.begin() as tx:
        for row in rows:
            tx.table(table).put(b"r%03d" % row, {b"f:q": b"v"})
    assert database._core.background.drain(60.0)


@pytest.mark.parametrize("command", ["register", "create"])
@pytest.mark.parametrize("split", [False, True])
def test_half_an_adoption_is_not_registered_but_adopted(
    url: str,
    database: Database,
    cluster: Cluster,
    table_name: str,
    command: str,
    split: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    OperatorsAdmin(cluster).create_table(TableDescriptor(table_name, (F,)), [b"r100", b"r200"] if split else [])
    put_plainly(cluster, table_name, PLAIN)
    put_plainly(cluster, table_name, SHADOWS[:120])
    assert COMMANDS[command](url, table_name) == 1
    assert "pyomid adopt" in capsys.readouterr().err
    assert COMMANDS["adopt"](url, table_name) == 0
    with database.begin() as tx:
        assert len(list(tx.table(table_name).scan())) == len(PLAIN)
    assert database.verify(table_name).ok
    database.drop_table(table_name)


@pytest.mark.parametrize("command", ["register", "create"])
def test_rows_of_transactions_are_registered_and_beside_a_plain_program_s_refused(
    url: str, database: Database, cluster: Cluster, table_name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _of_transactions(database, table_name, range(150))
    assert main(["tables", url, "unregister", table_name]) == 0
    assert COMMANDS[command](url, table_name) == 0
    assert main(["tables", url, "unregister", table_name]) == 0
    put_plainly(cluster, table_name, PLAIN[150:])
    assert COMMANDS[command](url, table_name) == 1
    said = capsys.readouterr().err
    assert "no transaction committed" in said
    assert "copy" in said
    delete = [deletes([cell._replace(kind=DELETE_COLUMN, value=b"")]) for cell in PLAIN[150:]]
    cluster.rows(table_name, [RowMutation(cell.row, (each,)) for cell, each in zip(PLAIN[150:], delete, strict=True)])
    assert COMMANDS[command](url, table_name) == 0
    with database.begin() as tx:
        assert len(list(tx.table(table_name).scan())) == 150
    assert database.verify(table_name).ok
    database.drop_table(table_name)


@pytest.mark.parametrize("is_committed", [True, False])
def test_rows_without_shadow_cells_are_registered_if_their_transaction_committed(
    url: str, database: Database, table_name: str, is_committed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fence decides about a transaction that is open."""
    database.create_table(table_name, ["f"])
    tx = database.begin()
    for row in range(10):
        tx.table(table_name).put(b"r%d" % row, {b"f:q": b"v"})
    tx.flush()
    if is_committed:
        with patch.multiple(database._core.background, complete=nothing, complete_at_once=nothing):
            tx.commit()
    assert main(["tables", url, "unregister", table_name]) == 0
    assert COMMANDS["register"](url, table_name) == (0 if is_committed else 1)
    if is_committed:
        with database.begin() as reader:
            assert len(list(reader.table(table_name).scan())) == 10
    else:
        assert "no transaction committed" in capsys.readouterr().err
        with pytest.raises(ConflictError):
            tx.commit()
    database._core.deployment.store.drop_table(table_name)
    if is_committed:
        database.drop_table(table_name)
    assert main(["tables", url, "forget", table_name]) == 0


# ---------------------------------------------------------------- the cache of descriptors


class Master:
    """Stands for `Admin`: answers, or not."""

    def __init__(self) -> None:
        self.descriptor = TableDescriptor("t", (F,))
        self.answers = True
        self.deadlines: list[float | None] = []

    def table(self, table: str, *, deadline_s: float | None = None) -> TableDescriptor:
        self.deadlines.append(deadline_s)
        if not self.answers:
            raise Unavailable("the master is down")
        return self.descriptor


def test_tables_are_opened_while_the_master_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the descriptors that the client has; it asks the master again later, with a short deadline."""
    now_s = 1000.0
    monkeypatch.setattr(physical_tables, "time", SimpleNamespace(monotonic=lambda: now_s))
    master = Master()
    operations = SimpleNamespace(durability=Durability.TABLE)
    tables = PhysicalTables(cast("Any", SimpleNamespace(operations=operations)), cast("Any", master))
    opened = partial(tables.check_opened, "t", [b"f"], leased=True)
    for _ in range(3):
        opened()
    assert master.deadlines == [None]
    master.answers = False
    now_s += 11.0
    for _ in range(3):
        opened()
    assert master.deadlines == [None, 1.0]
    now_s += 80.0
    opened()
    assert master.deadlines == [None, 1.0, 1.0]
    master.answers = True
    master.descriptor = LOSSY["ttl"][0]
    now_s += 80.0
    with pytest.raises(Misuse, match="TTL"):
        opened()
    master.descriptor = TableDescriptor("t", (F,))
    opened()
