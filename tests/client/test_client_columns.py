"""The columns of a table change while it has data and users: old rows read right, nobody meets what it cannot read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyomid
import pyomid.aio
from at_points import dying_at, meanwhile
from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError, ExpectationFailed, Misuse, OmidError

pytestmark = pytest.mark.fast

_numbers = itertools.count()
FIRST: dict[str, Any] = {"id": int, "a": "integer", "b": str, "money": "decimal(6,2)", "small": "byte", "f": "float"}
ROW = {"id": 1, "a": -5, "b": "x", "money": Decimal("12.50"), "small": -7, "f": 1.5}


@pytest.fixture
def table(db: Database) -> Database:
    made(db)
    return db


def made(db: Database, level: str = "cell") -> None:
    db.create_table("rows", ["d"], conflict_level=level)
    db.set_schema("rows", FIRST, row_key="id")
    put(db, ROW)


def put(db: Database, row: dict[str, Any]) -> None:
    with db.begin() as tx:
        tx.table("rows", codec=dict).put(row)


def rows(db: Database) -> list[dict[str, Any]]:
    """As Python values; and by Arrow, which Spark reads by, the same."""
    with db.snapshot() as tx:
        found = list(tx.table("rows", codec=dict).scan())
        assert tx.table("rows").to_arrow().read_all().to_pylist() == found
    return found


@pytest.fixture
def keeper(table: Database, keeper: Database) -> Database:
    """It has what it keeps of `rows`."""
    assert rows(keeper) == [ROW]
    return keeper


def test_a_rename_takes_its_values_along(table: Database) -> None:
    table.alter_columns("rows", rename={"a": "b", "b": "a", "id": "key"})
    put(table, {"key": 2, "b": 3})
    first = {"key": 1, "b": -5, "a": "x", "money": Decimal("12.50"), "small": -7, "f": 1.5}
    assert rows(table) == [first, {**dict.fromkeys(first), "key": 2, "b": 3}]


def test_a_widened_column_reads_all_that_it_ever_held(table: Database) -> None:
    table.alter_columns("rows", widen={"small": "short"})
    put(table, {"id": 2, "small": 300})
    wide = {"small": int, "a": "long", "f": float, "money": "decimal(20,2)"}
    table.alter_columns("rows", widen=wide)
    table.alter_columns("rows", widen=wide)  # again, where the answer was lost
    big = {"id": 3, "a": 2**40, "small": -(2**40), "f": 1e300, "money": Decimal("123456789012.25"), "b": None}
    put(table, big)
    second = {**dict.fromkeys(ROW), "id": 2, "small": 300}
    assert rows(table) == [{name: row[name] for name in ROW} for row in (ROW, second, big)]
    with table.begin() as tx:
        typed = tx.table("rows", codec=dict)
        typed.put({"id": 1, "b": "y"}, expect={"a": -5, "f": 1.5, "money": Decimal("12.5")})
        with pytest.raises(ExpectationFailed):
            typed.put({"id": 1, "b": "z"}, expect={"a": -4})


def test_a_name_given_anew_brings_no_old_cells_back(table: Database) -> None:
    table.alter_columns("rows", drop=["a", "b"], add={"b": int})
    assert rows(table)[0]["b"] is None
    table.set_schema("rows", {"id": int, "a": str})
    put(table, {"id": 2, "a": "new", "b": 9})
    table.alter_columns("rows", drop=["a"], order=["b"])
    table.alter_columns("rows", add={"a": bool})
    assert [(row["id"], row["b"], row["a"]) for row in rows(table)] == [(1, None, None), (2, 9, None)]
    assert list(rows(table)[0])[:2] == ["b", "id"]
    with pytest.raises(Misuse, match="which holds values of a dropped column"):
        table.alter_columns("rows", add={"c": int}, mapping={"c": "d:a"})


def test_a_row_of_dropped_values_only_stays_and_goes_as_a_row(table: Database) -> None:
    put(table, {"id": 2, "a": 1})
    table.alter_columns("rows", drop=["a"])
    assert [row["id"] for row in rows(table)] == [1, 2]
    with table.begin() as tx:
        tx.table("rows", codec=dict).delete(2)
        assert tx.table("rows", codec=dict).put_if_absent({"id": 2, "b": "y"})
    assert [row["b"] for row in rows(table)] == ["x", "y"]


@pytest.mark.parametrize("begun_at", ["before", "client.columns.changing", "client.columns.fenced"])
def test_a_writer_of_the_old_columns_is_refused_or_right(table: Database, keeper: Database, begun_at: str) -> None:
    """Whoever goes by the old columns writes those, by whatever names they go now, or nothing."""
    begun: list[Transaction] = []

    def write() -> None:
        begun.append(keeper.begin())
        begun[0].table("rows", codec=dict).put({"id": 2, "a": 7, "b": "old", "small": 1})

    changes: dict[str, Any] = {"rename": {"a": "b"}, "drop": ["b"], "widen": {"small": int}, "add": {"a": str}}
    if begun_at == "before":
        write()
        table.alter_columns("rows", **changes)
    else:
        with meanwhile(begun_at, write):
            table.alter_columns("rows", **changes)
    try:
        begun[0].commit()
    except ConflictError:
        assert begun_at != "client.columns.fenced"
        assert [row["id"] for row in rows(table)] == [1]
    else:
        assert [(row["b"], row["a"], row["small"]) for row in rows(table)] == [(-5, None, -7), (7, None, 1)]


@pytest.mark.parametrize("read_at", ["before", "client.columns.changing", "client.columns.fenced"])
def test_who_begins_after_a_change_goes_by_it(table: Database, keeper: Database, read_at: str) -> None:
    """Else it meets a value that is wider than its type, or writes under a name that is another column's."""
    if read_at == "before":
        table.alter_columns("rows", widen={"a": "long"})
    else:
        with meanwhile(read_at, lambda: rows(keeper)):
            table.alter_columns("rows", widen={"a": "long"})
    put(table, {"id": 2, "a": 2**40})
    assert [row["a"] for row in rows(keeper)] == [-5, 2**40]


def test_a_row_is_made_once_beside_a_dropped_column(table: Database) -> None:
    """One who knows the old columns makes the row by the dropped one alone."""
    old: list[Transaction] = []

    def begin() -> None:
        old.append(table.begin())
        old[0].table("rows", codec=dict).put({"id": 2, "a": 7})

    with meanwhile("client.columns.fenced", begin):
        table.alter_columns("rows", drop=["a"])
    new = table.begin()
    assert new.table("rows", codec=dict).put_if_absent({"id": 2, "b": "y"})
    old[0].commit()
    with pytest.raises(ConflictError):
        new.commit()


def test_rows_without_values_meet_in_one_cell_for_ever(memory_db: Database) -> None:
    """The sentinel's family was that of the first column, and columns change their order."""
    memory_db.create_table("rows", ["d", "e"])
    memory_db.set_schema("rows", {"id": int, "a": int, "b": int}, row_key="id", mapping={"a": "e:a", "b": "d:b"})
    old: list[Transaction] = []

    def begin() -> None:
        old.append(memory_db.begin())
        old[0].table("rows", codec=dict).put({"id": 1})

    with meanwhile("client.columns.fenced", begin):
        memory_db.alter_columns("rows", drop=["a"])
    new = memory_db.begin()
    new.table("rows", codec=dict).put({"id": 1})
    new.commit()
    with pytest.raises(ConflictError):
        old[0].commit()


@pytest.mark.parametrize("point", ["client.columns.changing", "client.columns.fenced"])
def test_half_a_change_is_none_and_the_next_one_ends_it(table: Database, keeper: Database, point: str) -> None:
    with dying_at(point):
        table.alter_columns("rows", drop=["a"])
    assert rows(keeper) == [ROW]
    assert table.table_info("rows").is_changing
    table.alter_columns("rows", rename={"a": "c"})
    assert not table.table_info("rows").is_changing
    assert rows(keeper)[0]["c"] == -5


def test_of_two_changes_at_once_none_is_lost(table: Database) -> None:
    with meanwhile("client.columns.fenced", lambda: table.alter_columns("rows", rename={"b": "d"})):
        table.alter_columns("rows", rename={"a": "c"})
    assert rows(table)[0]["c"] == -5
    assert rows(table)[0]["d"] == "x"
    with (
        meanwhile("client.columns.fenced", lambda: table.alter_columns("rows", drop=["c"])),
        pytest.raises(OmidError, match="has no column 'c'"),
    ):
        table.alter_columns("rows", widen={"c": "long"})
    assert not table.table_info("rows").is_changing


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rename": {"a": "b"}}, "would have two columns 'b'; give another name"),
        ({"rename": {"a": "c", "b": "c"}}, "would have two columns 'c'"),
        ({"rename": {"aa": "c"}}, "no column 'aa'; did you mean 'a'"),
        ({"rename": {"a": ""}}, "must be a non-empty string, not ''"),
        ({"rename": ["a"]}, "not a mapping of column names"),
        ({"add": {"a": int}}, "would have two columns 'a'"),
        ({"add": {"c": "huge"}}, "'huge' cannot be stored"),
        ({"add": {"c": '{"type":"array","elementType":"{}","containsNull":true}'}}, "'{}' cannot be stored"),
        ({"drop": ["id"]}, "belongs to the row key"),
        ({"drop": "a"}, "not a list of column names"),
        ({"drop": ["a"], "rename": {"a": "c"}}, "so the same call cannot rename the column"),
        ({"widen": {"id": "decimal(20,0)"}}, "belongs to the row key"),
        ({"widen": {"a": "short"}}, "has type integer, which cannot be widened to short"),
        ({"widen": {"b": bytes}}, "has type string, which cannot be widened to binary"),
        ({"widen": {"money": "decimal(8,3)"}}, "cannot be widened to decimal"),
        ({"order": ["a", "a"]}, "order names 'a' several times"),
        ({"order": ["x"]}, "order names 'x', which is not a column"),
        ({}, "no change was given"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(memory_db: Database, changes: dict[str, Any], told: str) -> None:
    made(memory_db)
    before = memory_db.table_info("rows")
    with pytest.raises(Misuse, match=told) as refused:
        memory_db.alter_columns("rows", **changes)
    assert "\n" not in str(refused.value)
    assert memory_db.table_info("rows") == before
    with pytest.raises(Misuse, match="add one with Database"):
        memory_db.alter_columns("t", drop=["a"])


async def test_columns_change_by_asyncio_and_by_command(url: str, table: Database) -> None:
    async with await pyomid.aio.connect(url) as db:
        await db.alter_columns("rows", rename={"a": "c"})
    if url.startswith("omid-memory"):
        return
    given = ["--rename", "c=e", "--drop", "b", "--widen", "c=long", "--add", "n=date", "--order", "n,e"]
    assert main(["tables", url, "alter", "rows", *given, "--conflict-level", "row"]) == 0
    assert list(rows(table)[0].items())[:3] == [("n", None), ("e", -5), ("id", 1)]
    assert table.table_info("rows").conflict_level == "row"
    assert main(["tables", url, "alter", "rows", "--rename", "c"]) != 0
    assert main(["tables", url, "alter", "rows"]) != 0


# Any sequence of changes, beside rows that are written at any time


@dataclass
class Model:
    """Values by column, not by name; `names` in the table's order."""

    names: dict[str, int]
    types: dict[int, str]
    rows: dict[int, dict[int, Any]]


_WIDER = {"byte": "short", "short": "integer", "integer": "long", "float": "double"}
_VALUES = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["rename", "swap", "drop", "widen", "add", "order", "put", "put"]),
        st.integers(0, 5),
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=14,
)


@settings(max_examples=30, deadline=None)
@given(_STEPS)
def test_any_sequence_of_changes_reads_as_its_model(steps: list[tuple[str, int, int]]) -> None:
    with pyomid.connect(f"omid-memory:columns-{next(_numbers)}") as db:
        db.create_table("rows", ["d"])
        db.set_schema("rows", {"id": int, "a": "byte", "b": "float"}, row_key="id")
        model, columns = Model({"id": 0, "a": 1, "b": 2}, {1: "byte", 2: "float"}, {}), itertools.count(3)
        for kind, at, number in steps:
            _take(db, model, columns, kind, at, number)
            wanted = [
                {name: row if column == 0 else cells.get(column) for name, column in model.names.items()}
                for row, cells in sorted(model.rows.items())
            ]
            assert rows(db) == wanted


def _take(db: Database, model: Model, columns: Iterator[int], kind: str, at: int, number: int) -> None:
    values = [name for name, column in model.names.items() if column]
    name = values[at % len(values)] if values else ""
    free = next(each for each in "abcdefgh" if each not in model.names)
    if kind == "add" and len(values) < 5:
        type_name = ["byte", "integer", "float", "string"][number % 4]
        db.alter_columns("rows", add={free: type_name})
        model.names[free] = column = next(columns)
        model.types[column] = type_name
    elif kind == "put":
        row = {each: _value(model.types[model.names[each]], number + n) for n, each in enumerate(values) if n != at}
        put(db, {"id": at, **row})
        model.rows.setdefault(at, {}).update({model.names[each]: value for each, value in row.items()})
    elif not values:
        return
    elif kind == "drop":
        db.alter_columns("rows", drop=[name])
        del model.names[name]
    elif kind == "widen" and model.types[model.names[name]] in _WIDER:
        model.types[model.names[name]] = _WIDER[model.types[model.names[name]]]
        db.alter_columns("rows", widen={name: model.types[model.names[name]]})
    elif kind in ("rename", "swap"):
        changes = {name: free} if kind == "rename" else {name: values[0], values[0]: name}
        db.alter_columns("rows", rename=changes)
        model.names = {changes.get(each, each): column for each, column in model.names.items()}
    elif kind == "order":
        db.alter_columns("rows", order=[name])
        model.names = {name: model.names[name], **model.names}


def _value(type_name: str, number: int) -> Any:
    if type_name in _VALUES:
        return number % _VALUES[type_name] - _VALUES[type_name] // 2
    return str(number) if type_name == "string" else float(number % 1000) / 4
