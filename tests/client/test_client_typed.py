"""Typed tables: rows of Python values by the catalog's schema, in the bytes that Spark writes and reads."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, NewType, TypedDict

import pytest

from pyomid.database.database import Database
from pyomid.errors import ConflictError, Corruption, ExpectationFailed, Misuse, MisuseType
from pyomid.types import Column

pytestmark = pytest.mark.fast

TAGS = '{"containsNull":true,"elementType":"integer","type":"array"}'


@dataclass
class Account:
    id: int
    owner: str | None = None
    balance: Annotated[Decimal, "decimal(10,2)"] | None = None
    since: date | None = None


class Named(TypedDict):
    id: int
    owner: str | None


EVERY: dict[str, tuple[object, Any]] = {
    "flag": (bool, True),
    "small": ("byte", -5),
    "number": (int, 2**62),
    "real": (float, -1.5),
    "text": (str, ""),
    "raw": (bytes, b"\x00"),
    "day": (date, date(2026, 2, 28)),
    "moment": (datetime, datetime(2026, 2, 28, 12, 30, tzinfo=UTC)),
    "local": ("timestamp_ntz", datetime(2026, 2, 28, 12, 30)),
    "span": (timedelta, timedelta(days=1, microseconds=3)),
    "money": ("decimal(10,2)", Decimal("-12.50")),
    "tags": (TAGS, [1, None, 3]),
}


@pytest.fixture
def accounts(memory_db: Database) -> Database:
    memory_db.create_table("accounts", families=["f"])
    memory_db.set_schema("accounts", Account, row_key="id")
    return memory_db


def test_every_type_comes_back_as_it_was(db: Database) -> None:
    db.set_schema("t", {"id": str, **{name: kind for name, (kind, _) in EVERY.items()}}, row_key="id")
    row = {"id": "a", **{name: value for name, (_, value) in EVERY.items()}}
    with db.begin() as tx:
        table = tx.table("t", codec=dict)
        table.put(row)
        table.put({"id": "b"})
    with db.snapshot() as tx:
        table = tx.table("t", codec=dict)
        assert table.get("a") == row
        assert table.get("b") == {"id": "b", **dict.fromkeys(EVERY)}, "a row without values exists"
        assert table.get("c") is None
        as_json = tx.table("t", codec="json").get("a")
        assert json.loads(json.dumps(as_json)) == as_json
    with db.begin() as tx:
        tx.table("t", codec=dict).delete("a")
        assert as_json is not None
        tx.table("t", codec="json").put(as_json)
        assert tx.table("t", codec=dict).get("a") == row


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("flag", 1), ("small", 128), ("number", True), ("number", "1"), ("real", "x"), ("text", b"x"), ("raw", "x"),
        ("raw", 5), ("day", datetime(2026, 1, 1)), ("moment", datetime(2026, 1, 1)), ("money", Decimal("0.001")),
        ("money", 1.5),
        ("money", Decimal("1." + "0" * 70 + "1")), ("real", True),
        ("tags", ["x"]), ("tags", [2**31]), ("tags", 7), ("id", None), ("id", 5), ("nme", 1),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_by_its_column(memory_db: Database, column: str, value: object) -> None:
    """Not found later, as `Corruption`."""
    columns = {"id": str, **{name: kind for name, (kind, _) in EVERY.items()}}
    memory_db.set_schema("t", columns, row_key="id")
    tx = memory_db.begin()
    with pytest.raises(Misuse, match=f"'{column}'"):
        tx.table("t", codec=dict).put({"id": "a", column: value})
    assert list(tx.table("t").scan()) == []
    tx.rollback()


def test_rows_are_of_their_class(accounts: Database) -> None:
    alice = Account(17, "alice", Decimal("1.50"), date(2026, 1, 2))
    with accounts.begin() as tx:
        table = tx.table("accounts", codec=Account)
        table.put(alice)
        table.put(Account(-3, "bob"))
        assert table.get(17) == alice
        assert list(table.rows([5, 17])) == [5, 17]
        assert [row.id for row in table.scan()] == [-3, 17], "in the order of the numbers"
        assert [row.id for row in table.scan(start=0, reverse=True)] == [17]
        named = tx.table("accounts", codec=Named)
        assert named.get(17) == {"id": 17, "owner": "alice"}
        named.put({"id": 17, "owner": None})
        assert table.get(17) == Account(17, None, alice.balance, alice.since), "other columns stay"
        with pytest.raises(MisuseType, match="not Account"):
            table.put({"id": 1})  # type: ignore[arg-type]
        assert not table.put_if_absent(Account(17))
        assert table.put_if_absent(Account(18))
        table.delete_rows([18, -3])
        assert [row.id for row in table.scan()] == [17]


def test_a_class_that_is_not_of_the_table_is_refused(accounts: Database) -> None:
    class WithoutKey(TypedDict):
        owner: str

    class Another(TypedDict):
        id: int
        colour: str

    with accounts.begin() as tx:
        for codec, named in ((WithoutKey, "'id'"), (Another, "'colour'"), (int, "codec"), ("yaml", "codec")):
            with pytest.raises(Misuse, match=named):
                tx.table("accounts", codec=codec)  # type: ignore[call-overload]
        with pytest.raises(Misuse, match="no schema"):
            tx.table("t", codec=dict)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (str, "'id' is annotated as str, but the column of table 'accounts' is long: annotate it as int"),
        (float, "annotate it as int"),
        (Annotated[bool | None, "boolean"], "annotated as bool"),
        (NewType("Key", str), "annotated as str"),
        (datetime, "annotated as datetime"),
    ],
)
def test_a_class_whose_types_are_not_the_columns_is_refused(accounts: Database, kind: Any, named: str) -> None:
    wrong = dataclasses.make_dataclass("Wrong", [("id", kind)])
    for codec in (wrong, TypedDict("Wrong", {"id": kind})):  # type: ignore[misc]
        with accounts.begin() as tx, pytest.raises(Misuse, match=f"class Wrong: .*{re.escape(named)}"):
            tx.table("accounts", codec=codec)
        with pytest.raises(Misuse, match="class Wrong"):
            accounts.codec("accounts", codec)


@pytest.mark.parametrize("kind", [int, int | None, Annotated[int, "short"], Any, object, int | str, IntEnum])
def test_a_class_may_leave_the_type_of_a_column_open(accounts: Database, kind: Any) -> None:
    codec = dataclasses.make_dataclass("Open", [("id", kind)])
    with accounts.begin() as tx:
        assert tx.table("accounts", codec=codec).get(1) is None


def test_expectations_and_claims_are_by_column_and_key(accounts: Database) -> None:
    with accounts.begin() as tx:
        tx.table("accounts", codec=Account).put(Account(1, "alice", Decimal("5.00")))
    one, two = accounts.begin(), accounts.begin()
    one.table("accounts", codec=Account).put(Account(1, "bob"), expect={"owner": "alice", "since": None})
    with pytest.raises(ExpectationFailed, match="row id=1: 'owner' is 'alice'"):
        two.table("accounts", codec=Account).put(Account(1, "bob"), expect={"owner": "carol"})
    assert two.table("accounts", codec=Account).get(2, for_update=True) is None
    with accounts.begin() as tx:
        assert tx.table("accounts", codec=Account).put_if_absent(Account(2))
    one.commit()
    with pytest.raises(ConflictError):
        two.commit()


def test_a_schema_is_given_once_and_grows(memory_db: Database) -> None:
    assert memory_db.table_schema("t") is None
    with pytest.raises(Misuse, match="row key"):
        memory_db.set_schema("t", {"id": int})
    given = memory_db.set_schema("t", {"id": int, "x": str}, row_key=["id desc"], mapping={"x": "g:y"})
    assert given is not None
    assert given == memory_db.table_schema("t")
    assert given.columns[1].column == Column(b"g", b"y")
    assert memory_db.set_schema("t", {"id": int, "x": str}, row_key="id desc") == given
    more = memory_db.set_schema("t", {"id": int, "z": bool})
    assert more is not None
    assert [column.name for column in more.columns] == ["id", "x", "z"]
    for wrong, row_key in (({"id": int}, "id"), ({"id": int, "x": int}, None), ({"id": complex}, None), (int, None)):
        with pytest.raises(Misuse):
            memory_db.set_schema("t", wrong, row_key=row_key)  # type: ignore[arg-type]
    with memory_db.begin() as tx:
        table = tx.table("t", codec=dict)
        for number in (1, 3, 2):
            table.put({"id": number})
        assert [row["id"] for row in table.scan()] == [3, 2, 1]


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("int", "integer"),
        ("BIGINT", "long"),
        ("smallint", "short"),
        ("tinyint", "byte"),
        ("Decimal(6,2)", "decimal(6,2)"),
    ],
)
def test_types_may_have_the_names_of_sql(memory_db: Database, written: str, stored: str) -> None:
    """As `DataFrame.dtypes` and `CREATE TABLE` tell them."""
    memory_db.set_schema("t", {"id": int, "a": written}, row_key="id")
    altered = memory_db.alter_columns("t", add={"b": Annotated[int, written]})
    assert {column.name: column.spark_type for column in altered.columns} == {"id": "long", "a": stored, "b": stored}


@pytest.mark.parametrize(
    ("kind", "key", "needed"), [(str, 7, "str is needed, not int"), (int, "7", "int is needed, not str")]
)
def test_a_key_of_another_type_is_refused_by_what_is_needed(
    memory_db: Database, kind: type, key: object, needed: str
) -> None:
    memory_db.set_schema("t", {"id": kind, "a": int}, row_key="id")
    with memory_db.begin() as tx, pytest.raises(MisuseType, match=needed):
        tx.table("t", codec=dict).get(key)


def test_keys_of_several_columns_are_tuples(memory_db: Database) -> None:
    memory_db.set_schema("t", {"day": date, "name": str, "n": int}, row_key="day, name")
    with memory_db.begin() as tx:
        table = tx.table("t", codec=dict)
        for day in (1, 2):
            for name in ("a", "b"):
                table.put({"day": date(2026, 1, day), "name": name, "n": day})
        assert table.get((date(2026, 1, 2), "a")) == {"day": date(2026, 1, 2), "name": "a", "n": 2}
        assert [row["name"] for row in table.scan(prefix=date(2026, 1, 1))] == ["a", "b"]
        with pytest.raises(MisuseType, match="not a list of keys"):
            table.rows("ab")
        with pytest.raises(Misuse, match=r"table 't': row key \(day, name\) needs 2 values, but \(datetime.* has 1"):
            table.get(date(2026, 1, 2))


def test_a_typed_column_counts_within_its_type(memory_db: Database) -> None:
    memory_db.set_schema("t", {"id": str, "hits": int, "few": "byte", "text": str}, row_key="id")
    with memory_db.begin() as tx:
        table = tx.table("t", codec=dict)
        assert [table.increment("a", "hits"), table.increment("a", "hits", 41), table.increment("b", "few", -3)] == [
            1,
            42,
            -3,
        ]
        assert tx.table("t").increment(b"a", b"f:hits") == 43, "a long is stored as a counter is"
        assert table.get("a") == {"id": "a", "hits": 43, "few": None, "text": None}
        for key, column, by in (("b", "few", 200), ("a", "text", 1), ("a", "id", 1), ("a", "hits", True)):
            with pytest.raises(Misuse):
                table.increment(key, column, by)
        assert table.get("b") == {"id": "b", "hits": None, "few": -3, "text": None}


def test_typed_rows_come_by_pages_and_as_arrow(accounts: Database) -> None:
    with accounts.begin() as tx:
        table = tx.table("accounts", codec=Named)
        for number in range(5):
            table.put({"id": number, "owner": "x"})
        page = table.page(1, 4, limit=2)
        assert [row["id"] for row in page.rows] == [1, 2]
        page = table.page(1, 4, limit=2, after=page.next)
        assert ([row["id"] for row in page.rows], page.next) == ([3], None)
        assert [row["id"] for row in table.page(limit=2, reverse=True).rows] == [4, 3]
        assert table.to_arrow(3).read_all().to_pylist() == [{"id": 3, "owner": "x"}, {"id": 4, "owner": "x"}]
        assert table.to_arrow(prefix=3, columns=["since"]).read_all().to_pylist() == [{"since": None}]


def test_what_is_not_of_the_type_is_corruption_by_its_column(memory_db: Database) -> None:
    memory_db.set_schema("t", {"id": str, "n": int}, row_key="id")
    with memory_db.begin() as tx:
        tx.table("t").put(b"a", {b"f:n": b"short"})
        with pytest.raises(
            Corruption,
            match=r"table 't', row id='a', column 'n': .* 5 bytes, .*; another program .*\.get\(b'a'\), and can put",
        ):
            tx.table("t", codec=dict).get("a")


def test_a_key_beyond_the_calendar_is_told_by_its_row(memory_db: Database) -> None:
    """Spark's calendar has more years than Python's, and may have written it."""
    memory_db.set_schema("t", {"day": date, "n": int}, row_key="day")
    with memory_db.begin() as tx:
        tx.table("t").put(b"\xff" * 4, {b"f:n": bytes(8)})
        with pytest.raises(Misuse, match=r"table 't', row \(day\) = 0xffffffff: .* outside the years"):
            list(tx.table("t", codec=dict).scan())
