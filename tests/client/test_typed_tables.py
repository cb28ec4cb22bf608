"""A table with a schema is created in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from pyomid.database.database import Database
from pyomid.errors import Misuse, MisuseType
from pyomid.types import Column, ConflictLevel

pytestmark = pytest.mark.fast


@dataclass
class Account:
    name: str
    balance: int | None = None


@dataclass
class Older:
    name: str


@dataclass
class Longer:
    name: str
    balance: int | None = None
    city: str | None = None


class Stranger(NamedTuple):
    name: str
    id: int


def test_one_call_creates_a_typed_table_in_sparks_default_family(db: Database) -> None:
    info = db.create_table("accounts", Account, row_key="name", conflict_level="row", ttl_seconds=3600)
    assert info == db.table_info("accounts")
    assert (info.families, info.conflict_level, info.ttl_seconds) == ((b"d",), ConflictLevel.ROW, 3600)
    with db.begin() as tx:
        tx.table("accounts", codec=Account).put(Account("ann", 5))
        assert list(tx.table("accounts").scan()) == [(b"ann", {b"d:balance": b"\0" * 7 + b"\5"})]
    with pytest.raises(Misuse, match="table 'accounts' already exists"):
        db.create_table("accounts", Account, row_key="name")
    with pytest.raises(
        MisuseType, match="'balance' has type long, not string; declare the column with the type of the table"
    ):
        db.set_schema("accounts", {"name": str, "balance": str}, row_key="name")
    with pytest.raises(Misuse, match="no column 'id', which class Stranger declares"), db.begin() as tx:
        tx.table("accounts", codec=Stranger)


def test_a_table_without_a_schema_has_the_same_default_family(db: Database) -> None:
    assert db.create_table("plain").families == (b"d",)
    assert db.create_table("both", ["f", "g"]).families == (b"f", b"g")


def test_a_mapping_names_other_families(db: Database) -> None:
    columns = {"id": int, "text": str, "more": str}
    info = db.create_table("t2", columns, row_key=["id desc"], mapping={"text": "big:text"})
    assert info.families == (b"big", b"d")
    assert info.schema is not None
    assert [column.column for column in info.schema.columns] == [None, Column(b"big", b"text"), Column(b"d", b"more")]
    assert db.create_table("t3", Older, row_key="name").families == (b"d",), "only key columns"


def test_an_existing_table_gets_the_schema_as_by_set_schema(db: Database) -> None:
    db.create_table("accounts", Account, row_key="name")
    for columns in (Account, Older):
        db.create_table("accounts", columns, row_key="name", if_not_exists=True)
    with db.begin() as tx:
        tx.table("accounts", codec=Account).put(Account("ann", 5))
    info = db.create_table("accounts", Longer, row_key="name", if_not_exists=True)
    assert info.schema == db.table_schema("accounts")
    with db.begin() as tx:
        assert tx.table("accounts", codec=Longer).get("ann") == Longer("ann", 5)
    with pytest.raises(Misuse, match=r"has the row key \(name\), not \(balance\)"):
        db.create_table("accounts", Account, row_key="balance", if_not_exists=True)
    with pytest.raises(Misuse, match="exists with conflict level 'cell', not 'row'"):
        db.create_table("accounts", Account, conflict_level="row", row_key="name", if_not_exists=True)
    assert db.create_table("t", Account, row_key="name", if_not_exists=True).families == (b"f", b"g")
    schema = db.table_schema("t")
    assert schema is not None
    assert schema.columns[1].column == Column(b"f", b"balance"), "the table's own first family"


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (
            (Account,),
            Misuse,
            "table 'new': typed columns need a row key; name the key columns, for example row_key=\"id\"",
        ),
        (
            (["f"], "id"),
            Misuse,
            "table 'new': row_key and mapping need columns; instead of .*, give a class or a mapping",
        ),
        ((Account, "nmae"), Misuse, "unknown column 'nmae'; did you mean 'name'"),
        ((int, "id"), MisuseType, "must be a class with annotations or a mapping"),
        (({}, "id"), MisuseType, "must be a class with annotations or a mapping"),
    ],
)
def test_bad_columns_create_no_table(
    memory_db: Database, arguments: tuple[Any, ...], kind: type[Exception], words: str
) -> None:
    before = memory_db.tables()
    columns, row_key = (*arguments, None)[:2]
    with pytest.raises(kind, match=words):
        memory_db.create_table("new", columns, row_key=row_key)
    assert memory_db.tables() == before
