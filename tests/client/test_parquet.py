"""Tables as Parquet files, there and back."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyomid
from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.database.tables import parquet
from pyomid.database.transaction import Transaction
from pyomid.errors import Corruption, Misuse, Unavailable, UnknownTable

pytestmark = pytest.mark.fast

ROWS = [
    {"id": number, "day": date(2026, 1, 1 + number % 28), "money": Decimal(number) / 4, "name": f"n{number}" * 3}
    for number in range(57)
]


@pytest.fixture
def shop(request: pytest.FixtureRequest) -> Database:
    db = pyomid.connect(f"omid-memory:{request.node.name}")
    db.create_table("typed", ["f", "g"], conflict_level="row")
    columns = {"id": int, "day": date, "money": "decimal(10,2)", "name": str}
    db.set_schema("typed", columns, row_key=["day", "id desc"], mapping={"name": "g:n"})
    db.create_table("ns:plain", ["f"])
    with db.begin() as tx:
        for row in ROWS:
            tx.table("typed", codec=dict).put(row)
        for number in range(30):
            tx.table("ns:plain").put(
                b"\x00%d" % number, {b"f:\xff%d" % column: b"v" for column in range(1 + number % 4)}
            )
    return db


def all_rows(db: Database) -> list[object]:
    with db.begin() as tx:
        return [list(tx.table(name).scan()) for name in ("typed", "ns:plain")]


@pytest.mark.parametrize("rows_at_once", [7, 10_000])
def test_tables_come_back_as_they_were(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    for module in ("parquet", "arrow"):
        monkeypatch.setattr(f"pyomid.database.tables.{module}.ROWS_AT_ONCE", rows_at_once)
    cells = sum(1 + number % 4 for number in range(30))
    assert shop.export_parquet(tmp_path / "files") == {"ns:plain": cells, "typed": 57}
    assert pq.read_table(tmp_path / "files" / "typed.parquet").num_rows == 57
    with pyomid.connect(f"omid-memory:again-{tmp_path}") as db:
        assert db.import_parquet(tmp_path / "files") == {"ns:plain": cells, "typed": 57}
        assert all_rows(db) == all_rows(shop)
        for name in ("typed", "ns:plain"):
            there, here = db.table_info(name), shop.table_info(name)
            assert (there.schema, there.families, there.conflict_level) == (
                here.schema, here.families, here.conflict_level,
            )  # fmt: skip
        with pytest.raises(Misuse, match="has rows"):
            db.import_parquet(tmp_path / "files")
        db.import_parquet(tmp_path / "files", over=True)
        assert all_rows(db) == all_rows(shop)


def test_an_export_is_of_a_past_snapshot(shop: Database, tmp_path: Path) -> None:
    before = shop.bookmark()
    with shop.begin() as tx:
        tx.table("typed", codec=dict).put({**ROWS[0], "name": "later"})
    shop.create_table("younger", ["f"])
    for number, at in enumerate((before, str(before), before.start_ts)):
        shop.export_parquet(tmp_path / f"{number}", ["typed"], at=at)
        assert "later" not in pq.read_table(tmp_path / f"{number}" / "typed.parquet")["name"].to_pylist()
    assert main(["export", shop.url, f"{tmp_path}/by-command", "--table", "typed", "--at", str(before)]) == 0
    assert "later" not in pq.read_table(tmp_path / "by-command" / "typed.parquet")["name"].to_pylist()


@pytest.mark.parametrize(
    ("at", "message"), [("soon", "not a valid time"), (2**62, "in the future"), (0, "above 0"), (True, "has type bool")]
)
def test_an_export_at_a_bad_time_is_refused_and_makes_no_folder(
    shop: Database, tmp_path: Path, at: int | str, message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        shop.export_parquet(tmp_path / "files", at=at)
    assert not (tmp_path / "files").exists()


def test_an_export_before_the_creation_of_a_table_names_it(shop: Database, tmp_path: Path) -> None:
    before = shop.bookmark()
    shop.create_table("younger", ["f"])
    with pytest.raises(UnknownTable, match="younger"):
        shop.export_parquet(tmp_path / "files", ["typed", "younger"], at=before)


def test_a_refused_import_makes_no_table(shop: Database, tmp_path: Path) -> None:
    """Its last file is the one that is in the way."""
    shop.export_parquet(tmp_path / "files")
    with pyomid.connect(f"omid-memory:again-{tmp_path}") as db:
        (tmp_path / "files" / "z.parquet").write_bytes(b"no Parquet")
        with pytest.raises(Corruption, match="not a Parquet file"):
            db.import_parquet(tmp_path / "files")
        pq.write_table(pa.table({"id": [1]}), tmp_path / "files" / "z.parquet")
        with pytest.raises(UnknownTable, match="'z'"):
            db.import_parquet(tmp_path / "files")
        db.create_table("z", ["f"])
        with db.begin() as tx:
            tx.table("z").put(b"row", {b"f:x": b"1"})
        with pytest.raises(Misuse, match="has rows"):
            db.import_parquet(tmp_path / "files")
        assert [table.name for table in db.tables()] == ["z"]


def test_an_interrupted_import_says_how_far_it_came(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.export_parquet(tmp_path / "files", "typed")
    monkeypatch.setattr(parquet, "ROWS_AT_ONCE", 10)
    write, calls = parquet._write, []

    def then_fails(transaction: Transaction, **named: object) -> None:
        calls.append(named)
        if len(calls) == 3:
            raise Unavailable("gone")
        write(transaction, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet, "_write", then_fails)
    with pyomid.connect(f"omid-memory:again-{tmp_path}") as db:
        with pytest.raises(Unavailable) as caught:
            db.import_parquet(tmp_path / "files")
        assert "20 of 57 rows are committed" in caught.value.__notes__[0]
        with db.begin() as tx:
            assert len(list(tx.table("typed").scan())) == 20
        db.import_parquet(tmp_path / "files", over=True)
        with db.begin() as tx, shop.begin() as original:
            assert list(tx.table("typed").scan()) == list(original.table("typed").scan())


def test_an_import_that_died_before_the_schema_is_repeated(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.export_parquet(tmp_path / "files", "typed")
    with pyomid.connect(f"omid-memory:made-{tmp_path}") as db:
        with monkeypatch.context() as patched:
            patched.setattr(Database, "set_schema", _fails)
            with pytest.raises(OSError, match="killed"):
                db.import_parquet(tmp_path / "files")
        db.import_parquet(tmp_path / "files")
        assert db.table_info("typed").schema == shop.table_info("typed").schema


def test_an_unfinished_export_is_no_export(shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(parquet, "sync_folder", lambda path: None)
        patched.setattr("os.replace", _fails)
        with pytest.raises(OSError, match="killed"):
            shop.export_parquet(tmp_path / "files")
    with pytest.raises(Misuse, match="an unfinished export"):
        shop.import_parquet(tmp_path / "files")
    shop.export_parquet(tmp_path / "files")
    with pytest.raises(Misuse, match="is not empty"):
        shop.export_parquet(tmp_path / "files")


def _fails(*_: object, **__: object) -> None:
    raise OSError("killed")


def test_a_foreign_file_needs_a_table_that_it_fits(shop: Database, tmp_path: Path) -> None:
    table = pq.read_table
    shop.export_parquet(tmp_path / "files", ["typed"])
    foreign = table(tmp_path / "files" / "typed.parquet").replace_schema_metadata(None)
    pq.write_table(foreign, tmp_path / "foreign.parquet")
    with pyomid.connect(f"omid-memory:again-{tmp_path}") as db:
        with pytest.raises(UnknownTable):
            db.import_parquet(tmp_path / "foreign.parquet")
    assert shop.import_parquet(tmp_path / "foreign.parquet", "typed", over=True) == {"typed": 57}
    with pytest.raises(Misuse, match="the data need a column 'key'"):
        shop.import_parquet(tmp_path / "foreign.parquet", "ns:plain", over=True)


@pytest.mark.parametrize("name", ["key", "column", "value"])
def test_a_file_by_cells_has_no_null(shop: Database, tmp_path: Path, name: str) -> None:
    """A cell without a key would be one of the next row."""
    data = {"key": [b"a", b"a"], "column": [b"f:x", b"f:y"], "value": [b"1", b"2"]}
    data[name] = [None, data[name][1]]  # type: ignore[list-item]
    pq.write_table(pa.table({each: pa.array(data[each], pa.binary()) for each in data}), tmp_path / "cells.parquet")
    before = all_rows(shop)
    with pytest.raises(Misuse, match=f"has no '{name}'"):
        shop.import_parquet(tmp_path / "cells.parquet", "ns:plain", over=True)
    assert all_rows(shop) == before


def test_the_commands_say_what_they_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pyomid.connect("omid-memory:parquet-command") as db:
        db.create_table("t", ["f"])
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:v": b"1"})
        assert main(["export", "omid-memory:parquet-command", str(tmp_path / "files")]) == 0
        assert main(["import", str(tmp_path / "files"), "omid-memory:parquet-command-2"]) == 0
        assert capsys.readouterr().out.splitlines() == ["table  rows", "-----  ----", "t         1"] * 2
        assert main(["import", str(tmp_path / "files"), "omid-memory:parquet-command-2"]) == 1
        assert "has rows" in capsys.readouterr().err
